"""Start times of counters: the boot, the driver load, a device reset, or a time specific to the counter."""

import bisect
from collections.abc import Iterable

from gpufleet.model.catalogue.events import LOG_LOST, XID_ALL, XID_ERRORS, XID_SINCE
from gpufleet.model.event import EventKind, EventReport
from gpufleet.model.snapshot import Device, Host
from gpufleet.model.time import NANOS, to_ns

BOOT = "host_boot_timestamp_seconds"

_LOADS = frozenset({EventKind.DRIVER_LOADED, EventKind.DRIVER_RELOADED})
_SAME_BOOT = 60 * NANOS
"""Nanoseconds. The kernel derives the boot time from two clocks; it shifts a little when either is set."""


class CounterStarts:
    """Boots, driver loads and resets of one machine, collected from its snapshots. A recorded time is kept."""

    def __init__(self) -> None:
        self._boot = 0
        self._agent = 0
        self._loads: list[int] = []
        self._resets: dict[str, list[int]] = {}
        self._watched: dict[str, int] = {}

    def update(self, host: Host, devices: Iterable[Device], events: Iterable[EventReport], agent_started: int) -> None:
        """Record boot, driver loads and resets; `agent_started` is in nanoseconds since 1970."""
        self._agent = agent_started
        boot = host.readings.get(BOOT)
        if boot is not None and isinstance(boot.value, (int, float)):
            at = int(boot.value * NANOS)
            if abs(at - self._boot) > _SAME_BOOT:
                self._boot = at
        for event in events:
            if event.kind in _LOADS:
                _insert(self._loads, to_ns(event.at))
            elif event.kind == EventKind.GPU_RESET and event.device is not None:
                _insert(self._resets.setdefault(event.device, []), to_ns(event.at))
        for device in devices:
            since = device.readings.get(XID_SINCE)
            if since is not None and isinstance(since.value, (int, float)):
                self._watched[device.key] = int(since.value * NANOS)

    def start_of(self, metric: str, device: str, at: int) -> int:
        """Return the start time of a counter, in nanoseconds since 1970, or 0 if unknown.

        Args:
            metric: catalogue name.
            device: key of the view, or empty for the machine.
            at: instant of the value, nanoseconds since 1970.
        """
        if "_lifetime_" in metric:  # counted by the board, not by this driver
            return 0
        if metric in (XID_ERRORS, XID_ALL):
            began = self._watched.get(device, 0)
        elif metric == LOG_LOST:
            began = self._agent
        elif device:
            began = max(_latest_before(self._loads, at), _latest_before(self._resets.get(device, []), at), self._boot)
        else:
            began = self._boot
        return began if began <= at else 0


def _insert(instants: list[int], at: int) -> None:
    place = bisect.bisect_left(instants, at)
    if instants[place : place + 1] != [at]:
        instants.insert(place, at)


def _latest_before(instants: list[int], at: int) -> int:
    place = bisect.bisect_right(instants, at)
    return instants[place - 1] if place else 0
