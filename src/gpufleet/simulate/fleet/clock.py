"""The fleet's own time: it begins where it is told to, and goes as fast as it is told to."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from gpufleet.model.time import NANOS


class FleetClock:
    """Simulated time over the monotonic clock."""

    def __init__(self, start: int, speed: float = 1.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin at an instant (nanoseconds since 1970), with so many simulated seconds to a second."""
        self._start = start
        self._speed = speed
        self._monotonic = monotonic
        self._began = monotonic()

    def now(self) -> int:
        """Return the simulated instant."""
        return self._start + int((self._monotonic() - self._began) * self._speed * NANOS)

    def behind(self, at: int) -> float:
        """Return how many simulated seconds ago an instant was; negative where it is to come."""
        return (self.now() - at) / NANOS

    async def wait_until(self, at: int, stop: asyncio.Event) -> None:
        """Sleep until an instant is there, or until it is all over."""
        left = -self.behind(at) / self._speed
        if left > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await stop.wait()
