"""Clocks, and why they are held down."""

import functools

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvml.mapping.row import Row, field_table
from gpufleet.readers.nvml.mapping.units import mega, nano, same

MASK = "gpu_clock_event_reasons_mask"
_ACTIVE, _SUPPORTED = "gpu_clock_event_active", "gpu_clock_event_supported"
_TIMED = (
    "sw_power_cap",
    "thermal",
    "sync_boost",
    "board_limit",
    "low_utilization",
    "reliability",
    "applications_clocks",
    "base_clocks",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
)

ROWS = (
    Row("gpu_graphics_clock_hertz", "nvmlDeviceGetClockInfo(GRAPHICS)", mega),
    Row("gpu_sm_clock_hertz", "nvmlDeviceGetClockInfo(SM)", mega),
    Row("gpu_memory_clock_hertz", "nvmlDeviceGetClockInfo(MEM)", mega),
    Row("gpu_video_clock_hertz", "nvmlDeviceGetClockInfo(VIDEO)", mega),
    Row("gpu_sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo(SM)", mega),
    Row("gpu_graphics_clock_max_hertz", "nvmlDeviceGetMaxClockInfo(GRAPHICS)", mega),
    Row("gpu_memory_clock_max_hertz", "nvmlDeviceGetMaxClockInfo(MEM)", mega),
    Row(MASK, "clock event reasons", same, bits=64),
    field_table("gpu_clock_event_seconds_total", "clock event", _TIMED, nano),
)

SUPPORTED_ROW = Row(MASK, "supported clock event reasons", same, bits=64)
"""The mask that `supported_reasons` takes apart, read as the mask of active ones is; it is no reading of its own."""


def active_reasons(mask: Value | Absent) -> tuple[DimValue, ...]:
    """Return one 0 or 1 a reason for which clocks can be held down; all absent if the mask is."""
    return _reasons(_ACTIVE, mask)


def supported_reasons(mask: Value | Absent) -> tuple[DimValue, ...]:
    """Return one 0 or 1 a reason that this GPU can name; all absent if the mask is."""
    return _reasons(_SUPPORTED, mask)


@functools.lru_cache(256)  # GPUs have few different masks, and all of them in every pass
def _reasons(metric: str, mask: Value | Absent) -> tuple[DimValue, ...]:
    if isinstance(mask, int):
        return tuple([DimValue(metric, (name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS])
    why = mask if isinstance(mask, Absent) else Absent(Reason.INVALID_VALUE)
    return tuple([DimValue(metric, (name,), why) for name, _ in CLOCK_EVENT_REASONS])
