"""A bounded queue in memory in front of another system, and the loop that empties it: oldest first, patiently.

What that system will not take is dropped and counted; what it does not take now waits. When the queue is full the
oldest go and are counted. Nothing of it survives the process: what must not be lost goes to a hub, over the spool.
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


class Parcel(msgspec.Struct, frozen=True):
    """One request's body, and how many points or records are in it."""

    body: bytes
    points: int


class Fate(enum.Enum):
    """What became of a request."""

    TAKEN = "taken"  # forget it
    REFUSED = "refused"  # never send it again
    LATER = "later"  # send it again


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What the other system made of a request.

    Attributes:
        fate: what to do with it.
        words: its own, or why there was no answer; of one that was taken, a warning.
        rejected: points that were not taken; None: all of a request that was refused, none of one that was taken.
        retry_after: seconds that it asks to be left alone, or None.
    """

    fate: Fate
    words: str = ""
    rejected: int | None = None
    retry_after: float | None = None


class Wire(Protocol):
    """The way to another system, open while it is used as a context."""

    @property
    def where(self) -> str:
        """Its address, for logs."""
        ...

    async def __aenter__(self) -> Self:
        """Make ready to connect."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of connections."""
        ...

    async def post(self, parcel: Parcel) -> Reply:
        """Post one request; never raises for what the other side does."""
        ...


class OutletStats(msgspec.Struct):
    """One way to another system since the agent started.

    Attributes:
        points: points or records that were to go there.
        taken: those that it has taken.
        rejected: those that it will not take.
        dropped: those that gave way to newer ones while they waited.
        failures: posts that are made again.
        requests, bytes: that wait now.
        last_success: nanoseconds since 1970 when it last took anything, or None.
        last_error: words of the newest failure or refusal; empty after a success.
    """

    points: int = 0
    taken: int = 0
    rejected: int = 0
    dropped: int = 0
    failures: int = 0
    requests: int = 0
    bytes: int = 0
    last_success: int | None = None
    last_error: str = ""


class Outlet:
    """One queue, one wire. Lives on the event loop."""

    def __init__(
        self,
        name: str,
        wire: Wire,
        *,
        max_bytes: int,
        now_ns: Callable[[], int],
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the wire and the bound.

        Args:
            name: for logs and figures.
            wire: where requests go.
            max_bytes: of the bodies that wait; the newest waits even if it alone has more.
            now_ns: nanoseconds since 1970.
            jitter: gives numbers from 0 to 1.
            sleep: waits so many seconds.
        """
        self.name = name
        self.stats = OutletStats()
        self._wire = wire
        self._max_bytes = max_bytes
        self._now_ns = now_ns
        self._jitter = jitter
        self._sleep = sleep
        self._waiting: deque[Parcel] = deque()
        self._new = asyncio.Event()
        self._failures = 0
        self._warned = ""

    def put(self, parcel: Parcel) -> None:
        """Queue a request."""
        self.stats.points += parcel.points
        self._waiting.append(parcel)
        self.stats.bytes += len(parcel.body)
        self._bound()
        self._new.set()

    async def run(self) -> None:
        """Post until cancelled."""
        async with self._wire:
            while True:
                self._new.clear()
                reply = await self._post_all()
                if reply is not None:
                    await self._sleep(retry_delay(self._failures, reply.retry_after, self._jitter()))
                else:
                    await self._new.wait()

    async def flush(self) -> None:
        """Post what waits, once; what is not taken now is lost, and said."""
        async with self._wire:
            reply = await self._post_all()
        if reply is not None:
            log.warning("%s: %d requests are lost with this process: %s", self.name, len(self._waiting), reply.words)

    async def _post_all(self) -> Reply | None:
        """Post what waits until nothing does; return the reply that says to come back later, if one does."""
        while self._waiting:
            parcel = self._waiting.popleft()
            reply = Reply(fate=Fate.LATER)
            try:
                reply = await self._wire.post(parcel)
            finally:
                if reply.fate is Fate.LATER:
                    self._waiting.appendleft(parcel)
                    self._bound()
                else:
                    self.stats.bytes -= len(parcel.body)
                    self.stats.requests = len(self._waiting)
            match reply.fate:
                case Fate.LATER:
                    self._later(reply)
                    return reply
                case Fate.REFUSED:
                    self._refused(parcel, reply)
                case Fate.TAKEN:
                    self._taken(parcel, reply)
        return None

    def _taken(self, parcel: Parcel, reply: Reply) -> None:
        rejected = min(reply.rejected or 0, parcel.points)
        if self._failures:
            log.info("%s: %s takes requests again; %d waiting", self.name, self._wire.where, len(self._waiting))
        self._failures = 0
        self.stats.taken += parcel.points - rejected
        self.stats.rejected += rejected
        self.stats.last_success = self._now_ns()
        self.stats.last_error = f"{rejected} points were not taken: {reply.words}" if rejected else ""
        if reply.words and reply.words != self._warned:
            log.warning("%s: %s says, with %d points not taken: %s", self.name, self._wire.where, rejected, reply.words)
        self._warned = reply.words

    def _refused(self, parcel: Parcel, reply: Reply) -> None:
        rejected = parcel.points if reply.rejected is None else min(reply.rejected, parcel.points)
        self.stats.rejected += rejected
        self.stats.taken += parcel.points - rejected
        words = f"{self._wire.where} refuses {rejected} points: {reply.words}"
        if reply.words != self._warned:
            log.error("%s: %s; they are dropped", self.name, words)
        self._warned = reply.words
        self.stats.last_error = words
        self._failures = 0

    def _later(self, reply: Reply) -> None:
        words = f"{self._wire.where}: {reply.words}"
        if words != self.stats.last_error:
            log.warning("%s: not sent, will be tried again: %s", self.name, words)
        self.stats.failures += 1
        self.stats.last_error = words
        self._failures += 1

    def _bound(self) -> None:
        while self.stats.bytes > self._max_bytes and len(self._waiting) > 1:
            oldest = self._waiting.popleft()
            self.stats.bytes -= len(oldest.body)
            self.stats.dropped += oldest.points
        self.stats.requests = len(self._waiting)
