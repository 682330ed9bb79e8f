"""Calls for board identity, modes, clocks, engines, memory, temperature, power, fans and confidential computing."""

import ctypes
import struct

from gpufleet.readers.nvml.calls.call import (
    Call,
    Calls,
    attributes,
    custom,
    function,
    getter,
    query_each,
    raw_struct,
    read_struct,
)
from gpufleet.readers.nvml.calls.fields import Field, Fields, field
from gpufleet.readers.nvml.context import NO_DATA, Context, check, raw_function
from gpufleet.readers.nvml.protocol import Value

FAN_SPEED, FAN_RPM = "nvmlDeviceGetFanSpeed_v2", "nvmlDeviceGetFanSpeedRPM"
THRESHOLD = "nvmlDeviceGetTemperatureThreshold"
THRESHOLDS = 8
"""Number of values of nvmlTemperatureThresholds_t."""

MAX_FANS = 64
"""Plausible maximum; a larger count of the driver is not used."""

MODULE = 1
"""NVML_POWER_SCOPE_MODULE: the module that a GPU shares with a CPU."""

MEMORY = 2
"""NVML_POWER_SCOPE_MEMORY: the device memory."""

_FAN_SPEED_INFO = struct.Struct("<III")
_CONFIDENTIAL_SETTINGS = struct.Struct("<5I")


def _module_id(context: Context) -> Value:
    """Pass a separate result object: the binding shares one between all callers."""
    number: int = context.nvml.nvmlDeviceGetModuleId(context.handle, ctypes.c_uint())
    return number


def _gsp_version(context: Context) -> Value:
    version: bytes = context.nvml.nvmlDeviceGetGspFirmwareVersion(context.handle)
    return version.decode("utf-8", "replace")


def _gsp_mode(context: Context) -> Value:
    """Pass separate result objects: the binding shares them between all callers."""
    enabled, default = ctypes.c_uint(), ctypes.c_uint()
    code = raw_function(context, "nvmlDeviceGetGspFirmwareMode")(
        context.handle, ctypes.byref(enabled), ctypes.byref(default)
    )
    check(context, code)
    return enabled.value


def _engine(name: str) -> Call:
    """Return a call of a function that returns percent and sample period; only the percent is kept."""

    def query(context: Context) -> Value:
        percent: int = getattr(context.nvml, name)(context.handle)[0]
        return percent

    return custom(name, query)


def _memory(context: Context) -> Value:
    """Query version 2 of the struct: version 1 counts the driver's reserved memory as used."""
    memory = context.nvml.nvmlDeviceGetMemoryInfo(context.handle, version=context.nvml.nvmlMemory_v2)
    return [memory.total, memory.used, memory.free, memory.reserved]


def _fan_numbers(context: Context) -> range:
    count: int = context.nvml.nvmlDeviceGetNumFans(context.handle)
    check(context, NO_DATA if count > MAX_FANS else 0)
    return range(count)


def _fan_speeds(context: Context) -> Value:
    fans = _fan_numbers(context)
    context.mark(FAN_SPEED)

    def speed(fan: int) -> Value:
        percent: int = context.nvml.nvmlDeviceGetFanSpeed_v2(context.handle, fan)
        return percent

    return query_each(context, FAN_SPEED, speed, fans)


def _fan_rpms(context: Context) -> Value:
    fans = _fan_numbers(context)
    context.mark(FAN_RPM)

    def speed(fan: int) -> Value:
        rpm: int = read_struct(context, FAN_RPM, _FAN_SPEED_INFO, 0x0100000C, fan)[2]
        return rpm

    return query_each(context, FAN_RPM, speed, fans)


def _thresholds(context: Context) -> Value:
    def degrees(threshold: int) -> Value:
        found: int = context.nvml.nvmlDeviceGetTemperatureThreshold(context.handle, threshold)
        return found

    return query_each(context, THRESHOLD, degrees, range(THRESHOLDS))


def _confidential_state(context: Context) -> Value:
    state = context.nvml.nvmlSystemGetConfComputeState()
    return [state.environment, state.ccFeature, state.devToolsMode]


def _confidential_multi_gpu(context: Context) -> Value:
    """Call the library itself: the binding returns the code instead of raising it."""
    name, buffer = "nvmlSystemGetConfComputeSettings", ctypes.create_string_buffer(_CONFIDENTIAL_SETTINGS.size)
    struct.pack_into("<I", buffer, 0, 0x01000014)
    check(context, raw_function(context, name)(buffer))
    mode: int = _CONFIDENTIAL_SETTINGS.unpack(buffer.raw)[4]
    return mode


def _confidential_ready(context: Context) -> Value:
    ready: int = context.nvml.nvmlSystemGetConfComputeGpusReadyState()
    return ready


PRODUCT = getter("nvmlDeviceGetName")

MEMORY_CALLS = (
    custom("nvmlDeviceGetMemoryInfo_v2", _memory),
    attributes("nvmlDeviceGetBAR1MemoryInfo", "bar1Total", "bar1Used"),
)
"""Device memory and BAR1, on the fast lane; also for MIG devices."""

CALLS: Calls = {
    "fast": (
        getter("nvmlDeviceGetPerformanceState"),
        # engines
        attributes("nvmlDeviceGetUtilizationRates", "gpu", "memory"),
        _engine("nvmlDeviceGetEncoderUtilization"),
        _engine("nvmlDeviceGetDecoderUtilization"),
        _engine("nvmlDeviceGetJpgUtilization"),
        _engine("nvmlDeviceGetOfaUtilization"),
        *MEMORY_CALLS,
        # temperature, power, fans
        Call("temperature", (function("nvmlDeviceGetTemperatureV", 0), function("nvmlDeviceGetTemperature", 0))),
        getter("nvmlDeviceGetMarginTemperature"),
        getter("nvmlDeviceGetPowerUsage"),
        getter("nvmlDeviceGetEnforcedPowerLimit"),
        getter("nvmlDeviceGetTotalEnergyConsumption"),
        custom("nvmlDeviceGetNumFans", _fan_speeds, inner=(FAN_SPEED,)),
        # clocks
        getter("nvmlDeviceGetClockInfo", 0, shown="GRAPHICS"),
        getter("nvmlDeviceGetClockInfo", 1, shown="SM"),
        getter("nvmlDeviceGetClockInfo", 2, shown="MEM"),
        getter("nvmlDeviceGetClockInfo", 3, shown="VIDEO"),
        Call(
            "clock event reasons",
            (
                function("nvmlDeviceGetCurrentClocksEventReasons"),
                function("nvmlDeviceGetCurrentClocksThrottleReasons"),
            ),
        ),
    ),
    "slow": (
        custom("fan turns", _fan_rpms, inner=(FAN_RPM,)),
        attributes("nvmlDeviceGetConfComputeMemSizeInfo", "protectedMemSizeKib", "unprotectedMemSizeKib"),
        attributes("nvmlDeviceGetConfComputeProtectedMemoryUsage", "used"),
    ),
    "static": (
        # modes
        getter("nvmlDeviceGetPersistenceMode"),
        getter("nvmlDeviceGetComputeMode"),
        getter("nvmlDeviceGetAccountingMode"),
        custom("nvmlDeviceGetGspFirmwareMode", _gsp_mode),
        getter("nvmlDeviceGetDisplayMode"),
        getter("nvmlDeviceGetDisplayActive"),
        getter("nvmlDeviceGetAddressingMode"),
        # identity of the board
        getter("nvmlDeviceGetNumaNodeId"),
        getter("nvmlDeviceGetNumGpuCores"),
        getter("nvmlDeviceGetMemoryBusWidth"),
        raw_struct("nvmlDeviceGetPlatformInfo", "<I16s16s5B3x", 0x0200002C),
        PRODUCT,
        getter("nvmlDeviceGetSerial"),
        getter("nvmlDeviceGetBoardPartNumber"),
        getter("nvmlDeviceGetVbiosVersion"),
        getter("nvmlDeviceGetArchitecture"),
        getter("nvmlDeviceGetCudaComputeCapability"),
        getter("nvmlDeviceGetMinorNumber"),
        getter("nvmlDeviceGetInforomImageVersion"),
        custom("nvmlDeviceGetGspFirmwareVersion", _gsp_version),
        custom("nvmlDeviceGetModuleId", _module_id),
        # limits
        getter("nvmlDeviceGetPowerManagementDefaultLimit"),
        custom(THRESHOLD, _thresholds),
        getter("nvmlDeviceGetMaxClockInfo", 0, shown="GRAPHICS"),
        getter("nvmlDeviceGetMaxClockInfo", 1, shown="SM"),
        getter("nvmlDeviceGetMaxClockInfo", 2, shown="MEM"),
        Call(
            "supported clock event reasons",
            (
                function("nvmlDeviceGetSupportedClocksEventReasons"),
                function("nvmlDeviceGetSupportedClocksThrottleReasons"),
            ),
        ),
    ),
}

SYSTEM_CALLS: tuple[Call, ...] = (
    custom("nvmlSystemGetConfComputeState", _confidential_state),
    custom("nvmlSystemGetConfComputeSettings", _confidential_multi_gpu),
    custom("nvmlSystemGetConfComputeGpusReadyState", _confidential_ready),
)
"""Calls about NVML as a whole, on the static lane."""


def _renumbered(name: str, id_: int) -> Field:
    """Return a clock event counter of driver 575 and later, which had another field id at first.

    575.0 to 580.65 use an id that 570 and 580.82 assign to power smoothing (nvidia-ml-py's releases). The exact version
    of the change is unknown, so these drivers are not queried.
    """
    return Field(f"clock event, {name}", (((580, 82), id_), ((575,), None)))


FIELDS: Fields = {
    "fast": (
        field("memory temperature", 82),
        field("power, average", 185, since=535),
        field("power, instant", 186, since=535),
        field("power, module, average", 185, since=535, scope=MODULE),
        field("power, module, instant", 186, since=535, scope=MODULE),
        field("power, memory, average", 185, since=560, scope=MEMORY),
        field("power, memory, instant", 186, since=560, scope=MEMORY),
    ),
    "slow": (
        field("recovery action", 230, since=570),
        field("power limit, requested", 192, since=535),
        field("power limit, module", 190, since=535, scope=MODULE),
        field("power limit, module, requested", 192, since=535, scope=MODULE),
        field("clock event, sw_power_cap", 74),
        field("clock event, thermal", 75),
        field("clock event, sync_boost", 76),
        field("clock event, board_limit", 77),
        field("clock event, low_utilization", 78),
        field("clock event, reliability", 79),
        field("clock event, applications_clocks", 80),
        field("clock event, base_clocks", 81),
        _renumbered("sw_thermal", 269),
        _renumbered("hw_thermal", 270),
        _renumbered("hw_power_brake", 271),
    ),
    "static": (
        field("power limit, lowest", 187, since=535),
        field("power limit, highest", 188, since=535),
        field("power limit, module, default", 189, since=535, scope=MODULE),
        field("power limit, module, lowest", 187, since=535, scope=MODULE),
        field("power limit, module, highest", 188, since=535, scope=MODULE),
        field("margin threshold, shutdown", 193, since=535),
        field("margin threshold, slowdown", 194, since=535),
        field("margin threshold, memory_max", 195, since=535),
        field("margin threshold, gpu_max", 196, since=535),
    ),
}
