"""GPM: what the parts of the chip did between two samples."""

from gpufleet.readers.nvml.calls.gpm import METRICS, MIG_SAMPLE, SUPPORT
from gpufleet.readers.nvml.mapping.row import Convert, Row
from gpufleet.readers.nvml.mapping.units import mebi, percent

_ACTIVITIES = (
    ("gpu_graphics_activity_ratio", 1),
    ("gpu_sm_activity_ratio", 2),
    ("gpu_sm_occupancy_ratio", 3),
    ("gpu_integer_activity_ratio", 4),
    ("gpu_tensor_activity_ratio", 5),
    ("gpu_tensor_fp64_activity_ratio", 6),
    ("gpu_tensor_half_activity_ratio", 7),
    ("gpu_tensor_integer_activity_ratio", 9),
    ("gpu_dram_activity_ratio", 10),
    ("gpu_fp64_activity_ratio", 11),
    ("gpu_fp32_activity_ratio", 12),
    ("gpu_fp16_activity_ratio", 13),
)
_TRAFFIC = (
    ("gpu_pcie_transmit_bytes_per_second", 20),
    ("gpu_pcie_receive_bytes_per_second", 21),
    ("gpu_nvlink_transmit_bytes_per_second", 61),
    ("gpu_nvlink_receive_bytes_per_second", 60),
)


def _row(metric: str, number: int, convert: Convert, call: str = SUPPORT) -> Row:
    return Row(metric, call, convert, entry=METRICS.index(number), inner=f"GPM {number}")


ROWS = (
    *[_row(metric, number, percent) for metric, number in _ACTIVITIES],
    *[_row(metric, number, mebi) for metric, number in _TRAFFIC],
)

PART_ROWS = tuple([_row(metric, number, percent, MIG_SAMPLE) for metric, number in _ACTIVITIES])
"""Of a MIG device: its GPU instance's."""
