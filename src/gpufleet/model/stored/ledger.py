"""What a hub remembers of its senders: which batches it holds, and which flush it was in the middle of."""

import msgspec

from gpufleet.model.status import Heartbeat

Ranges = tuple[tuple[int, int], ...]
"""Sequence numbers as merged ranges: sorted, both ends included, never touching one another."""


class ProcessSpan(msgspec.Struct, frozen=True, array_like=True):
    """The numbers between the first and the last heartbeat of one process of a sender.

    Attributes:
        started_at: when the process started, as it says: nanoseconds since 1970.
        first, last: numbers, both included.
    """

    started_at: int
    first: int
    last: int


class Held(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is held of one run of sequence numbers, and by what another body under a number is told from a repetition.

    Attributes:
        ranges: the numbers.
        digests: number, digest and second of receipt of the bodies received last, 20 bytes each.
        processes: spans of the sender's processes, lowest first: they never overlap.
        gap_ends: numbers that ended a gap, with their place in the order of reports (nanoseconds since 1970).
        top: the highest number, with its place.
    """

    ranges: Ranges
    digests: bytes = b""
    processes: tuple[ProcessSpan, ...] = ()
    gap_ends: Ranges = ()
    top: tuple[int, int] | None = None


class SequenceKey(msgspec.Struct, frozen=True, order=True):
    """Names one run of sequence numbers."""

    cluster: str
    sender: str
    epoch: str


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """The newest word of a sender.

    Attributes:
        epoch: of its newest batch.
        seq: of its newest batch.
        sent_at: nanoseconds since 1970 by the sender's clock.
        received_at: nanoseconds since 1970 by the hub's clock.
        reported_at: its place in the order of reports, see `Accepted`; 0 where none was given.
        heartbeat: the newest heartbeat, or None when it never sent one.
    """

    epoch: str
    seq: int
    sent_at: int
    received_at: int
    reported_at: int = 0
    heartbeat: Heartbeat | None = None


class FlushIntent(msgspec.Struct, frozen=True, kw_only=True):
    """What is about to be written to the store: made durable first, so that a restart repeats exactly this.

    Attributes:
        wal: epoch of the write-ahead log the records are in.
        token: the insert token.
        records: sequence number in the log to the machine ids its batch was matched to, in the batch's order.
    """

    wal: str
    token: str
    records: dict[int, tuple[str, ...]]


class MachineMatch(msgspec.Struct, frozen=True):
    """The machine that evidence belongs to.

    Attributes:
        id: the hub's id of it.
        conflict: words for it when the evidence contradicts another machine's, or None.
    """

    id: str
    conflict: str | None = None


class SenderState(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of one sender.

    Attributes:
        cluster, sender: which.
        heard: its newest word.
    """

    cluster: str
    sender: str
    heard: Heard


class MachineMark(msgspec.Struct, frozen=True, kw_only=True):
    """What tells how recently a machine was heard of.

    Attributes:
        id, cluster, sender: which, and who reports it.
        last_seen: nanoseconds since 1970 by the hub's clock: when what was said of it last was received.
        retired_at: when an operator said that it is gone, or None.
        conflict: its evidence contradicts another machine's.
        named_only: nobody heard of it: `sender` is who named it, `last_seen` when that was last.
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
        """Whether it is gone: not if it was heard of since."""
        return self.retired_at is not None and self.retired_at >= self.last_seen


class MachinesHeard(msgspec.Struct, frozen=True, kw_only=True):
    """How recently the machines of a cluster were heard of, in columns: there may be 125,000.

    Attributes:
        ids, senders, last_seen: as in `MachineMark`, of those of which there is nothing else to say.
        others: the rest: retired, named only, or in conflict.
    """

    ids: list[str]
    senders: list[str]
    last_seen: list[int]
    others: tuple[MachineMark, ...] = ()

    def mark(self, cluster: str, number: int) -> MachineMark:
        """Return one of the first."""
        return MachineMark(
            id=self.ids[number],
            cluster=cluster,
            sender=self.senders[number],
            last_seen=self.last_seen[number],
            retired_at=None,
            conflict=False,
        )
