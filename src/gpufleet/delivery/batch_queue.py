"""The batch queue: a spool on disk, and a bounded memory queue for when the disk fails."""

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable

import msgspec

from gpufleet.codecs.batch import renumber
from gpufleet.model.errors import SpoolError, WireError
from gpufleet.spool import Spool, SpoolDiskError, SpoolGoneError, SpoolRecord, renew

MEMORY_BYTES = 8 << 20
"""Limit of all bodies in memory. The newest body is kept even if it alone is larger."""


class MemoryQueue:
    """A queue in memory with its own epoch and numbers.

    It cannot continue the spool's numbers: a process killed during a disk failure would reuse them, and a hub treats a
    known number as a duplicate. In an epoch of its own each number is used once, so gaps are exactly the losses.

    Attributes:
        epoch: 32 hexadecimal digits, random, new in each process.
        lost: batches dropped in favour of newer ones.
        bytes: bytes of all bodies.
    """

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        """Take the limit in bytes."""
        self.epoch = secrets.token_hex(16)
        self.lost = 0
        self.bytes = 0
        self._max_bytes = max_bytes
        self._next_seq = 1
        self._queued: deque[SpoolRecord] = deque()

    @property
    def records(self) -> int:
        """Number of queued batches."""
        return len(self._queued)

    def put(self, make: Callable[[str, int], bytes], at: int) -> None:
        """Add the body that `make(epoch, seq)` returns, with its time. If it raises, the number is used again."""
        self._append(make(self.epoch, self._next_seq), at)
        while self.bytes > self._max_bytes and len(self._queued) > 1:
            self.bytes -= len(self._queued.popleft().body)
            self.lost += 1

    def _append(self, body: bytes, at: int) -> None:
        self._queued.append(SpoolRecord(self._next_seq, at, body))
        self._next_seq += 1
        self.bytes += len(body)

    def renew(self, make: Callable[[bytes, str, int], bytes | None]) -> None:
        """Start a new epoch and renumber all bodies by `make(body, epoch, seq)`; None drops a body."""
        queued, self._queued = self._queued, deque()
        self.epoch = secrets.token_hex(16)
        self._next_seq, self.bytes = 1, 0
        for one in queued:
            made = make(one.body, self.epoch, self._next_seq)
            if made is not None:
                self._append(made, one.at)

    def newest(self) -> SpoolRecord | None:
        """Return the newest batch."""
        return self._queued[-1] if self._queued else None

    def oldest(self) -> SpoolRecord | None:
        """Return the oldest batch."""
        return self._queued[0] if self._queued else None

    def acknowledge(self, seq: int) -> None:
        """Remove a batch; an unknown number is ignored."""
        for place, one in enumerate(self._queued):
            if one.seq == seq:
                self.bytes -= len(one.body)
                del self._queued[place]
                return


log = logging.getLogger(__name__)

LIVE_RECORDS = 32
"""Number of newest batches that are posted first; older ones are backlog."""

READ_RECORDS = 8
READ_BYTES = 4 << 20


class QueuedBatch(msgspec.Struct, frozen=True):
    """A queued batch: epoch, number and body."""

    epoch: str
    seq: int
    body: bytes


class BatchQueue:
    """A spool, and a memory queue for when it cannot be written or opened. Lives on the event loop."""

    def __init__(self, open_spool: Callable[[], Spool], memory: MemoryQueue) -> None:
        """Take the function with which `open` opens the spool."""
        self._open_spool = open_spool
        self._spool: Spool | None = None
        self._memory = memory
        self._trouble = ""
        self._lost_with_files = 0
        self._changing = asyncio.Lock()  # held while writing to the spool and while replacing it

    async def open(self) -> None:
        """Open the spool. If the disk is full, read-only or broken, each batch retries it.

        Raises:
            SpoolError: if the spool cannot be opened for another reason.
        """
        try:
            self._spool = await asyncio.to_thread(self._open_spool)
        except SpoolDiskError as error:
            self._refused(error)
            return
        if lost := self._spool.recovery.lost_records:
            log.error("the spool %s is damaged: %d queued batches lost", self._spool.folder, lost)

    def close(self) -> None:
        """Close the spool; batches in memory are lost."""
        if self._memory.records:
            log.error("%d batches that could not be written to disk are lost", self._memory.records)
        if self._spool is not None:
            self._spool.close()

    @property
    def records(self) -> int | None:
        """Number of queued batches; None while the spool is not open: it can have batches of an earlier process."""
        return self.readable_records if self._spool else None

    @property
    def readable_records(self) -> int:
        """Number of batches in memory and in a spool that is open."""
        return self._memory.records + (self._spool.depth.records if self._spool else 0)

    @property
    def waiting_bytes(self) -> int | None:
        """Bytes of all queued bodies; None while the spool is not open."""
        return self._memory.bytes + self._spool.depth.bytes if self._spool else None

    @property
    def memory_records(self) -> int:
        """Number of batches in memory."""
        return self._memory.records

    @property
    def dropped(self) -> int | None:
        """Batches that the spool dropped since its creation to stay within its limits, or found missing on opening.

        None while the spool is not open.
        """
        return self._spool.dropped_total + self._spool.recovery.lost_records if self._spool else None

    @property
    def lost(self) -> int:
        """Batches that neither disk nor memory could hold, or whose files were deleted."""
        return self._memory.lost + self._lost_with_files

    @property
    def oldest_at(self) -> int | None:
        """Time of the oldest batch in nanoseconds since 1970, see `put`; None if the queue is empty or not known."""
        if self._spool is None:
            return None
        in_spool, in_memory = self._spool.depth.oldest_at, self._memory.oldest()
        return in_spool if in_spool is not None or in_memory is None else in_memory.at

    async def put(self, make: Callable[[str, int], bytes], at: int) -> None:
        """Queue a batch: durably, or in memory if the disk fails.

        Args:
            make: returns the body for an epoch and a number.
            at: time of the batch, nanoseconds since 1970.
        """
        async with self._changing:
            if self._spool is None:
                await self._reopen()
            if self._spool is not None:
                try:
                    await self._spool.put(make(self._spool.epoch, self._spool.next_seq), at)
                except SpoolGoneError as error:
                    self._abandon(self._spool, error)
                except SpoolError as error:
                    self._refused(error)
                else:
                    if self._trouble:
                        log.info("batches are written to disk again; %d were lost meanwhile", self.lost)
                    self._trouble = ""
                    return
        self._memory.put(make, at)

    async def live(self) -> list[QueuedBatch]:
        """Return some of the newest batches, newest first: from memory, else from the end of the spool.

        Raises:
            SpoolError: if the disk cannot be read.
        """
        newest = self._memory.newest()
        if newest is not None:
            return [QueuedBatch(self._memory.epoch, newest.seq, newest.body)]
        spool = self._spool  # may be replaced while this waits
        if spool is None:
            return []
        after = max(0, spool.next_seq - 1 - LIVE_RECORDS)
        records = await asyncio.to_thread(spool.read_newest, after, max_records=READ_RECORDS, max_bytes=READ_BYTES)
        return [QueuedBatch(spool.epoch, one.seq, one.body) for one in records]

    async def oldest(self) -> QueuedBatch | None:
        """Return the oldest batch: from the spool, else from memory.

        Raises:
            SpoolError: if the disk cannot be read.
        """
        spool = self._spool  # may be replaced while this waits
        if spool is not None:
            for one in await asyncio.to_thread(spool.read, max_records=1, max_bytes=READ_BYTES):
                return QueuedBatch(spool.epoch, one.seq, one.body)
        oldest = self._memory.oldest()
        return None if oldest is None else QueuedBatch(self._memory.epoch, oldest.seq, oldest.body)

    async def acknowledge(self, one: QueuedBatch) -> None:
        """Remove an acknowledged batch."""
        if one.epoch == self._memory.epoch:
            self._memory.acknowledge(one.seq)
        elif self._spool is not None and one.epoch == self._spool.epoch:
            await asyncio.to_thread(self._spool.acknowledge, [one.seq])

    async def renew(self, epoch: str) -> None:
        """Renumber the batches of an epoch under a new one, because another machine uses the same epoch.

        Raises:
            SpoolError: if the disk fails; the queue is then unchanged.
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
                self._spool = None  # each batch retries it
                self._refused(error)

    async def _reopen(self) -> None:
        try:
            await self.open()
        except SpoolError as error:  # each batch retries it
            self._refused(error)

    def _abandon(self, spool: Spool, error: SpoolGoneError) -> None:
        """Give up a spool whose files were deleted; the next batch opens a new one."""
        self._lost_with_files += spool.depth.records
        self._spool = None
        log.error("%d batches are lost: %s", spool.depth.records, error)
        with contextlib.suppress(SpoolError):  # nothing can be made durable any more
            spool.close()

    def _refused(self, error: SpoolError) -> None:
        if not self._trouble:
            log.error("batches are kept in memory until this is fixed: %s", error)
        self._trouble = str(error)


def _renumbered(body: bytes, epoch: str, seq: int) -> bytes | None:
    try:
        return renumber(body, epoch, seq)
    except WireError as error:
        log.error("a queued batch is unreadable and lost: %s", error)
        return None
