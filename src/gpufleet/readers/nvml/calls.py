"""What is asked of the driver, lane by lane: the child runs this table, the parent reads its answers by it.

Only getters. The binding is used where it is right; where it is not (`nvmlDeviceGetModuleId` shares one result
object between all callers, the process lists guess a stride), the way around is here. Imports without pynvml.
"""

import ctypes
from collections.abc import Callable
from typing import NamedTuple

from gpufleet.readers.nvml.context import INSUFFICIENT_SIZE, Context, raw_function
from gpufleet.readers.nvml.fields import ask_fields
from gpufleet.readers.nvml.protocol import Value


class Function(NamedTuple):
    """One function with its arguments as people write it, and how to ask it."""

    label: str
    ask: Callable[[Context], Value]


class Call(NamedTuple):
    """One reading's call; `functions` are tried in turn while a driver does not have them."""

    key: str
    functions: tuple[Function, ...]


def _plain(name: str, *arguments: int, shown: str = "") -> Call:
    """Return a call of the binding's function of that name that gives a number or a text."""
    key = f"{name}({shown})" if shown else name
    return Call(key, (_function(name, *arguments, shown=shown),))


def _function(name: str, *arguments: int, shown: str = "") -> Function:
    def ask(context: Context) -> Value:
        value: Value = getattr(context.nvml, name)(context.handle, *arguments)
        return value

    return Function(f"{name}({shown})" if shown else name, ask)


def _custom(name: str, ask: Callable[[Context], Value]) -> Call:
    return Call(name, (Function(name, ask),))


def _utilization(context: Context) -> Value:
    rates = context.nvml.nvmlDeviceGetUtilizationRates(context.handle)
    return [rates.gpu, rates.memory]


def _memory(context: Context) -> Value:
    memory = context.nvml.nvmlDeviceGetMemoryInfo(context.handle, version=context.nvml.nvmlMemory_v2)
    return [memory.total, memory.used, memory.free, memory.reserved]


def _bar1(context: Context) -> Value:
    bar1 = context.nvml.nvmlDeviceGetBAR1MemoryInfo(context.handle)
    return [bar1.bar1Total, bar1.bar1Used]


def _compute_processes(context: Context) -> Value:
    """Count them as nvml.h says: with no room given, the call fails with the number in `count`."""
    count = ctypes.c_uint(0)
    code = raw_function(context, "nvmlDeviceGetComputeRunningProcesses_v3")(context.handle, ctypes.byref(count), None)
    if code not in (0, INSUFFICIENT_SIZE):
        raise context.nvml.NVMLError(code)
    return count.value


def _fans(context: Context) -> Value:
    speeds: list[Value] = []
    count = context.nvml.nvmlDeviceGetNumFans(context.handle)
    context.mark(FAN_SPEED)
    for fan in range(count):
        try:
            speeds.append([0, context.nvml.nvmlDeviceGetFanSpeed_v2(context.handle, fan)])
        except context.nvml.NVMLError as error:
            speeds.append([error.value, None])
    return speeds


def _module_id(context: Context) -> Value:
    number: int = context.nvml.nvmlDeviceGetModuleId(context.handle, ctypes.c_uint())
    return number


def _gsp_version(context: Context) -> Value:
    version: bytes = context.nvml.nvmlDeviceGetGspFirmwareVersion(context.handle)
    return version.decode("utf-8", "replace")


def _fields(*ids: int) -> Call:
    return _custom(f"nvmlDeviceGetFieldValues({', '.join(map(str, ids))})", lambda context: ask_fields(context, ids))


def _engine(name: str) -> Call:
    """Return a call that gives percent and sample period; only the percent is kept."""

    def ask(context: Context) -> Value:
        percent: int = getattr(context.nvml, name)(context.handle)[0]
        return percent

    return _custom(name, ask)


MIG_MODE = _plain("nvmlDeviceGetMigMode")
VIRTUALIZATION_MODE = _plain("nvmlDeviceGetVirtualizationMode")

CALLS: dict[str, tuple[Call, ...]] = {
    "fast": (
        _custom("nvmlDeviceGetUtilizationRates", _utilization),
        _engine("nvmlDeviceGetEncoderUtilization"),
        _engine("nvmlDeviceGetDecoderUtilization"),
        _engine("nvmlDeviceGetJpgUtilization"),
        _engine("nvmlDeviceGetOfaUtilization"),
        _custom("nvmlDeviceGetMemoryInfo_v2", _memory),
        _custom("nvmlDeviceGetBAR1MemoryInfo", _bar1),
        Call("temperature", (_function("nvmlDeviceGetTemperatureV", 0), _function("nvmlDeviceGetTemperature", 0))),
        _plain("nvmlDeviceGetMarginTemperature"),
        _plain("nvmlDeviceGetPowerUsage"),
        _plain("nvmlDeviceGetEnforcedPowerLimit"),
        _plain("nvmlDeviceGetTotalEnergyConsumption"),
        _custom("nvmlDeviceGetNumFans", _fans),
        _plain("nvmlDeviceGetClockInfo", 0, shown="GRAPHICS"),
        _plain("nvmlDeviceGetClockInfo", 1, shown="SM"),
        _plain("nvmlDeviceGetClockInfo", 2, shown="MEM"),
        _plain("nvmlDeviceGetClockInfo", 3, shown="VIDEO"),
        Call(
            "clock event reasons",
            (
                _function("nvmlDeviceGetCurrentClocksEventReasons"),
                _function("nvmlDeviceGetCurrentClocksThrottleReasons"),
            ),
        ),
        _plain("nvmlDeviceGetPerformanceState"),
        _plain("nvmlDeviceGetTotalEccErrors", 0, 0, shown="CORRECTED, VOLATILE"),
        _plain("nvmlDeviceGetTotalEccErrors", 1, 0, shown="UNCORRECTED, VOLATILE"),
        _plain("nvmlDeviceGetCurrPcieLinkGeneration"),
        _plain("nvmlDeviceGetCurrPcieLinkWidth"),
        _plain("nvmlDeviceGetPcieReplayCounter"),
        _custom("nvmlDeviceGetComputeRunningProcesses_v3", _compute_processes),
        _fields(82, 186),
    ),
    "slow": (
        _plain("nvmlDeviceGetTotalEccErrors", 0, 1, shown="CORRECTED, AGGREGATE"),
        _plain("nvmlDeviceGetTotalEccErrors", 1, 1, shown="UNCORRECTED, AGGREGATE"),
        _plain("nvmlDeviceGetRemappedRows"),
        _fields(230),
    ),
    "static": (
        _plain("nvmlDeviceGetPowerManagementDefaultLimit"),
        _plain("nvmlDeviceGetMaxClockInfo", 1, shown="SM"),
        _plain("nvmlDeviceGetMaxPcieLinkGeneration"),
        _plain("nvmlDeviceGetMaxPcieLinkWidth"),
        _plain("nvmlDeviceGetEccMode"),
        _plain("nvmlDeviceGetPersistenceMode"),
        _plain("nvmlDeviceGetComputeMode"),
        _plain("nvmlDeviceGetName"),
        _plain("nvmlDeviceGetSerial"),
        _plain("nvmlDeviceGetBoardPartNumber"),
        _plain("nvmlDeviceGetVbiosVersion"),
        _plain("nvmlDeviceGetArchitecture"),
        _plain("nvmlDeviceGetCudaComputeCapability"),
        _plain("nvmlDeviceGetMinorNumber"),
        _plain("nvmlDeviceGetInforomImageVersion"),
        _custom("nvmlDeviceGetGspFirmwareVersion", _gsp_version),
        _custom("nvmlDeviceGetModuleId", _module_id),
    ),
}
"""The calls of each lane, in the order in which they are made and answered."""

INIT, DRIVER_VERSION, LIBRARY_VERSION = "nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"
CUDA_VERSION, COUNT = "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCount_v2"
HANDLE, PCI_INFO, UUID = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID"
NOTHING, SHUTDOWN, OPEN = "", "nvmlShutdown", "open /dev/nvidiactl"
FAN_SPEED = "nvmlDeviceGetFanSpeed_v2"

LABELS: tuple[str, ...] = (
    NOTHING,
    *(INIT, DRIVER_VERSION, LIBRARY_VERSION, CUDA_VERSION, COUNT, HANDLE, PCI_INFO, UUID, SHUTDOWN, OPEN, FAN_SPEED),
    *(function.label for call in (MIG_MODE, VIRTUALIZATION_MODE) for function in call.functions),
    *(function.label for calls in CALLS.values() for call in calls for function in call.functions),
)
"""Every function that can hang, by breadcrumb number; 0 is none."""

NUMBERS: dict[str, int] = {label: number for number, label in enumerate(LABELS)}
