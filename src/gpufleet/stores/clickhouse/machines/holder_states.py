"""Holder states of devices: rows of the table `holder_states`, and their query."""

from collections.abc import Sequence

from gpufleet.model.holdings import DeviceState, HolderState, UnresolvedCount
from gpufleet.model.stored.holdings import StoredHolderStates
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.stores.clickhouse.connection.client import Handle

MAX_SENDERS = 64
"""Maximum number of senders of a machine whose reports are read, the newest ones."""

_NEWEST = f"""
SELECT machine, sender, toUnixTimestamp64Nano(reported_at), toUnixTimestamp64Nano(sent_at), views, states, details,
    unresolved_sources, unresolved_names, unresolved_examples
FROM (
    SELECT * FROM (
        SELECT * FROM holder_states
        WHERE cluster = {{cluster:String}} AND machine IN {{machines:Array(String)}}
            AND reported_at >= fromUnixTimestamp64Nano({{since:Int64}}, 'UTC')
        ORDER BY machine, sender, epoch, reported_at DESC LIMIT 1 BY machine, sender, epoch
    ) ORDER BY machine, sender, least(sent_at, reported_at) DESC, reported_at DESC LIMIT 1 BY machine, sender
) ORDER BY machine, reported_at DESC LIMIT {MAX_SENDERS} BY machine
"""  # noqa: S608 - a number; values are bound as parameters


def holder_state_cells(
    accepted: AcceptedBatch, machine: str, devices: Sequence[DeviceState], unresolved: Sequence[UnresolvedCount]
) -> tuple[object, ...]:
    """Return the row of a report."""
    batch = accepted.batch
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
        [one.source for one in unresolved],
        [one.names for one in unresolved],
        [list(one.examples) for one in unresolved],
    )


def fetch_holder_states(
    handle: Handle, cluster: str, machines: Sequence[str], since: int
) -> dict[str, tuple[StoredHolderStates, ...]]:
    """Return the newest reports; see `ports.SampleStore.holder_states`."""
    if not machines:
        return {}
    parameters = {"cluster": cluster, "machines": list(machines), "since": max(0, since)}
    found: dict[str, list[StoredHolderStates]] = {}
    for machine, sender, reported_at, sent_at, views, states, details, sources, names, examples in sorted(
        handle.query(_NEWEST, parameters=parameters).result_rows
    ):
        devices = zip(views, states, details, strict=True)
        one = StoredHolderStates(
            sender=sender,
            reported_at=reported_at,
            sent_at=sent_at,
            devices=tuple([DeviceState(view=v, state=HolderState(s), detail=d) for v, s, d in devices]),
            unresolved=_unresolved(sources, names, examples),
        )
        found.setdefault(machine, []).append(one)
    return {machine: tuple(reports) for machine, reports in found.items()}


def _unresolved(
    sources: Sequence[str], names: Sequence[int], examples: Sequence[Sequence[str]]
) -> tuple[UnresolvedCount, ...]:
    """Return the counts of a row. A row from before the column `unresolved_examples` has none there."""
    known = zip(sources, names, examples or [()] * len(sources), strict=True)
    return tuple([UnresolvedCount(source=s, names=n, examples=tuple(e)) for s, n, e in known])
