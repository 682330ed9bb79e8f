"""The way to the database: what was written to the store goes into a queue, and from there out, oldest first.

Requests that wait for the database, on disk: bounded, oldest first, and there again after a restart.
"""

import asyncio
import logging
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

import msgspec

from gpufleet.codecs.remote_write.encode import Point
from gpufleet.delivery.outlet import Fate, Parcel, Reply, Wire
from gpufleet.delivery.pacing import retry_delay
from gpufleet.hub.forward.series import ForwardSeries
from gpufleet.model.errors import SpoolError
from gpufleet.model.stored.samples import Accepted
from gpufleet.spool import Spool

POINTS = 5000
"""Of one request."""

SEGMENT_BYTES = 8 << 20
_HEAD = struct.Struct(">I")


class ForwardQueue:
    """The queue. `put` on the thread that writes to the store, `read` and `done` on any."""

    def __init__(self, spool: Spool, encode: Callable[[Sequence[Point]], bytes]) -> None:
        """Take the spool, and what writes the body of a request."""
        self._spool, self._encode = spool, encode

    @classmethod
    def open(cls, folder: Path, *, max_bytes: int, encode: Callable[[Sequence[Point]], bytes]) -> Self:
        """Open it, or make one. Blocking. Raises SpoolError."""
        segment = min(SEGMENT_BYTES, max_bytes // 4)
        return cls(Spool.open(folder, max_bytes=max_bytes, segment_bytes=segment), encode)

    @property
    def requests(self) -> int:
        """Requests that wait."""
        return self._spool.depth.records

    @property
    def bytes(self) -> int:
        """Bytes of their bodies."""
        return self._spool.depth.bytes

    @property
    def dropped(self) -> int:
        """Requests that gave way to newer ones, or that the disk lost, since the queue was made."""
        return self._spool.dropped_total + self._spool.recovery.lost_records

    def put(self, points: Iterable[Point]) -> int:
        """Add points, durably; return how many. Blocking.

        Raises:
            SpoolError: if the disk refuses; some of them may be in the queue.
        """
        points, count = iter(points), 0
        while part := list(islice(points, POINTS)):
            self._spool.append(_HEAD.pack(len(part)) + self._encode(part))
            count += len(part)
        if count:
            self._spool.sync()
        return count

    def read(self, most: int) -> list[tuple[int, Parcel]]:
        """Return the oldest requests with their numbers, and at least one if there is any. Blocking."""
        found = self._spool.read(max_records=most, max_bytes=SEGMENT_BYTES)
        return [(number, Parcel(body[_HEAD.size :], _HEAD.unpack_from(body)[0])) for number, body in found]

    def done(self, number: int) -> None:
        """Forget one. Blocking."""
        self._spool.acknowledge([number])

    def close(self) -> None:
        """Close it."""
        self._spool.close()


log = logging.getLogger(__name__)

AT_ONCE = 16
"""Requests that are read from the disk together."""

LOOK_SECONDS = 1.0
"""Between looks at a queue that is empty."""


class ForwardStats(msgspec.Struct):
    """Numbers since the hub started.

    Attributes:
        queued: points that went into the queue.
        late: values that did not, because newer ones of theirs had been passed on.
        lost: batches of which points could not be made, or not be written to the queue.
        taken: points that the database has taken.
        rejected: those that it will not take.
        failures: posts that are made again.
        last_error: words of the newest failure or refusal; empty after a success.
        last_success: nanoseconds since 1970 when it last took anything, or None.
    """

    queued: int = 0
    late: int = 0
    lost: int = 0
    taken: int = 0
    rejected: int = 0
    failures: int = 0
    last_error: str = ""
    last_success: int | None = None


class Forwarder:
    """`offer` is the writer's; `run` lives on the event loop. What is in the queue is there after a restart."""

    def __init__(
        self,
        series: ForwardSeries,
        queue: ForwardQueue,
        wire: Wire,
        *,
        now_ns: Callable[[], int],
        jitter: Callable[[], float] = random.random,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Take the parts; `jitter` gives numbers from 0 to 1."""
        self.stats = ForwardStats()
        self.queue = queue
        self._series, self._wire, self._now_ns, self._jitter = series, wire, now_ns, jitter
        self._look_seconds = look_seconds
        self._failures = 0

    def offer(self, accepted: Sequence[Accepted]) -> None:
        """Take batches that are in the store; blocking. Whatever goes wrong costs what is passed on, and no batch.

        A batch can come twice, where the hub was killed between the store and its note of it: a database takes the
        same sample twice.
        """
        try:
            self.stats.queued += self.queue.put(self._series.points(accepted))
        except Exception as error:  # the one catch point of this thread
            self.stats.lost += len(accepted)
            words = str(error) if isinstance(error, SpoolError) else f"{type(error).__name__}: {error}"
            log.exception("%d batches are not passed on: %s", len(accepted), words)
        self.stats.late = self._series.late

    async def run(self) -> None:
        """Post until cancelled."""
        async with self._wire:
            while True:
                try:
                    found = await asyncio.to_thread(self.queue.read, AT_ONCE)
                except SpoolError as error:  # the one catch point of this loop
                    self._say(f"the queue cannot be read: {error}")
                    found = []
                if not found:
                    await asyncio.sleep(self._look_seconds)
                for number, parcel in found:
                    await self._bring(number, parcel)

    async def _bring(self, number: int, parcel: Parcel) -> None:
        """Post one request until the database has taken or refused it."""
        while (reply := await self._wire.post(parcel)).fate is Fate.LATER:
            self.stats.failures += 1
            self._failures += 1
            self._say(f"{self._wire.where}: {reply.words}")
            await asyncio.sleep(retry_delay(self._failures, reply.retry_after, self._jitter()))
        self._count(parcel, reply)
        try:
            await asyncio.to_thread(self.queue.done, number)
        except SpoolError as error:
            self._say(f"the queue cannot be written: {error}")

    def _count(self, parcel: Parcel, reply: Reply) -> None:
        refused = parcel.points if reply.fate is Fate.REFUSED and reply.rejected is None else reply.rejected or 0
        refused = min(refused, parcel.points)
        self.stats.rejected += refused
        self.stats.taken += parcel.points - refused
        if refused:
            self._say(f"{self._wire.where} does not take {refused} of {parcel.points} points: {reply.words}")
        else:
            if self._failures or self.stats.last_error:
                log.info("%s takes points again; %d requests wait", self._wire.where, self.queue.requests)
            self.stats.last_error = ""
        if reply.fate is Fate.TAKEN:
            self.stats.last_success = self._now_ns()
        self._failures = 0

    def _say(self, words: str) -> None:
        if words != self.stats.last_error:
            log.warning("forwarding: %s", words)
        self.stats.last_error = words
