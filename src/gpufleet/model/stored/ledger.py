"""Persistent sender state of a hub: received batches, newest reports, and the pending flush."""

from array import array
from typing import NamedTuple

import msgspec

from gpufleet.model.status import Heartbeat

Ranges = tuple[tuple[int, int], ...]
"""Merged ranges of sequence numbers: sorted, both ends included, never adjacent."""


class ProcessSpan(msgspec.Struct, frozen=True, array_like=True):
    """Sequence numbers between the first and the last heartbeat of a sender process.

    Attributes:
        started_at: start time of the process, as reported: nanoseconds since 1970.
        first, last: numbers, both included.
    """

    started_at: int
    first: int
    last: int


class SequenceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Received part of a run of sequence numbers, with digests that distinguish a repeated body from a different one.

    Attributes:
        ranges: the numbers.
        digests: number, digest and second of receipt of the newest bodies, 20 bytes each.
        processes: spans of the sender's processes, lowest first; they never overlap.
        gap_ends: numbers that ended a gap, with their place in the order of reports (nanoseconds since 1970).
        top: the highest number, with its place.
    """

    ranges: Ranges
    digests: bytes = b""
    processes: tuple[ProcessSpan, ...] = ()
    gap_ends: Ranges = ()
    top: tuple[int, int] | None = None


class SequenceKey(msgspec.Struct, frozen=True, order=True):
    """Identity of a run of sequence numbers."""

    cluster: str
    sender: str
    epoch: str


class NewestReport(msgspec.Struct, frozen=True, kw_only=True):
    """Newest report of a sender.

    Attributes:
        epoch: of its newest batch.
        seq: of its newest batch.
        sent_at: nanoseconds since 1970 by the sender's clock, or else by the hub's: see `is_created_by_hub`.
        received_at: nanoseconds since 1970 by the hub's clock.
        reported_at: place in the order of reports, see `AcceptedBatch`; 0 if none was given.
        heartbeat: the newest heartbeat, or None if there was none. See `own_heartbeat`.
    """

    epoch: str
    seq: int
    sent_at: int
    received_at: int
    reported_at: int = 0
    heartbeat: Heartbeat | None = None

    @property
    def is_created_by_hub(self) -> bool:
        """Return whether the hub itself created the batch, so that `sent_at` does not show the clock of the sender.

        These are the batches of writers, which have no heartbeat, and of the targets that the hub polls.
        """
        return self.own_heartbeat is None

    @property
    def own_heartbeat(self) -> Heartbeat | None:
        """Return the newest heartbeat if the sender itself created it, or None.

        The heartbeat of a polled target describes the hub: its version, an empty queue and no dropped batches.
        """
        if self.heartbeat is None or self.heartbeat.answered_at is not None:
            return None
        return self.heartbeat


class FlushIntent(msgspec.Struct, frozen=True, kw_only=True):
    """Pending write to the store. It is made durable first, so that a restart repeats exactly this write.

    Attributes:
        wal: epoch of the write-ahead log with the records.
        token: the insert token.
        records: sequence number in the log to the machine ids of its batch, in the batch's order.
    """

    wal: str
    token: str
    records: dict[int, tuple[str, ...]]


class MachineCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of each cluster.

    Attributes:
        by_cluster: number of machines that are not retired.
        limit: limit on that number in one cluster.
        ratios: use of the nearest limit, which can be that of one sender, or that with retired machines.
    """

    by_cluster: dict[str, int]
    limit: int
    ratios: dict[str, float]


class MachineRoom(msgspec.Struct, frozen=True):
    """Number of machines that may still be registered in a cluster, and by one sender. Negative beyond the limit."""

    cluster: int
    sender: int


class MachineMatch(msgspec.Struct, frozen=True):
    """Machine that a piece of evidence belongs to.

    Attributes:
        id: the hub's id of the machine.
        conflict: explanation if the evidence contradicts another machine's, or None.
    """

    id: str
    conflict: str | None = None


class SucceededMachine(msgspec.Struct, frozen=True):
    """Machine known by its name only, and the machine that reported under this name later: both are the same one.

    Attributes:
        cluster: of both.
        machine: id of the first, which is retired.
        successor: id of the machine that reported.
        last_seen: newest report of the first, nanoseconds since 1970.
        was_reported: whether anything of the first was measured.
    """

    cluster: str
    machine: str
    successor: str
    last_seen: int
    was_reported: bool


class NameInterval(NamedTuple):
    """Interval with a host name of a machine, nanoseconds since 1970; the name is None if it is not known."""

    name: str | None
    start: int
    end: int


class SenderState(msgspec.Struct, frozen=True, kw_only=True):
    """Persistent state of a sender.

    Attributes:
        cluster, sender: identity.
        newest_report: its newest report.
    """

    cluster: str
    sender: str
    newest_report: NewestReport


class MachineFreshness(msgspec.Struct, frozen=True, kw_only=True):
    """Freshness of a machine.

    Attributes:
        id, cluster, sender: the machine, and the sender that reports it.
        last_seen: nanoseconds since 1970 by the hub's clock: receipt of the newest report of the machine.
        retired_at: when an operator retired the machine, its last report if it expired, or None.
        conflict: its evidence contradicts another machine's.
        named_only: listed but never reported: `sender` listed it, at `last_seen`.
    """

    id: str
    cluster: str
    sender: str
    last_seen: int
    retired_at: int | None
    conflict: bool
    named_only: bool = False

    @property
    def is_retired(self) -> bool:
        """Return whether it is retired and no report came since."""
        return self.retired_at is not None and self.retired_at >= self.last_seen


class MachineFreshnessColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Freshness of the machines of a cluster, in columns: there may be 125,000.

    Attributes:
        ids, senders, last_seen: as in `MachineFreshness`, of machines without any other property.
        others: the retired, named-only and conflicting machines.
        version: number that changes with `ids` and `senders`.
    """

    ids: list[str]
    senders: list[str]
    last_seen: "array[int]"
    others: tuple[MachineFreshness, ...] = ()
    version: int = 0

    def at(self, cluster: str, number: int) -> MachineFreshness:
        """Return the machine at a position of the columns."""
        return MachineFreshness(
            id=self.ids[number],
            cluster=cluster,
            sender=self.senders[number],
            last_seen=self.last_seen[number],
            retired_at=None,
            conflict=False,
        )
