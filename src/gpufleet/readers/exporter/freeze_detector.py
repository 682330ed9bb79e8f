"""Detection of frozen exporters, which still respond but no longer measure. Pure.

Power, temperatures, clocks and activity of a busy GPU change all the time. If all of them stay identical for longer
than any exporter caches values (dcgm-exporter: 30 s), the values are stale. An idle GPU can repeat its clocks and
temperature for hours. Therefore only GPUs that draw power are checked, if they are busy or have an energy counter.
"""

from collections.abc import Sequence

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import DimValue, Sample, Value

FROZEN_SECONDS = 120.0
FROZEN_PAGES = 5
"""Minimum time and number of pages without any change until a device counts as frozen."""

ENERGY = "gpu_energy_joules_total"
POWER_METRICS = ("gpu_power_watts", "gpu_power_instant_watts", "gpu_power_average_watts")
VARIABLE_METRICS = (
    ENERGY,
    *POWER_METRICS,
    "gpu_temperature_celsius",
    "gpu_memory_temperature_celsius",
    "gpu_sm_clock_hertz",
    "gpu_graphics_clock_hertz",
    "gpu_memory_activity_ratio",
    "gpu_graphics_activity_ratio",
    "gpu_sm_activity_ratio",
    "gpu_dram_activity_ratio",
)
ACTIVITY_METRICS = ("gpu_utilization_ratio", "gpu_graphics_activity_ratio", "gpu_sm_activity_ratio")
MIN_READINGS = 2
"""Minimum number of `VARIABLE_METRICS` readings for a check, one of them power."""

ABSENT = Absent(
    Reason.STALE, f"the exporter has repeated the same power and temperatures for {FROZEN_SECONDS:g} s: it is frozen"
)


class _RepeatedReadings(msgspec.Struct):
    signature: tuple[tuple[str, Value], ...]
    since: float
    pages: int


class FrozenDetector:
    """Detects frozen devices across the pages of one exporter."""

    def __init__(self) -> None:
        self._seen: dict[str, _RepeatedReadings] = {}

    def check(self, samples: Sequence[Sample], now: float) -> tuple[list[Sample], tuple[str, ...]]:
        """Return the samples of a page with fast values of frozen devices absent, and messages about these devices.

        Args:
            samples: all samples of the page.
            now: arrival time of the page, in seconds of the monotonic clock.
        """
        seen: dict[str, _RepeatedReadings] = {}
        checked: list[Sample] = []
        messages: list[str] = []
        for sample in samples:
            signature = _signature(sample)
            if sample.view is None or signature is None:
                checked.append(sample)
                continue
            known = self._seen.get(sample.view.key)
            if known is None or known.signature != signature:
                known = _RepeatedReadings(signature, now, 0)
            known.pages += 1
            seen[sample.view.key] = known
            if known.pages >= FROZEN_PAGES and now - known.since >= FROZEN_SECONDS:
                sample = _without_values(sample)
                messages.append(f"{sample.view.key if sample.view else ''}: {ABSENT.detail}; its values are ignored")
            checked.append(sample)
        self._seen = seen
        return checked, tuple(messages)


def _signature(sample: Sample) -> tuple[tuple[str, Value], ...] | None:
    """Return the readings that a busy GPU never repeats, or None if the sample proves nothing."""
    if sample.lane is not Lane.FAST:
        return None
    found = [(name, value) for name in VARIABLE_METRICS if isinstance(value := sample.values.get(name), int | float)]
    names = {name for name, _ in found}
    draws = any(name in POWER_METRICS and value != 0 for name, value in found)
    works = any(isinstance(value := sample.values.get(name), int | float) and value > 0 for name in ACTIVITY_METRICS)
    if len(found) < MIN_READINGS or not draws or not (works or ENERGY in names):
        return None
    return tuple(found)


def _without_values(sample: Sample) -> Sample:
    return msgspec.structs.replace(
        sample,
        values=dict.fromkeys(sample.values, ABSENT),
        dims=tuple(DimValue(dim.metric, dim.labels, ABSENT) for dim in sample.dims),
    )
