"""The clock port: wall time and monotonic time."""

from typing import Protocol


class Clock(Protocol):
    """A wall clock for instants, and a monotonic clock for durations."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970 UTC. The clock can be stepped: do not subtract two readings."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; only differences are meaningful."""
        ...
