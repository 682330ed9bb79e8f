"""Rows for memory errors, retired pages and remapped rows."""

from gpufleet.model.catalogue.gpu_errors import ECC_LOCATIONS, ROW_AVAILABILITY
from gpufleet.readers.nvml.calls.errors import (
    COUNTERS,
    LOCATION_ERRORS,
    LOCATIONS,
    MIG_SRAM_ERRORS,
    REPAIR_STATUS,
    UNREPAIRABLE,
)
from gpufleet.readers.nvml.mapping.row import MetricRow, field_row, field_table
from gpufleet.readers.nvml.mapping.units import same

_ECC, _SRAM = "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetSramEccErrorStatus"
_REMAPPED, _HISTOGRAM = "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRowRemapperHistogram"


def _locations(metric: str, severity: int, counter: int) -> MetricRow:
    first = (severity * COUNTERS + counter) * LOCATIONS
    return MetricRow(
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


def _sram(metric: str, part: int, label: str) -> MetricRow:
    return MetricRow(metric, _SRAM, same, part, labels=(label,), bits=64)


ROWS = (
    MetricRow("gpu_ecc_corrected_errors_total", f"{_ECC}(CORRECTED, VOLATILE)", same, bits=64),
    MetricRow("gpu_ecc_uncorrected_errors_total", f"{_ECC}(UNCORRECTED, VOLATILE)", same, bits=64),
    MetricRow("gpu_ecc_corrected_lifetime_errors_total", f"{_ECC}(CORRECTED, AGGREGATE)", same, bits=64),
    MetricRow("gpu_ecc_uncorrected_lifetime_errors_total", f"{_ECC}(UNCORRECTED, AGGREGATE)", same, bits=64),
    MetricRow("gpu_remapped_rows_correctable", _REMAPPED, same, 0),
    MetricRow("gpu_remapped_rows_uncorrectable", _REMAPPED, same, 1),
    MetricRow("gpu_row_remap_pending", _REMAPPED, same, 2),
    MetricRow("gpu_row_remap_failed", _REMAPPED, same, 3),
    MetricRow("gpu_ecc_mode", "nvmlDeviceGetEccMode", None, 0),
    MetricRow("gpu_ecc_mode_pending", "nvmlDeviceGetEccMode", None, 1),
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
    MetricRow("gpu_sram_threshold_exceeded", _SRAM, same, 11),
    *[MetricRow("gpu_row_remap_banks", _HISTOGRAM, same, n, labels=(name,)) for n, name in enumerate(ROW_AVAILABILITY)],
    field_table("gpu_remapped_rows_inactive", "inactive remaps", ("correctable", "uncorrectable"), same, bits=32),
    field_table("gpu_retired_pages", "retired pages", ("single_bit", "double_bit"), same, bits=32),
    field_row("gpu_retired_pages_pending", "retired pages, pending", same),
    MetricRow("gpu_channel_repair_pending", REPAIR_STATUS, same, 0),
    MetricRow("gpu_tpc_repair_pending", REPAIR_STATUS, same, 1),
    MetricRow("gpu_unrepairable_memory", UNREPAIRABLE, same, 0),
)

MIG_ROWS = (
    MetricRow("gpu_ecc_location_errors_total", MIG_SRAM_ERRORS.key, same, labels=("sram", "uncorrected"), bits=64),
)
"""Readings of a MIG device."""
