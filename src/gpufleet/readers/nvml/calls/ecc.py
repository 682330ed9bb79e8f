"""Memory errors, and what was done about them."""

from gpufleet.readers.nvml.calls.call import Calls, plain
from gpufleet.readers.nvml.calls.fields import Fields

CALLS: Calls = {
    "fast": (
        plain("nvmlDeviceGetTotalEccErrors", 0, 0, shown="CORRECTED, VOLATILE"),
        plain("nvmlDeviceGetTotalEccErrors", 1, 0, shown="UNCORRECTED, VOLATILE"),
    ),
    "slow": (
        plain("nvmlDeviceGetTotalEccErrors", 0, 1, shown="CORRECTED, AGGREGATE"),
        plain("nvmlDeviceGetTotalEccErrors", 1, 1, shown="UNCORRECTED, AGGREGATE"),
        plain("nvmlDeviceGetRemappedRows"),
    ),
    "static": (plain("nvmlDeviceGetEccMode"),),
}

FIELDS: Fields = {}
