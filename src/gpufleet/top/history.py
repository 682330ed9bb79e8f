"""History of utilisation for sparklines: the newest readings of the devices of the newest observation."""

import datetime as dt
from collections import deque
from collections.abc import Iterable

from gpufleet.top.rows import DeviceRow

LENGTH = 32
"""Number of values per device."""


class UtilizationHistory:
    """The newest utilisations of each device, in memory. Devices that are gone are dropped.

    A source that is polled more often than its devices are read repeats readings. A repeated reading is not added.
    """

    def __init__(self) -> None:
        self._values: dict[str, deque[float | None]] = {}
        self._times: dict[str, dt.datetime | None] = {}

    def add(self, rows: Iterable[DeviceRow]) -> None:
        """Add the readings of an observation."""
        earlier, times = self._values, self._times
        self._values, self._times = {}, {}
        for row in rows:
            for one in (row, *row.parts):
                values = earlier.get(one.key)
                if values is None:
                    values = deque(maxlen=LENGTH)
                if one.utilization_at is None or one.utilization_at != times.get(one.key):
                    values.append(one.utilization)
                self._values[one.key], self._times[one.key] = values, one.utilization_at

    def values(self, key: str) -> tuple[float | None, ...]:
        """Return the values of a device, the oldest first."""
        return tuple(self._values.get(key, ()))
