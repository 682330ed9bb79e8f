"""The hub's write-ahead log: bodies as they came, with the time of receipt, in a spool."""

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec

from gpufleet.model.errors import SpoolError
from gpufleet.spool import Spool
from gpufleet.spool.recovery import look

log = logging.getLogger(__name__)


class WalRecord(msgspec.Struct, frozen=True):
    """One acknowledged body.

    Attributes:
        seq: its number in the log.
        received_at: nanoseconds since 1970 by the hub's clock, when the first relay had it, or the hub where none did.
        body: as it came.
        waited_ns: how much of the time since then it waited at relays before it came here.
    """

    seq: int
    received_at: int
    body: bytes
    waited_ns: int = 0

    @property
    def came_at(self) -> int:
        """When it came here."""
        return self.received_at + self.waited_ns


class _Payload(msgspec.Struct, frozen=True, array_like=True):
    came_at: int
    body: bytes
    waited_ns: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Payload)
_LEAST_SEGMENT = 8 << 20
_PAYLOAD_OVERHEAD = 64 << 10


class Wal:
    """Acknowledged bodies until the store has them. Unlike a spool it never drops: it refuses when it is full."""

    def __init__(self, spool: Spool, max_bytes: int) -> None:
        self._spool = spool
        self._max_bytes = max_bytes
        self._received: dict[int, int] = {}

    @classmethod
    def open(cls, folder: Path, *, max_bytes: int, max_body_bytes: int) -> Self:
        """Open the log in `folder`, or make one. Blocking: reads all that is there.

        Raises:
            SpoolError: if another process has it or the disk refuses.
        """
        segment = max(_LEAST_SEGMENT, max_body_bytes + _PAYLOAD_OVERHEAD)
        # Headers and half-acknowledged segments come on top of the bodies. One body that cannot go yet keeps its whole
        # segment, so this too may be used up: then the log is full.
        room = 2 * max_bytes + 8 * segment
        spool = Spool.open(folder, max_bytes=room, segment_bytes=segment, drops=False)
        if spool.recovery.damaged_bytes or spool.recovery.lost_records:
            log.error(
                "the log %s is damaged: %d acknowledged batches are gone, %d bytes cannot be read",
                folder,
                spool.recovery.lost_records,
                spool.recovery.damaged_bytes,
            )
        return cls(spool, max_bytes)

    @property
    def epoch(self) -> str:
        """Names the log: a wiped one is another."""
        return self._spool.epoch

    @property
    def waiting_records(self) -> int:
        """Bodies that wait."""
        return self._spool.depth.records

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the bodies that wait."""
        return self._spool.depth.bytes

    @property
    def lost(self) -> int:
        """Acknowledged bodies that the disk gave back damaged, or that were not there any more on opening."""
        return self._spool.dropped_total + self._spool.recovery.lost_records

    @property
    def oldest_received_at(self) -> int | None:
        """When the oldest body that waits came here, or None when none does."""
        oldest = self._spool.depth.oldest_seq
        return None if oldest is None else self._received.get(oldest)

    def what_waits(self) -> Callable[[], bool]:
        """Return what tells whether everything that waits now is gone."""
        newest = max(self._received, default=0)

        def is_gone() -> bool:
            oldest = self._spool.depth.oldest_seq
            return oldest is None or oldest > newest

        return is_gone

    async def append(self, came_at: int, body: bytes, waited_ns: int = 0) -> int:
        """Make a body durable and return its number; `waited_ns` is how long it waited at relays before it came.

        Raises:
            SpoolError: if the log is full or the disk refuses; the body may not be acknowledged then.
        """
        (number,) = await self.append_all(came_at, [body], [waited_ns])
        if isinstance(number, SpoolError):
            raise number
        return number

    async def append_all(self, came_at: int, bodies: Sequence[bytes], waited: Sequence[int]) -> list[int | SpoolError]:
        """Make bodies durable together; return the number of each, or why it may not be acknowledged.

        `waited` has the nanoseconds that each of them waited at relays before it came.

        Raises:
            SpoolError: if the disk refuses; none of them may be acknowledged then.
        """
        waiting = self.waiting_bytes
        numbers: list[int | SpoolError] = []
        fitting: list[bytes] = []
        for body, waited_ns in zip(bodies, waited, strict=True):
            if waiting + len(body) > self._max_bytes:
                numbers.append(SpoolError(f"the log is full: {waiting} bytes wait, of {self._max_bytes} allowed"))
                continue
            payload = _ENCODER.encode(_Payload(came_at, body, waited_ns))
            fitting.append(payload)
            numbers.append(0)
            waiting += len(payload)
        put = iter(await self._spool.put_all(fitting))
        numbers = [number if isinstance(number, SpoolError) else next(put) for number in numbers]
        oldest = self._spool.depth.oldest_seq
        for number in numbers:
            # What is older was written and forgotten before this line was reached.
            if isinstance(number, int) and oldest is not None and oldest <= number:
                self._received[number] = came_at
        return numbers

    def read(self, after: int, *, max_records: int, max_bytes: int) -> list[WalRecord]:
        """Return the oldest records after number `after` that wait, at least one if there is any."""
        return _records(self._spool.read(after, max_records=max_records, max_bytes=max_bytes))

    def read_some(
        self, *, newest_first: bool, max_records: int, max_bytes: int, skip: Container[int]
    ) -> list[WalRecord]:
        """Return the newest or the oldest records that wait and are not in `skip`, at least one if there is any."""
        read = self._spool.read_newest if newest_first else self._spool.read
        return _records(read(max_records=max_records, max_bytes=max_bytes, skip=skip))

    def replay(self) -> Iterator[WalRecord]:
        """Go through everything that waits, as found on opening."""
        after = 0
        while records := self.read(after, max_records=1000, max_bytes=16 << 20):
            for record in records:
                self._received[record.seq] = record.came_at
                yield record
            after = records[-1].seq

    def acknowledge(self, seqs: Sequence[int]) -> None:
        """Forget records that the store or the quarantine has."""
        self._spool.acknowledge(seqs)
        for seq in seqs:
            self._received.pop(seq, None)

    def close(self) -> None:
        """Close; a second close does nothing."""
        self._spool.close()


def _records(read: list[tuple[int, bytes]]) -> list[WalRecord]:
    decoded = ((seq, _DECODER.decode(payload)) for seq, payload in read)
    return [
        WalRecord(seq, payload.came_at - payload.waited_ns, payload.body, payload.waited_ns) for seq, payload in decoded
    ]


class WalDepth(msgspec.Struct, frozen=True):
    """What waits in a log: records, their size in bytes, and when the oldest was received (None for none)."""

    records: int
    size: int
    oldest_received_at: int | None


def depth_of(folder: Path) -> WalDepth:
    """Look into a log that another process may own; changes nothing.

    Raises:
        OSError: if it cannot be read.
        SpoolError: if the oldest record is not one of a log.
    """
    found = look(folder)
    if found.oldest is None:
        return WalDepth(found.records, found.size, None)
    try:
        oldest = _DECODER.decode(found.oldest)
    except msgspec.MsgspecError as error:
        raise SpoolError(f"{folder}: the oldest record is none of a log: {error}") from error
    return WalDepth(found.records, found.size, oldest.came_at)
