"""Device memory, and the windows to it."""

from gpufleet.readers.nvml.mapping.row import Row
from gpufleet.readers.nvml.mapping.units import same

_MEMORY, _BAR1 = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetBAR1MemoryInfo"

ROWS = (
    Row("gpu_memory_total_bytes", _MEMORY, same, 0, bits=64),
    Row("gpu_memory_used_bytes", _MEMORY, same, 1, bits=64),
    Row("gpu_memory_free_bytes", _MEMORY, same, 2, bits=64),
    Row("gpu_memory_reserved_bytes", _MEMORY, same, 3, bits=64),
    Row("gpu_bar1_total_bytes", _BAR1, same, 0, bits=64),
    Row("gpu_bar1_used_bytes", _BAR1, same, 1, bits=64),
)
