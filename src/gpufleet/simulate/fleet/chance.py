"""Chance without chance: numbers that look random and are always the same for the same words.

The fleet's own time: it begins where it is told to, and goes as fast as it is told to.
"""

import asyncio
import contextlib
import hashlib
import time
import uuid
from collections.abc import Callable

from gpufleet.model.time import NANOS

Word = int | str


def digits(count: int, *words: Word) -> str:
    """Return hexadecimal digits, up to 128, that belong to these words."""
    return hashlib.blake2b("/".join(map(str, words)).encode(), digest_size=64).hexdigest()[:count]


def number(below: int, *words: Word) -> int:
    """Return an integer from 0 to `below` - 1 that belongs to these words."""
    return int(digits(16, *words), 16) % below


def share(*words: Word) -> float:
    """Return a number from 0 (included) to 1 (not included) that belongs to these words."""
    return int(digits(13, *words), 16) / 16**13


def between(low: float, high: float, *words: Word) -> float:
    """Return a number from `low` to `high` that belongs to these words."""
    return low + (high - low) * share(*words)


def uuid_of(*words: Word) -> str:
    """Return a UUID of version 4 that belongs to these words."""
    return str(uuid.UUID(digits(32, *words), version=4))


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
