"""A clock that moves when told to."""


class FakeClock:
    """Both clocks, moved together by `advance` and apart by `step`."""

    def __init__(self, at_ns: int = 1_767_225_600_000_000_000) -> None:
        self._ns = at_ns
        self._seconds = 1000.0

    def now_ns(self) -> int:
        return self._ns

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._seconds += seconds
        self._ns += int(seconds * 1e9)

    def step(self, seconds: float) -> None:
        """Set the wall clock, as NTP or a person does; no time passes."""
        self._ns += int(seconds * 1e9)
