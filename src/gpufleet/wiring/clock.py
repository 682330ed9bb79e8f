"""The clocks of this machine."""

import time


class SystemClock:
    """The Clock port over the kernel's own clocks."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970 UTC."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, not moved by setting the clock."""
        return time.monotonic()
