"""Facts about the hub itself. Pure."""

import math
from collections import deque
from collections.abc import Iterable, Mapping

from gpufleet.fleet.rules.facts import FactTable
from gpufleet.model.finding import RuleScope
from gpufleet.model.stored.findings import HUB_SUBJECT

START_SECONDS = 60.0
"""Time after its start for which nothing is judged about the hub: senders and dependencies connect again."""

HOUR_SECONDS = 3600.0


class HourlyCounts:
    """Increase of counters in the last hour. The counters are 0 when the process starts."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, Mapping[str, int]]] = deque()

    def add(self, second: float, counts: Mapping[str, int]) -> dict[str, int]:
        """Take the counters at a second of a monotonic clock; return their increase in the hour before."""
        while len(self._past) > 1 and self._past[1][0] <= second - HOUR_SECONDS:
            self._past.popleft()
        is_old = bool(self._past) and self._past[0][0] <= second - HOUR_SECONDS
        before = self._past[0][1] if is_old else {}
        self._past.append((second, dict(counts)))
        return {name: count - before.get(name, 0) for name, count in counts.items()}


BASELINE_SECONDS = 600.0
"""Time after the start in which every name is taken for known: imports send their names again after a restart."""


class NewNames:
    """Names by the time at which they were first seen."""

    def __init__(self, started: float) -> None:
        """Take the second of a monotonic clock at which the process started."""
        self._started = started
        self._first: dict[str, float] = {}

    def count(self, second: float, names: Iterable[str]) -> int | None:
        """Return how many of the names were first seen in the last hour; None while that is not known.

        Args:
            second: second of the monotonic clock.
            names: a bounded number of names; a name that is missing expires.
        """
        is_baseline = second - self._started < BASELINE_SECONDS
        first = -math.inf if is_baseline else second
        self._first = {name: self._first.get(name, first) for name in names}
        return None if is_baseline else sum(second - first < HOUR_SECONDS for first in self._first.values())


def hub_table(values: Mapping[str, float | None], uptime_seconds: float) -> FactTable:
    """Return the facts about the hub.

    Args:
        values: inputs by name, None for an unknown one.
        uptime_seconds: time since the start of the process.
    """
    if uptime_seconds < START_SECONDS:
        return FactTable(RuleScope.HUB, (HUB_SUBJECT,))
    return FactTable(RuleScope.HUB, (HUB_SUBJECT,), {name: [value] for name, value in values.items()})
