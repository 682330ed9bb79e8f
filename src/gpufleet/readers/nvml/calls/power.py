"""Heat, power, energy and fans."""

from gpufleet.readers.nvml.calls.call import Call, Calls, custom, each, function, plain
from gpufleet.readers.nvml.calls.fields import Fields, field
from gpufleet.readers.nvml.context import Context
from gpufleet.readers.nvml.protocol import Value

FAN_SPEED = "nvmlDeviceGetFanSpeed_v2"


def _fans(context: Context) -> Value:
    count = context.nvml.nvmlDeviceGetNumFans(context.handle)
    context.mark(FAN_SPEED)

    def speed(fan: int) -> Value:
        percent: int = context.nvml.nvmlDeviceGetFanSpeed_v2(context.handle, fan)
        return percent

    return each(context, FAN_SPEED, speed, range(count))


CALLS: Calls = {
    "fast": (
        Call("temperature", (function("nvmlDeviceGetTemperatureV", 0), function("nvmlDeviceGetTemperature", 0))),
        plain("nvmlDeviceGetMarginTemperature"),
        plain("nvmlDeviceGetPowerUsage"),
        plain("nvmlDeviceGetEnforcedPowerLimit"),
        plain("nvmlDeviceGetTotalEnergyConsumption"),
        custom("nvmlDeviceGetNumFans", _fans, inner=(FAN_SPEED,)),
    ),
    "static": (plain("nvmlDeviceGetPowerManagementDefaultLimit"),),
}

FIELDS: Fields = {
    "fast": (field("memory temperature", 82), field("power, instant", 186, since=535)),
}
