"""How soon an engine that failed is dialled again."""

from collections.abc import Callable

from gpufleet.model.errors import ChannelError, WireError

FIRST_SECONDS, MOST_SECONDS = 1.0, 60.0


class Patience:
    """Waits after each failure in a row but the first: a second, then twice as long each time, up to a bound."""

    def __init__(self, monotonic: Callable[[], float], most_seconds: float = MOST_SECONDS) -> None:
        self._monotonic, self._most = monotonic, most_seconds
        self._wait = 0.0
        self._until = 0.0
        self._last: ChannelError | WireError | None = None

    def failed(self, error: ChannelError | WireError) -> None:
        """Take note of a failure."""
        self._last = error
        self._until = self._monotonic() + self._wait
        self._wait = min(max(FIRST_SECONDS, 2 * self._wait), self._most)

    def worked(self) -> None:
        """Take note that the engine answered."""
        self._wait, self._until, self._last = 0.0, 0.0, None

    def check(self) -> None:
        """Raise the last failure once more while it is too early to try again."""
        if self._last is not None and self._monotonic() < self._until:
            raise self._last
