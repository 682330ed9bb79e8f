"""Confidential computing: how much memory it protects, and how it is set up for the machine."""

import ctypes
import struct as layout

from gpufleet.readers.nvml.calls.call import Call, Calls, custom, struct
from gpufleet.readers.nvml.calls.fields import Fields
from gpufleet.readers.nvml.context import Context, check, raw_function
from gpufleet.readers.nvml.protocol import Value

_SETTINGS = layout.Struct("<5I")


def _state(context: Context) -> Value:
    state = context.nvml.nvmlSystemGetConfComputeState()
    return [state.environment, state.ccFeature, state.devToolsMode]


def _multi_gpu(context: Context) -> Value:
    """Ask the library itself: the binding gives the code back instead of raising it."""
    name, buffer = "nvmlSystemGetConfComputeSettings", ctypes.create_string_buffer(_SETTINGS.size)
    layout.pack_into("<I", buffer, 0, 0x01000014)
    check(context, raw_function(context, name)(buffer))
    mode: int = _SETTINGS.unpack(buffer.raw)[4]
    return mode


def _ready(context: Context) -> Value:
    ready: int = context.nvml.nvmlSystemGetConfComputeGpusReadyState()
    return ready


CALLS: Calls = {
    "slow": (
        struct("nvmlDeviceGetConfComputeMemSizeInfo", "protectedMemSizeKib", "unprotectedMemSizeKib"),
        struct("nvmlDeviceGetConfComputeProtectedMemoryUsage", "used"),
    ),
}

SYSTEM_CALLS: tuple[Call, ...] = (
    custom("nvmlSystemGetConfComputeState", _state),
    custom("nvmlSystemGetConfComputeSettings", _multi_gpu),
    custom("nvmlSystemGetConfComputeGpusReadyState", _ready),
)
"""What is asked of NVML as a whole, on the static lane."""

FIELDS: Fields = {}
