"""Memory errors, and what was done about them."""

from gpufleet.model.catalogue.gpu_errors import ECC_LOCATIONS, ROW_AVAILABILITY
from gpufleet.readers.nvml.calls.ecc import COUNTERS, LOCATION_ERRORS, LOCATIONS
from gpufleet.readers.nvml.mapping.row import Row, field_row, field_table
from gpufleet.readers.nvml.mapping.units import same

_SRAM, _HISTOGRAM = "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetRowRemapperHistogram"
_ECC, _ROWS = "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows"


def _locations(metric: str, severity: int, counter: int) -> Row:
    first = (severity * COUNTERS + counter) * LOCATIONS
    return Row(
        metric,
        LOCATION_ERRORS,
        same,
        every=True,
        names=ECC_LOCATIONS,
        positions=tuple(range(first, first + LOCATIONS)),
        sparse=True,
        labels=(("corrected", "uncorrected")[severity],),
        bits=64,
    )


def _sram(metric: str, part: int, label: str) -> Row:
    return Row(metric, _SRAM, same, part, labels=(label,), bits=64)


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
    Row("gpu_ecc_mode_pending", "nvmlDeviceGetEccMode", None, 1),
    *[_locations("gpu_ecc_location_errors_total", severity, 0) for severity in (0, 1)],
    *[_locations("gpu_ecc_location_lifetime_errors_total", severity, 1) for severity in (0, 1)],
    _sram("gpu_sram_lifetime_errors_total", 0, "parity"),
    _sram("gpu_sram_lifetime_errors_total", 1, "secded"),
    _sram("gpu_sram_lifetime_errors_total", 2, "corrected"),
    _sram("gpu_sram_errors_total", 3, "parity"),
    _sram("gpu_sram_errors_total", 4, "secded"),
    _sram("gpu_sram_errors_total", 5, "corrected"),
    _sram("gpu_sram_uncorrected_lifetime_errors_total", 6, "l2_cache"),
    _sram("gpu_sram_uncorrected_lifetime_errors_total", 7, "sm"),
    _sram("gpu_sram_uncorrected_lifetime_errors_total", 8, "pcie"),
    _sram("gpu_sram_uncorrected_lifetime_errors_total", 9, "microcontroller"),
    _sram("gpu_sram_uncorrected_lifetime_errors_total", 10, "other"),
    Row("gpu_sram_threshold_exceeded", _SRAM, same, 11),
    *[Row("gpu_row_remap_banks", _HISTOGRAM, same, n, labels=(name,)) for n, name in enumerate(ROW_AVAILABILITY)],
    field_table("gpu_remapped_rows_inactive", "inactive remaps", ("correctable", "uncorrectable"), same, bits=32),
    field_table("gpu_retired_pages", "retired pages", ("single_bit", "double_bit"), same, bits=32),
    field_row("gpu_retired_pages_pending", "retired pages, pending", same),
)
