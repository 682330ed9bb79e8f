"""Memory errors, and what was done about them."""

import itertools

from gpufleet.readers.nvml.calls.call import Calls, custom, each, plain, struct
from gpufleet.readers.nvml.calls.fields import Fields, field
from gpufleet.readers.nvml.calls.raw import struct_call
from gpufleet.readers.nvml.context import Context
from gpufleet.readers.nvml.protocol import Value

LOCATION_ERRORS = "nvmlDeviceGetMemoryErrorCounter"
SEVERITIES, COUNTERS, LOCATIONS = 2, 2, 8
"""Corrected and uncorrected; volatile and aggregate; numbers of nvmlMemoryLocation_t."""


def _location_errors(context: Context) -> Value:
    """Ask for each severity, counter and location, in that order."""

    def count(asked: tuple[int, int, int]) -> Value:
        errors: int = context.nvml.nvmlDeviceGetMemoryErrorCounter(context.handle, *asked)
        return errors

    return each(
        context, LOCATION_ERRORS, count, itertools.product(range(SEVERITIES), range(COUNTERS), range(LOCATIONS))
    )


CALLS: Calls = {
    "fast": (
        plain("nvmlDeviceGetTotalEccErrors", 0, 0, shown="CORRECTED, VOLATILE"),
        plain("nvmlDeviceGetTotalEccErrors", 1, 0, shown="UNCORRECTED, VOLATILE"),
    ),
    "slow": (
        plain("nvmlDeviceGetTotalEccErrors", 0, 1, shown="CORRECTED, AGGREGATE"),
        plain("nvmlDeviceGetTotalEccErrors", 1, 1, shown="UNCORRECTED, AGGREGATE"),
        custom(LOCATION_ERRORS, _location_errors),
        struct_call("nvmlDeviceGetSramEccErrorStatus", "<I4x11QI4x", 0x01000068),
        plain("nvmlDeviceGetRemappedRows"),
        struct("nvmlDeviceGetRowRemapperHistogram", "max", "high", "partial", "low", "none"),
    ),
    "static": (plain("nvmlDeviceGetEccMode"),),
}

FIELDS: Fields = {
    "slow": (
        field("retired pages, single_bit", 29),
        field("retired pages, double_bit", 30),
        field("retired pages, pending", 31),
        field("inactive remaps, correctable", 301, since=610),
        field("inactive remaps, uncorrectable", 302, since=610),
    ),
}
