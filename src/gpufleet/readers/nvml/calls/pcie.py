"""The PCIe link. Never `nvmlDeviceGetPcieThroughput`: it measures for 20 ms a direction, and waits for it."""

from gpufleet.readers.nvml.calls.call import Calls, plain
from gpufleet.readers.nvml.calls.fields import Fields, field

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

ERRORS = (
    ("replay_rollover", 95),
    ("l0_to_recovery", 169),
    ("correctable", 173),
    ("naks_received", 174),
    ("receiver", 175),
    ("bad_tlp", 176),
    ("naks_sent", 177),
    ("bad_dllp", 178),
    ("non_fatal", 179),
    ("fatal", 180),
    ("unsupported_request", 181),
    ("lcrc", 182),
    ("lane", 183),
)
"""Kind of error and its field id."""

FIELDS: Fields = {
    # ids that the bindings have named so since branch 560; 550 knew them without a name
    "fast": (field("pcie, transmitted", 197, since=560), field("pcie, received", 198, since=560)),
    "slow": tuple([field(f"pcie error, {kind}", id_, since=535 if id_ > 168 else 0) for kind, id_ in ERRORS]),
}
