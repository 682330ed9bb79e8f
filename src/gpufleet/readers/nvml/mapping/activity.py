"""Rows for GPM activity, and for the number of processes."""

from gpufleet.readers.nvml.calls.activity import (
    COMPUTE_PROCESSES,
    GPM_METRICS,
    GPM_SUPPORT,
    GRAPHICS_PROCESSES,
    MIG_SAMPLE,
    MPS_PROCESSES,
)
from gpufleet.readers.nvml.mapping.row import Convert, MetricRow
from gpufleet.readers.nvml.mapping.units import count, mebi, percent

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


def _gpm(metric: str, number: int, convert: Convert, call: str = GPM_SUPPORT) -> MetricRow:
    return MetricRow(metric, call, convert, entry=GPM_METRICS.index(number), inner=f"GPM {number}")


PROCESS_ROWS = (
    MetricRow("gpu_compute_processes", COMPUTE_PROCESSES, count),
    MetricRow("gpu_graphics_processes", GRAPHICS_PROCESSES, count),
    MetricRow("gpu_mps_processes", MPS_PROCESSES, count),
)
"""Readings of a GPU or a MIG device."""

ROWS = (
    *[_gpm(metric, number, percent) for metric, number in _ACTIVITIES],
    *[_gpm(metric, number, mebi) for metric, number in _TRAFFIC],
    *PROCESS_ROWS,
)

MIG_ROWS = tuple([_gpm(metric, number, percent, MIG_SAMPLE) for metric, number in _ACTIVITIES])
"""Readings of a MIG device: activity of its GPU instance."""
