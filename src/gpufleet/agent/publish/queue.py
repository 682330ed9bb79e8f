"""What waits for the hub: on disk, and in memory while the disk refuses.

Batches that the disk will not keep, in memory: a bounded number, the oldest lost first.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable

import msgspec

from gpufleet.codecs.batch import renumber
from gpufleet.model.errors import SpoolError, WireError
from gpufleet.spool import Spool, SpoolDiskError, renew

MEMORY_BYTES = 8 << 20
"""Of bodies; the newest is kept even if it alone has more."""


class Memory:
    """A queue in memory, with an epoch and numbers of its own.

    It cannot count on in the spool's numbers: a process killed while the disk refuses would give them out again, and
    a hub takes a number it has for a repetition. In an epoch of its own each number is given once, so what was lost
    is exactly what is missing of it.

    Attributes:
        epoch: 32 hexadecimal digits, random, of this process.
        lost: batches that gave way to newer ones.
    """

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        """Take the bound."""
        self.epoch = secrets.token_hex(16)
        self.lost = 0
        self.bytes = 0
        self._max_bytes = max_bytes
        self._next_seq = 1
        self._waiting: deque[tuple[int, bytes]] = deque()

    @property
    def records(self) -> int:
        """Batches that wait."""
        return len(self._waiting)

    def put(self, make: Callable[[str, int], bytes]) -> None:
        """Keep the body that `make(epoch, seq)` returns; a number for which it raises is given again."""
        body = make(self.epoch, self._next_seq)
        self._waiting.append((self._next_seq, body))
        self._next_seq += 1
        self.bytes += len(body)
        while self.bytes > self._max_bytes and len(self._waiting) > 1:
            self.bytes -= len(self._waiting.popleft()[1])
            self.lost += 1

    def renew(self, make: Callable[[bytes, str, int], bytes | None]) -> None:
        """Take another epoch, in which what waits is numbered anew by `make(body, epoch, seq)`; None leaves it out."""
        waiting, self._waiting = self._waiting, deque()
        self.epoch = secrets.token_hex(16)
        self._next_seq, self.bytes = 1, 0
        for _, body in waiting:
            made = make(body, self.epoch, self._next_seq)
            if made is not None:
                self._waiting.append((self._next_seq, made))
                self._next_seq += 1
                self.bytes += len(made)

    def newest(self) -> tuple[int, bytes] | None:
        """Return the newest that waits."""
        return self._waiting[-1] if self._waiting else None

    def oldest(self) -> tuple[int, bytes] | None:
        """Return the oldest that waits."""
        return self._waiting[0] if self._waiting else None

    def acknowledge(self, seq: int) -> None:
        """Forget one; a number that does not wait is passed over."""
        for place, (number, body) in enumerate(self._waiting):
            if number == seq:
                self.bytes -= len(body)
                del self._waiting[place]
                return


log = logging.getLogger(__name__)

LIVE_RECORDS = 32
"""The newest numbers, whose batches go first; older ones are backlog."""

READ_RECORDS = 8
READ_BYTES = 4 << 20


class Queued(msgspec.Struct, frozen=True):
    """One batch that waits."""

    epoch: str
    seq: int
    body: bytes


class Queue:
    """A spool, and a memory for when it cannot be written or not even opened. Lives on the event loop."""

    def __init__(self, open_spool: Callable[[], Spool], memory: Memory) -> None:
        """Take how to open the spool; `open` does."""
        self._open_spool = open_spool
        self._spool: Spool | None = None
        self._memory = memory
        self._trouble = ""
        self._changing = asyncio.Lock()  # around putting into the spool, and putting another in its place

    async def open(self) -> None:
        """Open the spool. Where the disk is full, read-only or broken it is tried again with each batch.

        Raises:
            SpoolError: if it cannot be opened for another reason.
        """
        try:
            self._spool = await asyncio.to_thread(self._open_spool)
        except SpoolDiskError as error:
            self._refused(error)

    def close(self) -> None:
        """Close the spool; what only memory holds is lost."""
        if self._memory.records:
            log.error("%d batches that the disk did not take are lost", self._memory.records)
        if self._spool is not None:
            self._spool.close()

    @property
    def records(self) -> int:
        """Batches that wait."""
        return self._memory.records + (self._spool.depth.records if self._spool else 0)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._memory.bytes + (self._spool.depth.bytes if self._spool else 0)

    @property
    def memory_records(self) -> int:
        """Those of them that only memory holds."""
        return self._memory.records

    @property
    def dropped(self) -> int:
        """Batches that the spool dropped since it was made, to stay within its bounds."""
        return self._spool.dropped_total if self._spool else 0

    @property
    def lost(self) -> int:
        """Batches that the disk refused and memory had no room for."""
        return self._memory.lost

    async def put(self, make: Callable[[str, int], bytes]) -> None:
        """Keep the body that `make(epoch, seq)` returns: durably, or in memory if the disk refuses."""
        async with self._changing:
            if self._spool is None:
                await self.open()
            if self._spool is not None:
                try:
                    await self._spool.put(make(self._spool.epoch, self._spool.next_seq))
                except SpoolError as error:
                    self._refused(error)
                else:
                    if self._trouble:
                        log.info("batches are kept on disk again; %d were lost meanwhile", self.lost)
                    self._trouble = ""
                    return
        self._memory.put(make)

    async def live(self) -> list[Queued]:
        """Return some of the newest, newest first: what memory holds, then of the spool's newest numbers.

        Raises:
            SpoolError: if the disk cannot be read.
        """
        newest = self._memory.newest()
        if newest is not None:
            return [Queued(self._memory.epoch, *newest)]
        if self._spool is None:
            return []
        after = max(0, self._spool.next_seq - 1 - LIVE_RECORDS)
        records = await asyncio.to_thread(
            self._spool.read_newest, after, max_records=READ_RECORDS, max_bytes=READ_BYTES
        )
        return [Queued(self._spool.epoch, seq, body) for seq, body in records]

    async def oldest(self) -> Queued | None:
        """Return the oldest, the spool's before memory's.

        Raises:
            SpoolError: if the disk cannot be read.
        """
        if self._spool is not None:
            for seq, body in await asyncio.to_thread(self._spool.read, max_records=1, max_bytes=READ_BYTES):
                return Queued(self._spool.epoch, seq, body)
        oldest = self._memory.oldest()
        return None if oldest is None else Queued(self._memory.epoch, *oldest)

    async def acknowledge(self, one: Queued) -> None:
        """Forget one."""
        if one.epoch == self._memory.epoch:
            self._memory.acknowledge(one.seq)
        elif self._spool is not None:
            await asyncio.to_thread(self._spool.acknowledge, [one.seq])

    async def renew(self, epoch: str) -> None:
        """Number all that waits under an epoch anew, under another one: somebody else counts under this one too.

        Raises:
            SpoolError: if the disk refuses; what waits is as it was then.
        """
        if epoch == self._memory.epoch:
            self._memory.renew(_renumbered)
            return
        async with self._changing:
            if self._spool is None or self._spool.epoch != epoch:
                return
            await asyncio.to_thread(renew, self._spool, _renumbered)
            await asyncio.to_thread(self._spool.close)
            try:
                self._spool = await asyncio.to_thread(self._open_spool)
            except SpoolError as error:
                self._spool = None  # it is tried again with each batch
                self._refused(error)

    def _refused(self, error: SpoolError) -> None:
        if not self._trouble:
            log.error("batches are kept in memory only until this is mended: %s", error)
        self._trouble = str(error)


def _renumbered(body: bytes, epoch: str, seq: int) -> bytes | None:
    try:
        return renumber(body, epoch, seq)
    except WireError as error:
        log.error("a batch that waited cannot be read any more and is lost: %s", error)
        return None
