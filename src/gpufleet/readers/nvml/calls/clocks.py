"""Clocks, and why they are held down."""

from gpufleet.readers.nvml.calls.call import Call, Calls, function, plain
from gpufleet.readers.nvml.calls.fields import Field, Fields, field

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
    "static": (
        plain("nvmlDeviceGetMaxClockInfo", 0, shown="GRAPHICS"),
        plain("nvmlDeviceGetMaxClockInfo", 1, shown="SM"),
        plain("nvmlDeviceGetMaxClockInfo", 2, shown="MEM"),
        Call(
            "supported clock event reasons",
            (
                function("nvmlDeviceGetSupportedClocksEventReasons"),
                function("nvmlDeviceGetSupportedClocksThrottleReasons"),
            ),
        ),
    ),
}


def _renumbered(name: str, id_: int) -> Field:
    """Return a counter that came with driver 575 under another number.

    575.0 to 580.65 know it by a number that 570 and 580.82 give to power smoothing (nvidia-ml-py's releases); where
    exactly it changed is not known, so it is not asked in between.
    """
    return Field(f"clock event, {name}", (((580, 82), id_), ((575,), None)))


FIELDS: Fields = {
    "slow": (
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
}
