"""Identity of the board, modes, and the performance state."""

import ctypes

from gpufleet.readers.nvml.calls.call import Calls, custom, plain
from gpufleet.readers.nvml.calls.fields import Fields, field
from gpufleet.readers.nvml.calls.raw import struct_call
from gpufleet.readers.nvml.context import Context, check, raw_function
from gpufleet.readers.nvml.protocol import Value


def _module_id(context: Context) -> Value:
    """Give a result object of its own: the binding's is one for all callers."""
    number: int = context.nvml.nvmlDeviceGetModuleId(context.handle, ctypes.c_uint())
    return number


def _gsp_version(context: Context) -> Value:
    version: bytes = context.nvml.nvmlDeviceGetGspFirmwareVersion(context.handle)
    return version.decode("utf-8", "replace")


def _gsp_mode(context: Context) -> Value:
    """Give result objects of its own: the binding's are one for all callers."""
    enabled, default = ctypes.c_uint(), ctypes.c_uint()
    code = raw_function(context, "nvmlDeviceGetGspFirmwareMode")(
        context.handle, ctypes.byref(enabled), ctypes.byref(default)
    )
    check(context, code)
    return enabled.value


CALLS: Calls = {
    "fast": (plain("nvmlDeviceGetPerformanceState"),),
    "static": (
        plain("nvmlDeviceGetPersistenceMode"),
        plain("nvmlDeviceGetComputeMode"),
        plain("nvmlDeviceGetAccountingMode"),
        custom("nvmlDeviceGetGspFirmwareMode", _gsp_mode),
        plain("nvmlDeviceGetDisplayMode"),
        plain("nvmlDeviceGetDisplayActive"),
        plain("nvmlDeviceGetAddressingMode"),
        plain("nvmlDeviceGetNumaNodeId"),
        plain("nvmlDeviceGetNumGpuCores"),
        plain("nvmlDeviceGetMemoryBusWidth"),
        struct_call("nvmlDeviceGetPlatformInfo", "<I16s16s5B3x", 0x0200002C),
        plain("nvmlDeviceGetName"),
        plain("nvmlDeviceGetSerial"),
        plain("nvmlDeviceGetBoardPartNumber"),
        plain("nvmlDeviceGetVbiosVersion"),
        plain("nvmlDeviceGetArchitecture"),
        plain("nvmlDeviceGetCudaComputeCapability"),
        plain("nvmlDeviceGetMinorNumber"),
        plain("nvmlDeviceGetInforomImageVersion"),
        custom("nvmlDeviceGetGspFirmwareVersion", _gsp_version),
        custom("nvmlDeviceGetModuleId", _module_id),
    ),
}

FIELDS: Fields = {"slow": (field("recovery action", 230, since=570),)}
