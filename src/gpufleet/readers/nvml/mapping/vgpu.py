"""vGPU instances."""

from gpufleet.readers.nvml.mapping.row import Row

ROWS: tuple[Row, ...] = ()
