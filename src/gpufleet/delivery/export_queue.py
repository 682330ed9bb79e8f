"""Bounded in-memory queue of requests to another system, and the loop that posts them, oldest first.

Rejected requests are dropped and counted. Requests that fail temporarily stay queued and are retried. When the queue is
full, the oldest requests are dropped and counted. The queue does not survive the process: data that must not be lost
goes to a hub through the spool.
"""

import asyncio
import enum
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self

import msgspec

from gpufleet.delivery.pacing import retry_delay

log = logging.getLogger(__name__)


class ExportRequest(msgspec.Struct, frozen=True):
    """Body of one request, and the number of points or records in it."""

    body: bytes
    points: int


class ExportOutcome(enum.Enum):
    """Result of posting a request."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"  # permanent: do not retry
    RETRY = "retry"  # temporary: send it again


class ExportReply(msgspec.Struct, frozen=True, kw_only=True):
    """Response of the other system to a request.

    Attributes:
        outcome: what to do with the request.
        detail: message of the response, or the reason why there is none; a warning for an accepted request.
        rejected: number of rejected points; None means all of a rejected request and none of an accepted one.
        retry_after: seconds from Retry-After, or None.
    """

    outcome: ExportOutcome
    detail: str = ""
    rejected: int | None = None
    retry_after: float | None = None


class ExportTransport(Protocol):
    """Connection to another system, open while used as a context manager."""

    @property
    def address(self) -> str:
        """Address of the system, for log messages."""
        ...

    async def __aenter__(self) -> Self:
        """Open the transport."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        ...

    async def post(self, request: ExportRequest) -> ExportReply:
        """Post one request. Errors of the other side are returned, never raised."""
        ...


class ExportQueueStats(msgspec.Struct):
    """Counters of one export queue since the agent started.

    Attributes:
        points: points or records queued.
        accepted: points accepted by the other system.
        rejected: points rejected by the other system.
        dropped: points dropped from a full queue to make room for newer ones.
        failures: posts to be retried.
        requests, bytes: size of the queue now.
        last_success: nanoseconds since 1970 of the newest accepted request, or None.
        last_error: message of the newest failure or rejection; empty after a success.
    """

    points: int = 0
    accepted: int = 0
    rejected: int = 0
    dropped: int = 0
    failures: int = 0
    requests: int = 0
    bytes: int = 0
    last_success: int | None = None
    last_error: str = ""


class ExportQueue:
    """A queue of requests for one transport. Use it from the event loop only."""

    def __init__(
        self,
        name: str,
        transport: ExportTransport,
        *,
        max_bytes: int,
        now_ns: Callable[[], int],
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Create an empty queue.

        Args:
            name: of the export, in logs and metrics.
            transport: destination of the requests.
            max_bytes: bound on the queued bodies. The newest request is queued even if it alone exceeds the bound.
            now_ns: returns nanoseconds since 1970.
            jitter: returns numbers from 0 to 1.
            sleep: waits a number of seconds.
        """
        self.name = name
        self.stats = ExportQueueStats()
        self._transport = transport
        self._max_bytes = max_bytes
        self._now_ns = now_ns
        self._jitter = jitter
        self._sleep = sleep
        self._queue: deque[ExportRequest] = deque()
        self._new = asyncio.Event()
        self._failures = 0
        self._last_warning = ""

    def put(self, request: ExportRequest) -> None:
        """Queue a request."""
        self.stats.points += request.points
        self._queue.append(request)
        self.stats.bytes += len(request.body)
        self._drop_oldest()
        self._new.set()

    async def run(self) -> None:
        """Post until cancelled."""
        async with self._transport:
            while True:
                self._new.clear()
                reply = await self._post_all()
                if reply is not None:
                    await self._sleep(retry_delay(self._failures, reply.retry_after, self._jitter()))
                else:
                    await self._new.wait()

    async def flush(self) -> None:
        """Post the queued requests once; log the number of requests that could not be delivered."""
        async with self._transport:
            reply = await self._post_all()
        if reply is not None:
            log.warning("%s: %d undelivered requests lost at exit: %s", self.name, len(self._queue), reply.detail)

    async def _post_all(self) -> ExportReply | None:
        """Post requests until the queue is empty or one has to be retried; return that reply, or None."""
        while self._queue:
            request = self._queue.popleft()
            reply = ExportReply(outcome=ExportOutcome.RETRY)
            try:
                reply = await self._transport.post(request)
            finally:
                if reply.outcome is ExportOutcome.RETRY:
                    self._queue.appendleft(request)
                    self._drop_oldest()
                else:
                    self.stats.bytes -= len(request.body)
                    self.stats.requests = len(self._queue)
            match reply.outcome:
                case ExportOutcome.RETRY:
                    self._count_failure(reply)
                    return reply
                case ExportOutcome.REJECTED:
                    self._count_rejected(request, reply)
                case ExportOutcome.ACCEPTED:
                    self._count_accepted(request, reply)
        return None

    def _count_accepted(self, request: ExportRequest, reply: ExportReply) -> None:
        rejected = min(reply.rejected or 0, request.points)
        if self._failures:
            log.info("%s: %s accepts requests again; %d queued", self.name, self._transport.address, len(self._queue))
        self._failures = 0
        self.stats.accepted += request.points - rejected
        self.stats.rejected += rejected
        self.stats.last_success = self._now_ns()
        self.stats.last_error = f"{rejected} points rejected: {reply.detail}" if rejected else ""
        if reply.detail and reply.detail != self._last_warning:
            address = self._transport.address
            log.warning("%s: %s rejected %d points of a request: %s", self.name, address, rejected, reply.detail)
        self._last_warning = reply.detail

    def _count_rejected(self, request: ExportRequest, reply: ExportReply) -> None:
        rejected = request.points if reply.rejected is None else min(reply.rejected, request.points)
        self.stats.rejected += rejected
        self.stats.accepted += request.points - rejected
        detail = f"{self._transport.address} rejected {rejected} points: {reply.detail}"
        if reply.detail != self._last_warning:
            log.error("%s: %s; the points are dropped", self.name, detail)
        self._last_warning = reply.detail
        self.stats.last_error = detail
        self._failures = 0

    def _count_failure(self, reply: ExportReply) -> None:
        detail = f"{self._transport.address}: {reply.detail}"
        if detail != self.stats.last_error:
            log.warning("%s: post failed, will retry: %s", self.name, detail)
        self.stats.failures += 1
        self.stats.last_error = detail
        self._failures += 1

    def _drop_oldest(self) -> None:
        while self.stats.bytes > self._max_bytes and len(self._queue) > 1:
            oldest = self._queue.popleft()
            self.stats.bytes -= len(oldest.body)
            self.stats.dropped += oldest.points
        self.stats.requests = len(self._queue)
