"""Processes on a device."""

from gpufleet.readers.nvml.calls.processes import COMPUTE, GRAPHICS, MPS
from gpufleet.readers.nvml.mapping.row import Row
from gpufleet.readers.nvml.mapping.units import count

ROWS = (
    Row("gpu_compute_processes", COMPUTE, count),
    Row("gpu_graphics_processes", GRAPHICS, count),
    Row("gpu_mps_processes", MPS, count),
)
