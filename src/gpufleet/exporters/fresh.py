"""Which measurements were told before: none is told twice, and none after a newer one."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

AHEAD = 60 * 10**9
"""A series that was told of so far in the future was told by a wrong clock: it begins anew."""


class Fresh(Generic[K]):
    """The newest instant of each series that the newest look has."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Take the clock: nanoseconds since 1970."""
        self._now_ns = now_ns
        self._latest = 0
        self._before: dict[K, int] = {}
        self._told: dict[K, int] = {}

    def look(self) -> None:
        """Begin another look; what the one before did not have is forgotten."""
        self._before, self._told = self._told, {}
        self._latest = self._now_ns() + AHEAD

    def is_new(self, series: K, at: int) -> bool:
        """Tell whether a measurement of this instant is newer than all that were told of the series."""
        before = self._before.get(series)
        if before is not None and at <= before <= self._latest:
            self._told[series] = before
            return False
        self._told[series] = at
        return True
