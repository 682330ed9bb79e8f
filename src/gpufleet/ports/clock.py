"""The clock port: wall time and monotonic time."""

from typing import Protocol

from gpufleet.model.reading import Round as Round


class Clock(Protocol):
    """The two clocks: one names instants, one measures spans."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970 UTC. It can be stepped: never subtract two of these."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; only differences mean something."""
        ...
