"""The PCIe link. Never `nvmlDeviceGetPcieThroughput`: it measures for 20 ms a direction, and waits for it."""

from gpufleet.readers.nvml.calls.call import Calls, plain
from gpufleet.readers.nvml.calls.fields import Fields

CALLS: Calls = {
    "fast": (
        plain("nvmlDeviceGetCurrPcieLinkGeneration"),
        plain("nvmlDeviceGetCurrPcieLinkWidth"),
        plain("nvmlDeviceGetPcieReplayCounter"),
    ),
    "static": (
        plain("nvmlDeviceGetMaxPcieLinkGeneration"),
        plain("nvmlDeviceGetMaxPcieLinkWidth"),
    ),
}

FIELDS: Fields = {}
