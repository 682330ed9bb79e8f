"""The hub's write-ahead log: bodies as received, in a spool whose record times are the times of receipt."""

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec

from gpufleet.model.errors import SpoolError
from gpufleet.spool import Spool, SpoolRecord
from gpufleet.spool.recovery import SUFFIX, inspect_spool

log = logging.getLogger(__name__)


class WalRecord(msgspec.Struct, frozen=True):
    """An acknowledged body.

    Attributes:
        seq: number in the log.
        received_at: receipt by the first relay, or by the hub if there was none, in nanoseconds since 1970 by the hub's
            clock.
        body: as received.
        waited_ns: time from then until the receipt by this hub.
    """

    seq: int
    received_at: int
    body: bytes
    waited_ns: int = 0

    @property
    def came_at(self) -> int:
        """Time of receipt by this hub, nanoseconds since 1970."""
        return self.received_at + self.waited_ns


class LogPayload(msgspec.Struct, frozen=True, array_like=True):
    """Content of a log's spool record: a body as received, and the nanoseconds that it waited at relays."""

    body: bytes
    waited_ns: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(LogPayload)
_MIN_SEGMENT_BYTES = 8 << 20
_PAYLOAD_OVERHEAD_BYTES = 64 << 10


class Wal:
    """Write-ahead log of acknowledged bodies until they are stored. When full it rejects, unlike a spool that drops."""

    def __init__(self, spool: Spool, max_bytes: int) -> None:
        self._spool = spool
        self._max_bytes = max_bytes

    @classmethod
    def open(cls, folder: Path, *, max_bytes: int, max_body_bytes: int) -> Self:
        """Open or create the log in `folder`. Blocking: reads all its files.

        Raises:
            SpoolError: if another process has it open or the disk refuses.
        """
        segment = max(_MIN_SEGMENT_BYTES, max_body_bytes + _PAYLOAD_OVERHEAD_BYTES)
        # The limit includes headers and partly acknowledged segments. One unacknowledged body keeps its whole segment,
        # so this limit can be reached before `max_bytes`: then the log is full.
        limit = 2 * max_bytes + 8 * segment
        spool = Spool.open(folder, max_bytes=limit, segment_bytes=segment, drops=False)
        if spool.recovery.damaged_bytes or spool.recovery.lost_records:
            log.error(
                "the log %s is damaged: %d acknowledged batches lost, %d bytes unreadable",
                folder,
                spool.recovery.lost_records,
                spool.recovery.damaged_bytes,
            )
        return cls(spool, max_bytes)

    @property
    def epoch(self) -> str:
        """Identifier of the log; a log created after a wipe has another."""
        return self._spool.epoch

    @property
    def waiting_records(self) -> int:
        """Number of bodies in the backlog."""
        return self._spool.depth.records

    @property
    def waiting_bytes(self) -> int:
        """Size of the bodies in the backlog, in bytes."""
        return self._spool.depth.bytes

    @property
    def used_ratio(self) -> float:
        """Backlog as a share of its limit."""
        return self._spool.depth.bytes / self._max_bytes

    @property
    def lost(self) -> int:
        """Acknowledged bodies that were damaged on disk or missing on opening."""
        return self._spool.dropped_total + self._spool.recovery.lost_records

    @property
    def oldest_received_at(self) -> int | None:
        """Time of receipt of the oldest body in the backlog, nanoseconds since 1970; None if it is empty."""
        return self._spool.depth.oldest_at

    def make_drain_check(self) -> Callable[[], bool]:
        """Return a function that returns whether the current backlog has been flushed."""
        newest = self._spool.next_seq - 1

        def is_drained() -> bool:
            oldest = self._spool.depth.oldest_seq
            return oldest is None or oldest > newest

        return is_drained

    async def append(self, came_at: int, body: bytes, waited_ns: int = 0) -> int:
        """Make a body durable and return its number; `waited_ns` is the time it waited at relays.

        Raises:
            SpoolError: if the log is full or the disk refuses; the body must not be acknowledged then.
        """
        (number,) = await self.append_all(came_at, [body], [waited_ns])
        if isinstance(number, SpoolError):
            raise number
        return number

    async def append_all(self, came_at: int, bodies: Sequence[bytes], waited: Sequence[int]) -> list[int | SpoolError]:
        """Make bodies durable together; return the number of each, or the error for which it must not be acknowledged.

        `waited` has the nanoseconds that each body waited at relays.

        Raises:
            SpoolError: if the disk refuses; none of the bodies must be acknowledged then.
        """
        waiting = self._spool.depth.bytes
        numbers: list[int | SpoolError] = []
        fitting: list[bytes] = []
        for body, waited_ns in zip(bodies, waited, strict=True):
            if waiting + len(body) > self._max_bytes:
                numbers.append(SpoolError(f"the log is full: its backlog is {waiting} of {self._max_bytes} bytes"))
                continue
            payload = _ENCODER.encode(LogPayload(body, waited_ns))
            fitting.append(payload)
            numbers.append(0)
            waiting += len(payload)
        put = iter(await self._spool.put_all(fitting, came_at))
        return [number if isinstance(number, SpoolError) else next(put) for number in numbers]

    def check_files(self) -> None:
        """Check that the log's files are still in its folder.

        Raises:
            SpoolGoneError: if they were deleted, moved or replaced; nothing can be acknowledged any more.
        """
        self._spool.check_files()

    def read(self, after: int, *, max_records: int, max_bytes: int) -> list[WalRecord]:
        """Return the oldest records after number `after`, at least one if there is any."""
        return _records(self._spool.read(after, max_records=max_records, max_bytes=max_bytes))

    def read_some(
        self, *, newest_first: bool, max_records: int, max_bytes: int, skip: Container[int]
    ) -> list[WalRecord]:
        """Return the newest or the oldest records not in `skip`, at least one if there is any."""
        read = self._spool.read_newest if newest_first else self._spool.read
        return _records(read(max_records=max_records, max_bytes=max_bytes, skip=skip))

    def replay(self) -> Iterator[WalRecord]:
        """Iterate over the backlog found on opening."""
        after = 0
        while records := self.read(after, max_records=1000, max_bytes=16 << 20):
            yield from records
            after = records[-1].seq

    def acknowledge(self, seqs: Sequence[int]) -> None:
        """Remove records that are in the store or the quarantine."""
        self._spool.acknowledge(seqs)

    def close(self) -> None:
        """Close; a second close does nothing."""
        self._spool.close()


def has_log(folder: Path) -> bool:
    """Return whether a folder has files of a log; a folder without them can be that of a disk that is not mounted."""
    return any(folder.glob(f"*{SUFFIX}"))


def _records(read: list[SpoolRecord]) -> list[WalRecord]:
    decoded = ((record, _DECODER.decode(record.body)) for record in read)
    return [
        WalRecord(record.seq, record.at - payload.waited_ns, payload.body, payload.waited_ns)
        for record, payload in decoded
    ]


class WalBacklog(msgspec.Struct, frozen=True):
    """Backlog of a log: number of records, size in bytes, and receipt of the oldest (None if empty)."""

    records: int
    size: int
    oldest_received_at: int | None


def read_backlog(folder: Path) -> WalBacklog:
    """Read the backlog of a log that another process may own, without changing it.

    Raises:
        OSError: if it cannot be read.
    """
    found = inspect_spool(folder)
    return WalBacklog(found.records, found.size, found.oldest_at)
