"""How busy the engines are."""

from gpufleet.readers.nvml.mapping.row import Row
from gpufleet.readers.nvml.mapping.units import percent

ROWS = (
    Row("gpu_utilization_ratio", "nvmlDeviceGetUtilizationRates", percent, 0),
    Row("gpu_memory_activity_ratio", "nvmlDeviceGetUtilizationRates", percent, 1),
    Row("gpu_encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", percent),
    Row("gpu_decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", percent),
    Row("gpu_jpeg_utilization_ratio", "nvmlDeviceGetJpgUtilization", percent),
    Row("gpu_ofa_utilization_ratio", "nvmlDeviceGetOfaUtilization", percent),
)
