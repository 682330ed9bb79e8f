"""Processes on a device."""

from gpufleet.readers.nvml.mapping.row import Row
from gpufleet.readers.nvml.mapping.units import same

ROWS = (Row("gpu_compute_processes", "nvmlDeviceGetComputeRunningProcesses_v3", same),)
