"""Heat, power, energy and fans."""

import struct

from gpufleet.readers.nvml.calls.call import Call, Calls, custom, each, function, plain
from gpufleet.readers.nvml.calls.fields import Fields, field
from gpufleet.readers.nvml.calls.raw import ask_struct
from gpufleet.readers.nvml.context import NO_DATA, Context, check
from gpufleet.readers.nvml.protocol import Value

FAN_SPEED, FAN_RPM = "nvmlDeviceGetFanSpeed_v2", "nvmlDeviceGetFanSpeedRPM"
THRESHOLD = "nvmlDeviceGetTemperatureThreshold"
THRESHOLDS = 8
"""Numbers of nvmlTemperatureThresholds_t."""

MOST_FANS = 64
"""A driver that says more than this is not believed."""

MODULE = 1
"""NVML_POWER_SCOPE_MODULE: of the module that a GPU shares with a CPU."""

_FAN_SPEED_INFO = struct.Struct("<III")


def _count_fans(context: Context) -> range:
    count: int = context.nvml.nvmlDeviceGetNumFans(context.handle)
    check(context, NO_DATA if count > MOST_FANS else 0)
    return range(count)


def _fans(context: Context) -> Value:
    fans = _count_fans(context)
    context.mark(FAN_SPEED)

    def speed(fan: int) -> Value:
        percent: int = context.nvml.nvmlDeviceGetFanSpeed_v2(context.handle, fan)
        return percent

    return each(context, FAN_SPEED, speed, fans)


def _fan_rpm(context: Context) -> Value:
    fans = _count_fans(context)
    context.mark(FAN_RPM)

    def speed(fan: int) -> Value:
        rpm: int = ask_struct(context, FAN_RPM, _FAN_SPEED_INFO, 0x0100000C, fan)[2]
        return rpm

    return each(context, FAN_RPM, speed, fans)


def _thresholds(context: Context) -> Value:
    def degrees(threshold: int) -> Value:
        found: int = context.nvml.nvmlDeviceGetTemperatureThreshold(context.handle, threshold)
        return found

    return each(context, THRESHOLD, degrees, range(THRESHOLDS))


CALLS: Calls = {
    "fast": (
        Call("temperature", (function("nvmlDeviceGetTemperatureV", 0), function("nvmlDeviceGetTemperature", 0))),
        plain("nvmlDeviceGetMarginTemperature"),
        plain("nvmlDeviceGetPowerUsage"),
        plain("nvmlDeviceGetEnforcedPowerLimit"),
        plain("nvmlDeviceGetTotalEnergyConsumption"),
        custom("nvmlDeviceGetNumFans", _fans, inner=(FAN_SPEED,)),
    ),
    "slow": (custom("fan turns", _fan_rpm, inner=(FAN_RPM,)),),
    "static": (
        plain("nvmlDeviceGetPowerManagementDefaultLimit"),
        custom(THRESHOLD, _thresholds),
    ),
}

FIELDS: Fields = {
    "fast": (
        field("memory temperature", 82),
        field("power, average", 185, since=535),
        field("power, instant", 186, since=535),
        field("power, module, average", 185, since=535, scope=MODULE),
        field("power, module, instant", 186, since=535, scope=MODULE),
    ),
    "slow": (
        field("power limit, requested", 192, since=535),
        field("power limit, module", 190, since=535, scope=MODULE),
    ),
    "static": (
        field("power limit, lowest", 187, since=535),
        field("power limit, highest", 188, since=535),
        field("margin threshold, shutdown", 193, since=535),
        field("margin threshold, slowdown", 194, since=535),
        field("margin threshold, memory_max", 195, since=535),
        field("margin threshold, gpu_max", 196, since=535),
    ),
}
