"""Deterministic pseudo-random values, which depend on their key only, and the simulated clock."""

import asyncio
import contextlib
import hashlib
import time
import uuid
from collections.abc import Callable

from gpufleet.model.time import NANOS

KeyPart = int | str


def digits(count: int, *key: KeyPart) -> str:
    """Return up to 128 pseudo-random hexadecimal digits for a key."""
    return hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=64).hexdigest()[:count]


def number(below: int, *key: KeyPart) -> int:
    """Return a pseudo-random integer from 0 to `below` - 1 for a key."""
    return int(digits(16, *key), 16) % below


def share(*key: KeyPart) -> float:
    """Return a pseudo-random number from 0 (included) to 1 (excluded) for a key."""
    return int(digits(13, *key), 16) / 16**13


def between(low: float, high: float, *key: KeyPart) -> float:
    """Return a pseudo-random number from `low` to `high` for a key."""
    return low + (high - low) * share(*key)


def uuid_of(*key: KeyPart) -> str:
    """Return a pseudo-random UUID of version 4 for a key."""
    return str(uuid.UUID(digits(32, *key), version=4))


class FleetClock:
    """Simulated clock with a start and a speed, driven by the monotonic clock."""

    def __init__(self, start: int, speed: float = 1.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Start at an instant (nanoseconds since 1970), with `speed` simulated seconds per real second."""
        self._start = start
        self._speed = speed
        self._monotonic = monotonic
        self._began = monotonic()

    def now(self) -> int:
        """Return the simulated instant."""
        return self._start + int((self._monotonic() - self._began) * self._speed * NANOS)

    def behind(self, at: int) -> float:
        """Return the simulated seconds since an instant; negative if it is in the future."""
        return (self.now() - at) / NANOS

    async def wait_until(self, at: int, stop: asyncio.Event) -> None:
        """Sleep until an instant, or until `stop` is set."""
        left = -self.behind(at) / self._speed
        if left > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await stop.wait()
