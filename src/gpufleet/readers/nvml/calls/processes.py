"""Processes on a device."""

import ctypes

from gpufleet.readers.nvml.calls.call import Calls, custom
from gpufleet.readers.nvml.calls.fields import Fields
from gpufleet.readers.nvml.context import INSUFFICIENT_SIZE, Context, check, raw_function
from gpufleet.readers.nvml.protocol import Value


def _compute_processes(context: Context) -> Value:
    """Count them as nvml.h says: with no room given, the call fails with the number in `count`."""
    count = ctypes.c_uint(0)
    code = raw_function(context, "nvmlDeviceGetComputeRunningProcesses_v3")(context.handle, ctypes.byref(count), None)
    if code != INSUFFICIENT_SIZE:
        check(context, code)
    return count.value


COUNT = (custom("nvmlDeviceGetComputeRunningProcesses_v3", _compute_processes),)
"""How many hold a compute context."""

CALLS: Calls = {"fast": COUNT}

FIELDS: Fields = {}
