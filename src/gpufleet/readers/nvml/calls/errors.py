"""Calls for memory errors, retired pages and remapped rows."""

import itertools

from gpufleet.readers.nvml.calls.call import Calls, attributes, custom, getter, query_each, raw_struct
from gpufleet.readers.nvml.calls.fields import Fields, field
from gpufleet.readers.nvml.context import Context
from gpufleet.readers.nvml.protocol import Value

LOCATION_ERRORS = "nvmlDeviceGetMemoryErrorCounter"
SEVERITIES, COUNTERS, LOCATIONS = 2, 2, 8
"""Corrected and uncorrected; volatile and aggregate; number of values of nvmlMemoryLocation_t."""

MIG_SRAM_ERRORS = getter(LOCATION_ERRORS, 1, 0, 7, shown="UNCORRECTED, VOLATILE, SRAM")
"""The only memory errors that the driver counts for a MIG device (nvml.h)."""

REPAIR_STATUS, UNREPAIRABLE = "nvmlDeviceGetRepairStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1"


def _ecc_mode(context: Context) -> Value:
    """Query the current mode, 0 or 1."""
    mode: int = context.nvml.nvmlDeviceGetEccMode(context.handle)[0]
    return mode


HAS_ECC = custom("nvmlDeviceGetEccMode(current)", _ecc_mode)
"""Whether the GPU counts memory errors. The driver returns zeros for some counts while ECC is off."""


def _location_errors(context: Context) -> Value:
    """Query each severity, counter and location, in that order."""

    def count(arguments: tuple[int, int, int]) -> Value:
        errors: int = context.nvml.nvmlDeviceGetMemoryErrorCounter(context.handle, *arguments)
        return errors

    return query_each(
        context, LOCATION_ERRORS, count, itertools.product(range(SEVERITIES), range(COUNTERS), range(LOCATIONS))
    )


CALLS: Calls = {
    "fast": (
        getter("nvmlDeviceGetTotalEccErrors", 0, 0, shown="CORRECTED, VOLATILE"),
        getter("nvmlDeviceGetTotalEccErrors", 1, 0, shown="UNCORRECTED, VOLATILE"),
    ),
    "slow": (
        getter("nvmlDeviceGetTotalEccErrors", 0, 1, shown="CORRECTED, AGGREGATE"),
        getter("nvmlDeviceGetTotalEccErrors", 1, 1, shown="UNCORRECTED, AGGREGATE"),
        custom(LOCATION_ERRORS, _location_errors),
        raw_struct("nvmlDeviceGetSramEccErrorStatus", "<I4x11QI4x", 0x01000068),
        raw_struct(REPAIR_STATUS, "<III", 0x0100000C),
        raw_struct(UNREPAIRABLE, "<II", 0x01000008),
        getter("nvmlDeviceGetRemappedRows"),
        attributes("nvmlDeviceGetRowRemapperHistogram", "max", "high", "partial", "low", "none"),
    ),
    "static": (getter("nvmlDeviceGetEccMode"),),
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
