"""Memory errors, and what was done about them."""

from gpufleet.readers.nvml.mapping.row import Row
from gpufleet.readers.nvml.mapping.units import same

_ECC, _ROWS = "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows"

ROWS = (
    Row("gpu_ecc_corrected_errors_total", f"{_ECC}(CORRECTED, VOLATILE)", same, bits=64),
    Row("gpu_ecc_uncorrected_errors_total", f"{_ECC}(UNCORRECTED, VOLATILE)", same, bits=64),
    Row("gpu_ecc_corrected_lifetime_errors_total", f"{_ECC}(CORRECTED, AGGREGATE)", same, bits=64),
    Row("gpu_ecc_uncorrected_lifetime_errors_total", f"{_ECC}(UNCORRECTED, AGGREGATE)", same, bits=64),
    Row("gpu_remapped_rows_correctable", _ROWS, same, 0),
    Row("gpu_remapped_rows_uncorrectable", _ROWS, same, 1),
    Row("gpu_row_remap_pending", _ROWS, same, 2),
    Row("gpu_row_remap_failed", _ROWS, same, 3),
    Row("gpu_ecc_mode", "nvmlDeviceGetEccMode", None, 0),
)
