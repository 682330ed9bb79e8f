"""So many in a second, and no more."""

import time
from collections.abc import Callable


class Pace:
    """Spreads what may wait evenly; a pause saves nothing up."""

    def __init__(self, per_second: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Take the rate, above 0, and a clock of seconds."""
        self._seconds = 1 / per_second
        self._monotonic = monotonic
        self._next = monotonic()

    @property
    def delay(self) -> float:
        """Seconds until the next may go; 0 when it may now."""
        return max(0.0, self._next - self._monotonic())

    def step(self) -> None:
        """Say that one goes now."""
        self._next = max(self._next, self._monotonic()) + self._seconds
