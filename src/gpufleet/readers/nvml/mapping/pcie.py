"""The PCIe link."""

from gpufleet.readers.nvml.mapping.row import Row
from gpufleet.readers.nvml.mapping.units import same

ROWS = (
    Row("gpu_pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration", same),
    Row("gpu_pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth", same),
    Row("gpu_pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", same),
    Row("gpu_pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth", same),
    Row("gpu_pcie_replays_total", "nvmlDeviceGetPcieReplayCounter", same),
)
