"""Identity of the board, modes, and the performance state."""

import ctypes

from gpufleet.readers.nvml.calls.call import Calls, custom, plain
from gpufleet.readers.nvml.calls.fields import Fields, field
from gpufleet.readers.nvml.context import Context
from gpufleet.readers.nvml.protocol import Value


def _module_id(context: Context) -> Value:
    """Give a result object of its own: the binding's is one for all callers."""
    number: int = context.nvml.nvmlDeviceGetModuleId(context.handle, ctypes.c_uint())
    return number


def _gsp_version(context: Context) -> Value:
    version: bytes = context.nvml.nvmlDeviceGetGspFirmwareVersion(context.handle)
    return version.decode("utf-8", "replace")


CALLS: Calls = {
    "fast": (plain("nvmlDeviceGetPerformanceState"),),
    "static": (
        plain("nvmlDeviceGetPersistenceMode"),
        plain("nvmlDeviceGetComputeMode"),
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
