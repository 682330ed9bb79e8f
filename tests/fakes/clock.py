"""Clock that moves only when the test advances it."""


class FakeClock:
    """Wall clock and monotonic clock, moved together by `advance` and apart by `step`."""

    def __init__(self, at_ns: int = 1_767_225_600_000_000_000) -> None:
        self._ns = at_ns
        self._seconds = 1000.0

    def now_ns(self) -> int:
        return self._ns

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        self._seconds += seconds
        self._ns += int(seconds * 1e9)

    def step(self, seconds: float) -> None:
        """Step the wall clock, as NTP or an operator does. The monotonic clock does not move."""
        self._ns += int(seconds * 1e9)
