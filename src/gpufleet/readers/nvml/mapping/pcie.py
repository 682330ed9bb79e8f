"""The PCIe link."""

from gpufleet.readers.nvml.calls.pcie import ERRORS
from gpufleet.readers.nvml.mapping.row import Row, field_row, field_table
from gpufleet.readers.nvml.mapping.units import same

ROWS = (
    Row("gpu_pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration", same),
    Row("gpu_pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth", same),
    Row("gpu_pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", same),
    Row("gpu_pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth", same),
    Row("gpu_pcie_replays_total", "nvmlDeviceGetPcieReplayCounter", same),
    field_row("gpu_pcie_transmit_bytes_total", "pcie, transmitted", same, bits=64),
    field_row("gpu_pcie_receive_bytes_total", "pcie, received", same, bits=64),
    field_table("gpu_pcie_errors_total", "pcie error", tuple([kind for kind, _ in ERRORS]), same),
)
