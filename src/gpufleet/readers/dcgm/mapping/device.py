"""Device readings of a GPU, which the engine reads live from the driver. Ids are those of dcgm_fields.h."""

from collections.abc import Mapping
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire.values import FieldValue
from gpufleet.fleet.board import (
    drop_activity_without_memory,
    drop_defaults_of_guest,
    drop_unproven_uses,
    drop_zero_identities,
    in_mig_mode,
    is_vgpu_guest,
    unproven_uses,
    without_unproven_uses,
)
from gpufleet.fleet.ecc import ecc_count, proven_ecc_mode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.catalogue.gpu_errors import ROW_AVAILABILITY
from gpufleet.model.products import supports_mig
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.dcgm.mapping.row import DcgmRow, EngineGpuModes, every_field, fields_of, read_row
from gpufleet.readers.dcgm.mapping.units import (
    compute_mode,
    cuda_version,
    float_value,
    integer,
    license_state,
    mebi,
    mega,
    milli,
    nano,
    percent,
    sensor,
    text,
)

DRIVER, NAME, UUID, PCI_BUS_ID, MIG_MODE, ECC_MODE, VIRTUAL_MODE = 1, 50, 54, 57, 67, 300, 500
VGPU_GUEST = 2
"""Value of VIRTUAL_MODE: the engine runs inside a vGPU guest."""

MEMORY_ROWS: tuple[DcgmRow, ...] = (
    DcgmRow("gpu_memory_total_bytes", 250, mebi),
    DcgmRow("gpu_memory_used_bytes", 252, mebi),
    DcgmRow("gpu_memory_free_bytes", 251, mebi),
    DcgmRow("gpu_memory_reserved_bytes", 253, mebi),
    DcgmRow("gpu_bar1_total_bytes", 90, mebi, base=(1600, integer)),
    DcgmRow("gpu_bar1_used_bytes", 92, mebi, base=(1601, integer)),
)
"""Rows of GPUs and MIG devices."""

_CLOCK_EVENTS = {
    240: "sw_power_cap",
    241: "thermal",
    242: "sync_boost",
    243: "board_limit",
    244: "low_utilization",
    245: "reliability",
    246: "applications_clocks",
    247: "base_clocks",
    1422: "sw_thermal",
    1423: "hw_thermal",
    1424: "hw_power_brake",
}
_THRESHOLDS = {159: "shutdown", 158: "slowdown", 151: "memory_max", 152: "gpu_max"}

ECC_ROW = DcgmRow("gpu_ecc_mode", ECC_MODE, integer)

ROWS: tuple[DcgmRow, ...] = (
    DcgmRow("gpu_utilization_ratio", 203, percent),
    DcgmRow("gpu_memory_activity_ratio", 204, percent),
    DcgmRow("gpu_encoder_utilization_ratio", 206, percent),
    DcgmRow("gpu_decoder_utilization_ratio", 207, percent),
    *MEMORY_ROWS,
    DcgmRow("gpu_temperature_celsius", 150, float_value),
    DcgmRow("gpu_memory_temperature_celsius", 140, sensor),
    DcgmRow("gpu_temperature_margin_celsius", 153, float_value),
    *[DcgmRow("gpu_temperature_threshold_celsius", field, float_value, (name,)) for field, name in _THRESHOLDS.items()],
    DcgmRow("gpu_power_watts", 155, float_value),
    DcgmRow("gpu_power_instant_watts", 157, sensor),
    DcgmRow("gpu_power_limit_watts", 164, float_value),
    DcgmRow("gpu_power_default_limit_watts", 163, float_value),
    DcgmRow("gpu_power_requested_limit_watts", 160, float_value),
    DcgmRow("gpu_power_limit_min_watts", 161, float_value),
    DcgmRow("gpu_power_limit_max_watts", 162, float_value),
    DcgmRow("gpu_energy_joules_total", 156, milli, base=(1611, float_value)),
    DcgmRow("gpu_fan_speed_ratio", 191, percent, ("0",), base=(1612, float_value)),
    DcgmRow("gpu_sm_clock_hertz", 100, mega, base=(1603, integer)),
    DcgmRow("gpu_memory_clock_hertz", 101, mega, base=(1604, integer)),
    DcgmRow("gpu_video_clock_hertz", 102, mega, base=(1605, integer)),
    DcgmRow("gpu_sm_clock_max_hertz", 113, mega, base=(1608, integer)),
    DcgmRow("gpu_memory_clock_max_hertz", 114, mega, base=(1609, integer)),
    DcgmRow("gpu_clock_event_reasons_mask", 112, integer),
    *[DcgmRow("gpu_clock_event_seconds_total", field, nano, (name,)) for field, name in _CLOCK_EVENTS.items()],
    DcgmRow("gpu_performance_state", 190, integer),
    ECC_ROW,
    DcgmRow("gpu_ecc_mode_pending", 301, integer),
    DcgmRow("gpu_ecc_corrected_errors_total", 310, integer),
    DcgmRow("gpu_ecc_uncorrected_errors_total", 311, integer),
    DcgmRow("gpu_ecc_corrected_lifetime_errors_total", 312, integer),
    DcgmRow("gpu_ecc_uncorrected_lifetime_errors_total", 313, integer),
    *[DcgmRow("gpu_row_remap_banks", 385 + at, integer, (name,)) for at, name in enumerate(ROW_AVAILABILITY)],
    DcgmRow("gpu_retired_pages", 390, integer, ("single_bit",)),
    DcgmRow("gpu_retired_pages", 391, integer, ("double_bit",)),
    DcgmRow("gpu_retired_pages_pending", 392, integer),
    DcgmRow("gpu_remapped_rows_correctable", 394, integer),
    DcgmRow("gpu_remapped_rows_uncorrectable", 393, integer),
    DcgmRow("gpu_row_remap_pending", 396, integer),
    DcgmRow("gpu_row_remap_failed", 395, integer),
    DcgmRow("gpu_recovery_action", 1523, integer),
    DcgmRow("gpu_pcie_link_generation", 237, integer),
    DcgmRow("gpu_pcie_link_width", 238, integer),
    DcgmRow("gpu_pcie_link_generation_max", 235, integer),
    DcgmRow("gpu_pcie_link_width_max", 236, integer),
    DcgmRow("gpu_pcie_replays_total", 202, integer),
    DcgmRow("gpu_mig_mode", MIG_MODE, integer),
    DcgmRow("gpu_persistence_mode", 66, integer),
    DcgmRow("gpu_compute_mode", 65, compute_mode),
    DcgmRow("gpu_virtualization_mode", VIRTUAL_MODE, integer),
    DcgmRow("gpu_name", NAME, text),
    DcgmRow("gpu_serial", 53, text),
    DcgmRow("gpu_vbios_version", 85, text),
    DcgmRow("gpu_minor_number", 55, text),
)
"""Readings of a GPU with one field each."""

_NAME_ROW = next(row for row in ROWS if row.field == NAME)
_LICENSE = DcgmRow("vgpu_license_state", 526, license_state)
"""Reported inside a vGPU guest only."""

MACHINE_ROWS: tuple[DcgmRow, ...] = (
    DcgmRow("nvidia_driver_version", DRIVER, text),
    DcgmRow("nvidia_library_version", 2, text),
    DcgmRow("nvidia_cuda_version", 5, cuda_version),
)
"""Readings of the engine's machine, which every GPU repeats."""

MASK, REASON, STATE = "gpu_clock_event_reasons_mask", "gpu_clock_event_active", "gpu_state"
IDENTITY = (NAME, UUID, PCI_BUS_ID, MIG_MODE, ECC_MODE, VIRTUAL_MODE)
"""Fields requested in every pass: identity, product and modes."""

_LANES = (Lane.FAST, Lane.SLOW, Lane.STATIC)


def _by_lane(*rows: DcgmRow) -> dict[Lane, tuple[DcgmRow, ...]]:
    return {lane: tuple(row for row in rows if CATALOGUE[row.metric].lane is lane) for lane in _LANES}


_GPU_ROWS, _GUEST_ROWS = _by_lane(*ROWS), _by_lane(*ROWS, _LICENSE)
_ROWS = _by_lane(*ROWS, *MACHINE_ROWS, _LICENSE)
EVERY_FIELD = tuple(sorted({*IDENTITY, *(field for rows in _ROWS.values() for field in every_field(rows))}))
"""All fields that can be requested."""


class DeviceReadings(NamedTuple):
    """Values by metric, and values with dimensions."""

    values: dict[str, Value | Absent]
    dims: tuple[DimValue, ...]


def device_fields(lane: Lane, unknown: frozenset[int]) -> tuple[int, ...]:
    """Return the fields to request in a pass of a lane; `unknown` are fields that the engine does not know."""
    wanted = {*IDENTITY, *fields_of(_ROWS[lane], unknown)} - unknown
    return tuple(sorted(wanted))


def map_device(
    values: Mapping[int, FieldValue], lane: Lane, modes: EngineGpuModes, unknown: frozenset[int] = frozenset()
) -> DeviceReadings:
    """Return a GPU's readings of a lane from its values by field."""
    rows = {row: read_row(row, values, modes, unknown) for row in _rows_of(lane, modes)}
    mode = proven_ecc_mode(modes.ecc, [(row.metric, value) for row, value in rows.items()])
    where = f"DCGM {ECC_MODE}"
    rows = {row: ecc_count(row.metric, value, mode, where) for row, value in rows.items()}
    if modes.mig:
        rows = {row: in_mig_mode(row.metric, value) for row, value in rows.items()}
    readings = _readings(lane, rows)
    product = product_name(values, modes, unknown)
    unproven = unproven_uses(product)
    drop_unproven_uses(readings.values, unproven)
    dims = without_unproven_uses(readings.dims, unproven)
    if modes.guest or is_vgpu_guest(product, None):
        dims = drop_defaults_of_guest(readings.values, dims)
    _drop_unproven_mig_mode(readings.values, product)
    return readings._replace(dims=dims)


def product_name(
    values: Mapping[int, FieldValue], modes: EngineGpuModes, unknown: frozenset[int] = frozenset()
) -> Value | Absent:
    """Return the product name of a GPU, which is requested in every pass."""
    return read_row(_NAME_ROW, values, modes, unknown)


def _drop_unproven_mig_mode(values: dict[str, Value | Absent], product: Value | Absent) -> None:
    """Replace a disabled MIG mode, unless the product is known to support MIG: DCGM reports it for every chip."""
    if values.get("gpu_mig_mode") == "disabled" and not (isinstance(product, str) and supports_mig(product)):
        values["gpu_mig_mode"] = Absent(Reason.NO_DATA, f"DCGM {MIG_MODE}")


def ecc_mode(values: Mapping[int, FieldValue]) -> Value | Absent:
    """Return the ECC mode of a GPU."""
    return read_row(ECC_ROW, values, EngineGpuModes(), frozenset())


def absent_device(why: Absent, lane: Lane) -> DeviceReadings:
    """Return the readings of a GPU that cannot be read."""
    return _readings(lane, dict.fromkeys(_rows_of(lane, EngineGpuModes()), why))


def _rows_of(lane: Lane, modes: EngineGpuModes) -> tuple[DcgmRow, ...]:
    return _GUEST_ROWS[lane] if modes.guest else _GPU_ROWS[lane]


def _readings(lane: Lane, rows: Mapping[DcgmRow, Value | Absent]) -> DeviceReadings:
    values = {row.metric: value for row, value in rows.items() if not row.labels}
    drop_zero_identities(values)
    drop_activity_without_memory(values)
    supported = {row.metric for row, value in rows.items() if row.labels and not isinstance(value, Absent)}
    dims = [
        DimValue(row.metric, row.labels, value)
        for row, value in rows.items()
        if row.labels and not (row.metric in supported and _unsupported(value))
    ]
    return DeviceReadings(values, (*(_active_reasons(values[MASK]) if lane is Lane.FAST else ()), *dims))


def _unsupported(value: Value | Absent) -> bool:
    """Return whether the board lacks this label; such labels are omitted if the metric has others."""
    return isinstance(value, Absent) and value.reason in (Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER)


def _active_reasons(mask: Value | Absent) -> tuple[DimValue, ...]:
    if isinstance(mask, int):
        return tuple(DimValue(REASON, (name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS)
    why = mask if isinstance(mask, Absent) else Absent(Reason.INVALID_VALUE)
    return tuple(DimValue(REASON, (name,), why) for name, _ in CLOCK_EVENT_REASONS)
