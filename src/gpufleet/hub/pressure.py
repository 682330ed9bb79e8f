"""A bound on the memory that bodies on their way may take, all requests together."""


class Pressure:
    """Counts bytes that are held, and refuses beyond a limit. Lives on the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, count: int) -> bool:
        """Hold `count` bytes more; returns False, holding nothing, when that would pass the limit."""
        if self.held + count > self._limit:
            return False
        self.held += count
        return True

    def give_back(self, count: int) -> None:
        """Let go of bytes that were held."""
        self.held -= count
