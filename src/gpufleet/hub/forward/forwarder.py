"""Forwarding of stored batches to a database: a bounded queue on disk, and the loop that posts it, oldest first."""

import asyncio
import logging
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

import msgspec

from gpufleet.codecs.remote_write.encode import WritePoint
from gpufleet.delivery.export_queue import ExportOutcome, ExportReply, ExportRequest, ExportTransport
from gpufleet.delivery.pacing import retry_delay
from gpufleet.hub.forward.series import ForwardSeries
from gpufleet.model.errors import SpoolError
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.spool import Spool

REQUEST_POINTS = 5000
"""Maximum number of points in one request."""

SEGMENT_BYTES = 8 << 20
_HEAD = struct.Struct(">I")


class ForwardQueue:
    """Durable queue of encoded requests. Call `put` on the writer's thread, `read` and `done` on any thread."""

    def __init__(self, spool: Spool, encode: Callable[[Sequence[WritePoint]], bytes]) -> None:
        """Wrap a spool; `encode` returns the body of a request."""
        self._spool, self._encode = spool, encode

    @classmethod
    def open(cls, folder: Path, *, max_bytes: int, encode: Callable[[Sequence[WritePoint]], bytes]) -> Self:
        """Open or create the queue in `folder`. Blocking. Raises SpoolError."""
        segment = min(SEGMENT_BYTES, max_bytes // 4)
        return cls(Spool.open(folder, max_bytes=max_bytes, segment_bytes=segment), encode)

    @property
    def requests(self) -> int:
        """Number of queued requests."""
        return self._spool.depth.records

    @property
    def bytes(self) -> int:
        """Size of the queued bodies in bytes."""
        return self._spool.depth.bytes

    @property
    def dropped(self) -> int:
        """Requests dropped for newer ones or lost on disk since the queue was created."""
        return self._spool.dropped_total + self._spool.recovery.lost_records

    def put(self, points: Iterable[WritePoint]) -> int:
        """Add points durably; return their number. Blocking.

        Raises:
            SpoolError: if the disk refuses; some of the points may be in the queue.
        """
        points, count = iter(points), 0
        while part := list(islice(points, REQUEST_POINTS)):
            self._spool.append(_HEAD.pack(len(part)) + self._encode(part))
            count += len(part)
        if count:
            self._spool.sync()
        return count

    def read(self, max_requests: int) -> list[tuple[int, ExportRequest]]:
        """Return the oldest requests with their numbers, at least one if there is any. Blocking."""
        found = self._spool.read(max_records=max_requests, max_bytes=SEGMENT_BYTES)
        return [(one.seq, ExportRequest(one.body[_HEAD.size :], _HEAD.unpack_from(one.body)[0])) for one in found]

    def done(self, number: int) -> None:
        """Remove a delivered or rejected request. Blocking."""
        self._spool.acknowledge([number])

    def close(self) -> None:
        """Close the spool."""
        self._spool.close()


log = logging.getLogger(__name__)

READ_REQUESTS = 16
"""Number of requests read from the disk at a time."""

POLL_SECONDS = 1.0
"""Interval between checks of an empty queue."""


class ForwardStats(msgspec.Struct):
    """Counters since the hub started.

    Attributes:
        queued: points added to the queue.
        late: values not queued because newer values of their series were already queued.
        lost: batches that could not be converted or queued.
        accepted: points accepted by the database.
        rejected: points rejected by the database.
        failures: posts to be retried.
        last_error: message of the newest failure or rejection; empty after a success.
        last_success: nanoseconds since 1970 of the newest accepted request, or None.
    """

    queued: int = 0
    late: int = 0
    lost: int = 0
    accepted: int = 0
    rejected: int = 0
    failures: int = 0
    last_error: str = ""
    last_success: int | None = None


class SeriesForwarder:
    """Forwards batches to a database. Call `offer` on the writer's thread; `run` on the event loop.

    The queue survives a restart.
    """

    def __init__(
        self,
        series: ForwardSeries,
        queue: ForwardQueue,
        transport: ExportTransport,
        *,
        now_ns: Callable[[], int],
        jitter: Callable[[], float] = random.random,
        look_seconds: float = POLL_SECONDS,
    ) -> None:
        """Connect the parts; `jitter` returns numbers from 0 to 1."""
        self.stats = ForwardStats()
        self.queue = queue
        self._series, self._transport, self._now_ns, self._jitter = series, transport, now_ns, jitter
        self._look_seconds = look_seconds
        self._failures = 0

    def offer(self, accepted: Sequence[AcceptedBatch]) -> None:
        """Queue the points of stored batches. Blocking; errors are logged and counted, never raised.

        A batch may be offered twice if the hub is killed after writing to the store. A database accepts the same sample
        twice.
        """
        try:
            self.stats.queued += self.queue.put(self._series.points(accepted))
        except Exception as error:  # broad: an error here must not affect the store
            self.stats.lost += len(accepted)
            detail = str(error) if isinstance(error, SpoolError) else f"{type(error).__name__}: {error}"
            log.exception("%d batches could not be forwarded: %s", len(accepted), detail)
        self.stats.late = self._series.late

    async def run(self) -> None:
        """Post until cancelled."""
        async with self._transport:
            while True:
                await self.step()

    async def step(self) -> None:
        """Post some of the queue; pause if it is empty, or if the disk refuses."""
        try:
            found = await asyncio.to_thread(self.queue.read, READ_REQUESTS)
        except SpoolError as error:
            self._log_error(f"the queue cannot be read: {error}")
            found = []
        if not found:
            await asyncio.sleep(self._look_seconds)
        for number, request in found:
            await self._deliver(number, request)

    async def _deliver(self, number: int, request: ExportRequest) -> None:
        """Post a request until the database accepts or rejects it."""
        while (reply := await self._transport.post(request)).outcome is ExportOutcome.RETRY:
            self.stats.failures += 1
            self._failures += 1
            self._log_error(f"{self._transport.address}: {reply.detail}")
            await asyncio.sleep(retry_delay(self._failures, reply.retry_after, self._jitter()))
        self._count(request, reply)
        try:
            await asyncio.to_thread(self.queue.done, number)
        except SpoolError as error:  # the request is read again, and posted once more
            self._log_error(f"the queue cannot be written: {error}")
            await asyncio.sleep(self._look_seconds)

    def _count(self, request: ExportRequest, reply: ExportReply) -> None:
        is_rejected = reply.outcome is ExportOutcome.REJECTED and reply.rejected is None
        rejected = request.points if is_rejected else min(reply.rejected or 0, request.points)
        self.stats.rejected += rejected
        self.stats.accepted += request.points - rejected
        address = self._transport.address
        if rejected:
            self._log_error(f"{address} rejected {rejected} of {request.points} points: {reply.detail}")
        else:
            if self._failures or self.stats.last_error:
                log.info("%s accepts points again; %d requests queued", address, self.queue.requests)
            self.stats.last_error = ""
        if reply.outcome is ExportOutcome.ACCEPTED:
            self.stats.last_success = self._now_ns()
        self._failures = 0

    def _log_error(self, detail: str) -> None:
        if detail != self.stats.last_error:
            log.warning("forwarding: %s", detail)
        self.stats.last_error = detail
