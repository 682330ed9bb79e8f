"""Rows of the catalogue about memory errors by location, and their repair. Ids 100 to 109, 560 to 569."""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import Absence
from gpufleet.model.catalogue.row import (
    COUNTER,
    DIM,
    GAUGE,
    GPU_MIG,
    GUEST,
    INT,
    OLD_CHIP,
    OLD_DRIVER,
    SLOW,
    TAIL,
    row,
)

NO_ECC = Absence(Reason.NOT_SUPPORTED, "the memory has no ECC or it is off")
ROWS_INSTEAD = Absence(Reason.NOT_SUPPORTED, "Ampere and newer remap rows instead of retiring pages")

ECC_LOCATIONS = ("l1_cache", "l2_cache", "dram", "register_file", "texture_memory", "texture_shm", "cbu", "sram")
"""nvmlMemoryLocation_t, by number."""

ROW_AVAILABILITY = ("max", "high", "partial", "low", "none")
"""nvmlRowRemapperHistogramValues_t, in its order."""

# fmt: off
ERROR_METRICS = (
    row(100, "gpu_ecc_location_errors_total", COUNTER, INT, "",
        "Memory errors since the driver was loaded, by location and ECC result; only locations that this chip "
        "counts, and of a MIG device only uncorrected errors of SRAM",
        lane=SLOW, storage=DIM, dims=("location", "severity"), subjects=GPU_MIG,
        nvml=("nvmlDeviceGetMemoryErrorCounter(VOLATILE)",), absent=(NO_ECC,)),
    row(101, "gpu_ecc_location_lifetime_errors_total", COUNTER, INT, "",
        "Memory errors over the board's life, by location and ECC result; only locations that this chip counts",
        lane=SLOW, storage=DIM, dims=("location", "severity"), nvml=("nvmlDeviceGetMemoryErrorCounter(AGGREGATE)",),
        absent=(NO_ECC,)),
    row(102, "gpu_sram_errors_total", COUNTER, INT, "",
        "Errors in on-chip memory since the driver was loaded: corrected, or not and found by parity or SEC-DED",
        lane=SLOW, storage=DIM, dims=("error",), nvml=("nvmlDeviceGetSramEccErrorStatus",),
        absent=(NO_ECC, OLD_DRIVER)),
    row(103, "gpu_sram_lifetime_errors_total", COUNTER, INT, "",
        "Errors in on-chip memory over the board's life: corrected, or not and found by parity or SEC-DED",
        lane=SLOW, storage=DIM, dims=("error",), nvml=("nvmlDeviceGetSramEccErrorStatus",),
        absent=(NO_ECC, OLD_DRIVER)),
    row(104, "gpu_sram_uncorrected_lifetime_errors_total", COUNTER, INT, "",
        "Uncorrected errors in on-chip memory over the board's life, by unit of the chip",
        lane=SLOW, storage=DIM, dims=("unit",), nvml=("nvmlDeviceGetSramEccErrorStatus",), absent=(NO_ECC, OLD_DRIVER)),
    row(105, "gpu_sram_threshold_exceeded", GAUGE, INT, "",
        "1 if uncorrected errors in on-chip memory exceed the threshold for replacing the board, else 0",
        high=1, lane=SLOW, storage=TAIL, nvml=("nvmlDeviceGetSramEccErrorStatus.bThresholdExceeded",),
        smi=("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",),
        absent=(NO_ECC, OLD_DRIVER)),
    row(106, "gpu_row_remap_banks", GAUGE, INT, "",
        "Memory banks by availability of spare rows",
        lane=SLOW, storage=DIM, dims=("availability",), nvml=("nvmlDeviceGetRowRemapperHistogram",),
        dcgm=(385, 386, 387, 388, 389),
        smi=tuple(f"remapped_rows.histogram.{name}" for name in ROW_AVAILABILITY), absent=(OLD_CHIP, GUEST)),
    row(107, "gpu_remapped_rows_inactive", GAUGE, INT, "",
        "Recorded row remaps that take effect at the next reset, by cause",
        lane=SLOW, storage=DIM, dims=("cause",), nvml=("FI 301", "FI 302"),
        smi=("remapped_rows.correctable_inactive", "remapped_rows.uncorrectable_inactive"),
        absent=(OLD_CHIP, OLD_DRIVER, GUEST)),
    row(108, "gpu_retired_pages", GAUGE, INT, "", "Retired memory pages, by cause",
        lane=SLOW, storage=DIM, dims=("cause",), nvml=("FI 29", "FI 30"), dcgm=(390, 391),
        smi=("retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count"),
        absent=(ROWS_INSTEAD, NO_ECC, GUEST)),
    row(109, "gpu_retired_pages_pending", GAUGE, INT, "", "1 if pages will be retired at the next restart, else 0",
        high=1, lane=SLOW, storage=TAIL, nvml=("FI 31",), dcgm=(392,), smi=("retired_pages.pending",),
        absent=(ROWS_INSTEAD, NO_ECC, GUEST)),
    row(560, "gpu_channel_repair_pending", GAUGE, INT, "",
        "1 if a memory channel will be repaired at the next GPU reset, else 0",
        high=1, lane=SLOW, storage=TAIL, nvml=("nvmlDeviceGetRepairStatus.bChannelRepairPending",),
        absent=(OLD_CHIP, OLD_DRIVER, GUEST)),
    row(561, "gpu_tpc_repair_pending", GAUGE, INT, "",
        "1 if a texture processing cluster (TPC) will be repaired at the next GPU reset, else 0",
        high=1, lane=SLOW, storage=TAIL, nvml=("nvmlDeviceGetRepairStatus.bTpcRepairPending",),
        absent=(OLD_CHIP, OLD_DRIVER, GUEST)),
    row(562, "gpu_unrepairable_memory", GAUGE, INT, "",
        "1 if the device memory has errors that cannot be repaired (the board should be replaced), else 0",
        high=1, lane=SLOW, storage=TAIL, nvml=("nvmlDeviceGetUnrepairableMemoryFlag_v1",),
        absent=(OLD_CHIP, OLD_DRIVER, GUEST)),
)
# fmt: on
