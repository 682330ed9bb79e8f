"""Holder states of devices: rows of the table `holder_states`, and their query."""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from gpufleet.model.holdings import DeviceState, HolderState, UnresolvedCount
from gpufleet.model.stored.holdings import StoredHolderStates
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.cache import NewestRowCache, ResultRow, fetch_newest
from gpufleet.stores.clickhouse.schema.tables import HOLDER_STATES

MAX_SENDERS = 64
"""Maximum number of senders of a machine whose reports are read, the newest ones."""

HOLDER_STATE_COLUMNS = (
    *("machine", "sender", "epoch", "sent_at", "views", "states", "details"),
    *("unresolved_sources", "unresolved_names", "unresolved_examples", "failed_sources", "reported_at"),
)
"""Columns as queried: those of the key, and the place in the order of reports last."""

HOLDER_STATE_KEY_SIZE = 3

_SELECT = f"""
SELECT {", ".join(f"toUnixTimestamp64Nano({name})" if name.endswith("_at") else name for name in HOLDER_STATE_COLUMNS)}
"""


def holder_state_cells(
    accepted: AcceptedBatch, machine: str, devices: Sequence[DeviceState], unresolved: Sequence[UnresolvedCount]
) -> tuple[object, ...]:
    """Return the row of a report. Sources that fail have a column of their own."""
    batch = accepted.batch
    counted = [one for one in unresolved if one.names is not None]
    return (
        batch.cluster,
        machine,
        batch.sender,
        batch.epoch,
        accepted.reported_at,
        accepted.received_at,
        batch.sent_at,
        [one.view for one in devices],
        [one.state.value for one in devices],
        [one.detail for one in devices],
        [one.source for one in counted],
        [one.names for one in counted],
        [list(one.examples) for one in counted],
        [one.source for one in unresolved if one.names is None],
    )


def fetch_holder_states(
    handle: Handle, cache: NewestRowCache | None, cluster: str, machines: Sequence[str], since: int
) -> dict[str, tuple[StoredHolderStates, ...]]:
    """Return the newest reports; see `ports.SampleStore.holder_states`.

    `cache` is None if other processes may write to the tables.
    """

    def query(wanted: Sequence[str]) -> list[ResultRow]:
        parameters = {"cluster": cluster, "machines": list(wanted)}
        return fetch_newest(
            handle, _SELECT, HOLDER_STATES.name, parameters, key=HOLDER_STATE_KEY_SIZE, rank=itemgetter(-1)
        )

    if not machines:
        return {}
    newest: dict[str, dict[str, _Report]] = {}
    for machine, sender, _, sent_at, *cells, reported_at in (
        query(machines) if cache is None else cache.fetch(cluster, machines, query)
    ):
        if reported_at >= since:
            report = _Report(min(sent_at, reported_at), reported_at, sent_at, cells)
            of_machine = newest.setdefault(machine, {})
            of_machine[sender] = max(of_machine.get(sender, report), report, key=itemgetter(0, 1))
    return {machine: tuple(_stored(reports)) for machine, reports in newest.items()}


class _Report(NamedTuple):
    """Report of a sender; of several epochs the first two numbers decide which is the newest."""

    at: int
    reported_at: int
    sent_at: int
    cells: Sequence[Any]


def _stored(reports: Mapping[str, _Report]) -> Iterator[StoredHolderStates]:
    """Return the newest reports by sender."""
    newest = sorted(reports.items(), key=lambda one: one[1].reported_at, reverse=True)[:MAX_SENDERS]
    for sender, one in sorted(newest, key=itemgetter(0)):
        views, states, details, *unresolved = one.cells
        devices = zip(views, states, details, strict=True)
        yield StoredHolderStates(
            sender=sender,
            reported_at=one.reported_at,
            sent_at=one.sent_at,
            devices=tuple([DeviceState(view=v, state=HolderState(s), detail=d) for v, s, d in devices]),
            unresolved=_unresolved(*unresolved),
        )


def _unresolved(
    sources: Sequence[str], names: Sequence[int], examples: Sequence[Sequence[str]], failed: Sequence[str]
) -> tuple[UnresolvedCount, ...]:
    """Return the counts of a row. A row from before the column `unresolved_examples` has none there."""
    known = zip(sources, names, examples or [()] * len(sources), strict=True)
    counts = [UnresolvedCount(source=s, names=n, examples=tuple(e)) for s, n, e in known]
    return (*counts, *(UnresolvedCount(source=one, names=None) for one in failed))
