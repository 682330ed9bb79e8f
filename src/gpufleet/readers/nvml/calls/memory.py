"""Device memory, and the windows to it."""

from gpufleet.readers.nvml.calls.call import Calls, custom, struct
from gpufleet.readers.nvml.calls.fields import Fields
from gpufleet.readers.nvml.context import Context
from gpufleet.readers.nvml.protocol import Value


def _memory(context: Context) -> Value:
    """Ask for version 2: the first one counts what the driver reserves as used."""
    memory = context.nvml.nvmlDeviceGetMemoryInfo(context.handle, version=context.nvml.nvmlMemory_v2)
    return [memory.total, memory.used, memory.free, memory.reserved]


CALLS: Calls = {
    "fast": (
        custom("nvmlDeviceGetMemoryInfo_v2", _memory),
        struct("nvmlDeviceGetBAR1MemoryInfo", "bar1Total", "bar1Used"),
    ),
}

FIELDS: Fields = {}
