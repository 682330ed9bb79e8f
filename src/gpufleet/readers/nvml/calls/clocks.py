"""Clocks, and why they are held down."""

from gpufleet.readers.nvml.calls.call import Call, Calls, function, plain
from gpufleet.readers.nvml.calls.fields import Fields

CALLS: Calls = {
    "fast": (
        plain("nvmlDeviceGetClockInfo", 0, shown="GRAPHICS"),
        plain("nvmlDeviceGetClockInfo", 1, shown="SM"),
        plain("nvmlDeviceGetClockInfo", 2, shown="MEM"),
        plain("nvmlDeviceGetClockInfo", 3, shown="VIDEO"),
        Call(
            "clock event reasons",
            (
                function("nvmlDeviceGetCurrentClocksEventReasons"),
                function("nvmlDeviceGetCurrentClocksThrottleReasons"),
            ),
        ),
    ),
    "static": (plain("nvmlDeviceGetMaxClockInfo", 1, shown="SM"),),
}

FIELDS: Fields = {}
