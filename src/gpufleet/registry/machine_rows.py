"""Machines in the tables of the registry, and their database statements."""

import operator
import sys
from collections.abc import Iterator

import msgspec
import sqlalchemy as sa

from gpufleet.fleet.identity import EVIDENCE, KnownMachine
from gpufleet.model.machine import Machine
from gpufleet.model.stored.ledger import MachineCounts
from gpufleet.registry import tables
from gpufleet.registry.database import Row, execute_rows, read_rows, record_decoder, upsert

_COLUMNS = ("id", "cluster", "sender", "known", "first_seen", "last_seen")

_UPDATE_LAST_SEEN = (
    tables.MACHINES.update()
    .where(tables.MACHINES.c.id == sa.bindparam("which"))
    .values(last_seen=sa.bindparam("last_seen"))
)
"""Update of a machine whose only change is a newer report."""

_UPDATE_RETIRED_AT = (
    tables.MACHINES.update()
    .where(tables.MACHINES.c.id == sa.bindparam("which"))
    .values(retired_at=sa.bindparam("retired_at"))
)
"""Update of a machine whose retirement lay in the future, because the hub's clock moved back."""


MAX_EARLIER_SENDERS = 4
"""Maximum number of earlier senders kept of a machine, such as an agent and several importers."""


SENDER_SHARE = 2
"""One sender may register 1/`SENDER_SHARE` of its cluster's machines, so that it cannot exclude the others."""

RETIRED_FACTOR = 4
"""Maximum machines of a cluster with retired ones, which are kept for its history, as a multiple of the limit."""


def sender_limit(limit: int) -> int:
    """Return how many machines one sender may register in a cluster with this limit."""
    return max(1, limit // SENDER_SHARE)


def limit_ratio(limit: int, active: int, known: int, of_sender: int) -> float:
    """Return the use of the nearest limit of a cluster; at 1, machines are rejected.

    Args:
        limit: of machines that are not retired.
        active: machines that are not retired.
        known: machines with retired ones.
        of_sender: machines of the sender that has most, without retired ones.
    """
    return max(active / limit, known / (RETIRED_FACTOR * limit), of_sender / sender_limit(limit))


class MachineRow(msgspec.Struct):
    """Machine of the registry: a row of its table, as changed since it was read."""

    cluster: str
    sender: str
    known: KnownMachine
    first_seen: int
    evidence: Machine  # the newest evidence, unchanged
    retired_at: int | None = None
    counted_for: str | None = None  # sender for which it is counted; None while it is retired
    earlier_senders: tuple[tuple[str, int], ...] = ()  # with the time of their newest report; not saved

    def reported_at(self, sender: str) -> int | None:
        """Return the time of the newest report by a sender, or None if it is not known to report the machine."""
        return self.known.last_seen if sender == self.sender else dict(self.earlier_senders).get(sender)

    def senders_after(self, sender: str, at: int) -> tuple[str, tuple[tuple[str, int], ...]]:
        """Return the sender and the earlier senders after a report. A late report does not change the sender."""
        times = dict(self.earlier_senders)
        if at >= self.known.last_seen or self.known.named_only:
            times[self.sender] = self.known.last_seen
            times.pop(sender, None)
            newest = sender
        else:
            times[sender] = max(at, times.get(sender, at))
            times.pop(self.sender, None)
            newest = self.sender
        by_time = sorted(times.items(), key=lambda one: one[1])
        return newest, tuple(by_time[-MAX_EARLIER_SENDERS:])

    @property
    def is_retired(self) -> bool:
        """Whether the machine did not report after its retirement."""
        return self.retired_at is not None and self.retired_at >= self.known.last_seen

    @property
    def has_expired(self) -> bool:
        """Whether the machine was retired as of its last report: it was short-lived, or removed."""
        return self.retired_at is not None and self.retired_at == self.known.last_seen


def load_machines(connection: sa.Connection) -> Iterator[MachineRow]:
    """Yield every saved machine."""
    decode = record_decoder(tables.MACHINES, KnownMachine)
    for _, cluster, sender, saved, first_seen, last_seen, retired_at in read_rows(connection, tables.MACHINES):
        known = decode(saved)
        if last_seen > known.last_seen:
            # Only the newest receipt of repeated reports is saved. Like the report before, they were of third parties,
            # or of the machine itself and made by then at the latest.
            if known.imported_at == known.last_seen:
                known = msgspec.structs.replace(known, imported_at=last_seen)
            elif known.made_at:
                known = msgspec.structs.replace(known, made_at=max(last_seen, known.made_at))
            known = msgspec.structs.replace(known, last_seen=last_seen)
        yield MachineRow(sys.intern(cluster), sender, known, first_seen, known.machine, retired_at)


def save_machines(connection: sa.Connection, rows: list[MachineRow]) -> None:
    """Write machines and their new evidence, without `retired_at`."""
    if rows:
        upsert(connection, tables.MACHINES, _COLUMNS, [_values(row) for row in rows])
        _save_evidence(connection, rows)


def save_last_seen(connection: sa.Connection, last_seen: list[tuple[int, str]]) -> None:
    """Write the time of the last report of machines, each before its id."""
    execute_rows(connection, _UPDATE_LAST_SEEN, ("last_seen", "which"), last_seen)


def save_retirements(connection: sa.Connection, retired_at: list[tuple[int | None, str]]) -> None:
    """Write the time of retirement of machines, None for a withdrawn one, each before its id."""
    execute_rows(connection, _UPDATE_RETIRED_AT, ("retired_at", "which"), retired_at)


def retire_machine(connection: sa.Connection, row: MachineRow, at: int) -> None:
    """Write the retirement of a machine, which may be unsaved."""
    table = tables.MACHINES
    updated = connection.execute(table.update().where(table.c.id == row.known.id).values(retired_at=at))
    if updated.rowcount != 1:
        values = dict(zip(_COLUMNS, _values(row), strict=True))
        connection.execute(table.insert(), [{**values, "retired_at": at}])


def count_machines(connection: sa.Connection, limit: int) -> MachineCounts:
    """Return the machines of each cluster as last saved; `limit` is that of machines that are not retired."""
    table = tables.MACHINES
    is_active = sa.or_(table.c.retired_at.is_(None), table.c.retired_at < table.c.last_seen)
    known, active = sa.func.count().label("known"), sa.func.sum(sa.case((is_active, 1), else_=0)).label("active")
    query = sa.select(table.c.cluster, known, active).group_by(table.c.cluster, table.c.sender)
    of_senders: dict[str, list[tuple[int, int]]] = {}
    for row in connection.execute(query):
        of_senders.setdefault(row.cluster, []).append((row.known, row.active))
    totals = {
        cluster: (sum(known for known, _ in own), [active for _, active in own]) for cluster, own in of_senders.items()
    }
    return MachineCounts(
        by_cluster={cluster: sum(active) for cluster, (_, active) in totals.items() if any(active)},
        limit=limit,
        ratios={
            cluster: limit_ratio(limit, sum(active), known, max(active)) for cluster, (known, active) in totals.items()
        },
    )


def evidence_keys(row: MachineRow) -> list[tuple[str, str, str]]:
    """Return cluster, field and value of each evidence of a machine."""
    values = zip(EVIDENCE, _evidence_of(row.known.machine), strict=True)
    return [(row.cluster, field, value) for field, value in values if value]


_evidence_of = operator.attrgetter(*EVIDENCE)


def _values(row: MachineRow) -> Row:
    """Return the values of `_COLUMNS` in order."""
    known = row.known
    return known.id, row.cluster, row.sender, msgspec.msgpack.encode(known), row.first_seen, known.last_seen


def _save_evidence(connection: sa.Connection, rows: list[MachineRow]) -> None:
    """Add evidence that is new for a machine; earlier evidence is kept."""
    ids = [row.known.id for row in rows]
    table = tables.EVIDENCE
    saved: set[tuple[str, str, str]] = set()
    for start in range(0, len(ids), 500):
        query = sa.select(table.c.machine, table.c.field, table.c.value).where(
            table.c.machine.in_(ids[start : start + 500])
        )
        saved.update((row.machine, row.field, row.value) for row in connection.execute(query))
    new = [
        {"machine": row.known.id, "field": field, "value": value, "since": row.known.last_seen}
        for row in rows
        for _, field, value in evidence_keys(row)
        if (row.known.id, field, value) not in saved
    ]
    if new:
        connection.execute(table.insert(), new)
