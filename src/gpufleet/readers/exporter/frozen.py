"""An exporter that answers and measures no more: known by readings that are never twice the same. Pure.

Power, temperatures, clocks and activity of a GPU that works change from one moment to the next. Where all of them stay
the same to the last digit, for longer than any exporter keeps a value on purpose (dcgm-exporter: 30 s), they are old
ones. A GPU that idles can show the same clocks and temperature for hours: only one that works is judged, or one whose
energy counter stands still although it draws power.
"""

from collections.abc import Sequence

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import DimValue, Sample, Value

FROZEN_SECONDS = 120.0
FROZEN_PAGES = 5
"""For so long, and on so many pages, nothing of it has changed."""

ENERGY = "gpu_energy_joules_total"
POWER = ("gpu_power_watts", "gpu_power_instant_watts", "gpu_power_average_watts")
NOISY = (
    ENERGY,
    *POWER,
    "gpu_temperature_celsius",
    "gpu_memory_temperature_celsius",
    "gpu_sm_clock_hertz",
    "gpu_graphics_clock_hertz",
    "gpu_memory_activity_ratio",
    "gpu_graphics_activity_ratio",
    "gpu_sm_activity_ratio",
    "gpu_dram_activity_ratio",
)
WORK = ("gpu_utilization_ratio", "gpu_graphics_activity_ratio", "gpu_sm_activity_ratio")
LEAST = 2
"""Readings of `NOISY` that it takes, one of them of power."""

ABSENT = Absent(
    Reason.STALE, f"the exporter has repeated the same power and temperatures for {FROZEN_SECONDS:g} s: it is frozen"
)


class _Seen(msgspec.Struct):
    signature: tuple[tuple[str, Value], ...]
    since: float
    pages: int


class Frozen:
    """Remembers one page of one exporter."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def judge(self, samples: Sequence[Sample], now: float) -> tuple[list[Sample], tuple[str, ...]]:
        """Return the samples of a page, without fast values of devices that are frozen, and words about those.

        Args:
            samples: everything that the page says.
            now: when it came, in seconds by the monotonic clock.
        """
        seen: dict[str, _Seen] = {}
        judged: list[Sample] = []
        words: list[str] = []
        for sample in samples:
            signature = _signature(sample)
            if sample.view is None or signature is None:
                judged.append(sample)
                continue
            known = self._seen.get(sample.view.key)
            if known is None or known.signature != signature:
                known = _Seen(signature, now, 0)
            known.pages += 1
            seen[sample.view.key] = known
            if known.pages >= FROZEN_PAGES and now - known.since >= FROZEN_SECONDS:
                sample = _without_values(sample)
                words.append(f"{sample.view.key if sample.view else ''}: {ABSENT.detail}, and not believed")
            judged.append(sample)
        self._seen = seen
        return judged, tuple(words)


def _signature(sample: Sample) -> tuple[tuple[str, Value], ...] | None:
    """Return the readings that a GPU at work never repeats, or None where they do not tell."""
    if sample.lane is not Lane.FAST:
        return None
    found = [(name, value) for name in NOISY if isinstance(value := sample.values.get(name), int | float)]
    names = {name for name, _ in found}
    draws = any(name in POWER and value != 0 for name, value in found)
    works = any(isinstance(value := sample.values.get(name), int | float) and value > 0 for name in WORK)
    if len(found) < LEAST or not draws or not (works or ENERGY in names):
        return None
    return tuple(found)


def _without_values(sample: Sample) -> Sample:
    return msgspec.structs.replace(
        sample,
        values=dict.fromkeys(sample.values, ABSENT),
        dims=tuple(DimValue(dim.metric, dim.labels, ABSENT) for dim in sample.dims),
    )
