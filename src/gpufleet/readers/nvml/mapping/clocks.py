"""Clocks, and why they are held down."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvml.mapping.row import Row
from gpufleet.readers.nvml.mapping.units import mega, same

MASK = "gpu_clock_event_reasons_mask"
_ACTIVE = "gpu_clock_event_active"

ROWS = (
    Row("gpu_graphics_clock_hertz", "nvmlDeviceGetClockInfo(GRAPHICS)", mega),
    Row("gpu_sm_clock_hertz", "nvmlDeviceGetClockInfo(SM)", mega),
    Row("gpu_memory_clock_hertz", "nvmlDeviceGetClockInfo(MEM)", mega),
    Row("gpu_video_clock_hertz", "nvmlDeviceGetClockInfo(VIDEO)", mega),
    Row("gpu_sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo(SM)", mega),
    Row(MASK, "clock event reasons", same, bits=64),
)


def active_reasons(mask: Value | Absent) -> tuple[DimValue, ...]:
    """Return one 0 or 1 a reason for which clocks can be held down; all absent if the mask is."""
    if isinstance(mask, int):
        return tuple([DimValue(_ACTIVE, (name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS])
    why = mask if isinstance(mask, Absent) else Absent(Reason.INVALID_VALUE)
    return tuple([DimValue(_ACTIVE, (name,), why) for name, _ in CLOCK_EVENT_REASONS])
