"""What waits for the hub: on disk, and in memory while the disk refuses."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from gpufleet.agent.memory import Memory
from gpufleet.codecs.batch import renumber
from gpufleet.model.errors import SpoolError, WireError
from gpufleet.spool import Spool, SpoolDiskError, renew

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
