"""What a GPU says of itself, read from its driver at the instant of asking. Ids are those of dcgm_fields.h."""

from collections.abc import Mapping
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire.values import FieldValue
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.catalogue.gpu_errors import ROW_AVAILABILITY
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.dcgm.mapping.row import Modes, Row, every_field, fields_of, read
from gpufleet.readers.dcgm.mapping.units import (
    cuda_version,
    license_state,
    mebi,
    mega,
    milli,
    nano,
    percent,
    real,
    same,
    sensor,
    text,
)

DRIVER, UUID, PCI_BUS_ID, MIG_MODE, VIRTUAL_MODE = 1, 54, 57, 67, 500
VGPU_GUEST = 2
"""Value of VIRTUAL_MODE: the engine runs inside a vGPU guest."""

MEMORY_ROWS: tuple[Row, ...] = (
    Row("gpu_memory_total_bytes", 250, mebi),
    Row("gpu_memory_used_bytes", 252, mebi),
    Row("gpu_memory_free_bytes", 251, mebi),
    Row("gpu_memory_reserved_bytes", 253, mebi),
    Row("gpu_bar1_total_bytes", 90, mebi, base=(1600, same)),
    Row("gpu_bar1_used_bytes", 92, mebi, base=(1601, same)),
)
"""Told of GPUs and of their parts."""

_HELD_DOWN = {
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

ROWS: tuple[Row, ...] = (
    Row("gpu_utilization_ratio", 203, percent),
    Row("gpu_memory_activity_ratio", 204, percent),
    Row("gpu_encoder_utilization_ratio", 206, percent),
    Row("gpu_decoder_utilization_ratio", 207, percent),
    *MEMORY_ROWS,
    Row("gpu_temperature_celsius", 150, real),
    Row("gpu_memory_temperature_celsius", 140, sensor),
    Row("gpu_temperature_margin_celsius", 153, real),
    *[Row("gpu_temperature_threshold_celsius", field, real, (name,)) for field, name in _THRESHOLDS.items()],
    Row("gpu_power_watts", 155, real),
    Row("gpu_power_instant_watts", 157, real),
    Row("gpu_power_limit_watts", 164, real),
    Row("gpu_power_default_limit_watts", 163, real),
    Row("gpu_power_requested_limit_watts", 160, real),
    Row("gpu_power_limit_min_watts", 161, real),
    Row("gpu_power_limit_max_watts", 162, real),
    Row("gpu_energy_joules_total", 156, milli, base=(1611, real)),
    Row("gpu_fan_speed_ratio", 191, percent, ("0",), base=(1612, real)),
    Row("gpu_sm_clock_hertz", 100, mega, base=(1603, same)),
    Row("gpu_memory_clock_hertz", 101, mega, base=(1604, same)),
    Row("gpu_video_clock_hertz", 102, mega, base=(1605, same)),
    Row("gpu_sm_clock_max_hertz", 113, mega, base=(1608, same)),
    Row("gpu_memory_clock_max_hertz", 114, mega, base=(1609, same)),
    Row("gpu_clock_event_reasons_mask", 112, same),
    *[Row("gpu_clock_event_seconds_total", field, nano, (name,)) for field, name in _HELD_DOWN.items()],
    Row("gpu_performance_state", 190, same),
    Row("gpu_ecc_mode", 300, same),
    Row("gpu_ecc_mode_pending", 301, same),
    Row("gpu_ecc_corrected_errors_total", 310, same),
    Row("gpu_ecc_uncorrected_errors_total", 311, same),
    Row("gpu_ecc_corrected_lifetime_errors_total", 312, same),
    Row("gpu_ecc_uncorrected_lifetime_errors_total", 313, same),
    *[Row("gpu_row_remap_banks", 385 + at, same, (name,)) for at, name in enumerate(ROW_AVAILABILITY)],
    Row("gpu_retired_pages", 390, same, ("single_bit",)),
    Row("gpu_retired_pages", 391, same, ("double_bit",)),
    Row("gpu_retired_pages_pending", 392, same),
    Row("gpu_remapped_rows_correctable", 394, same),
    Row("gpu_remapped_rows_uncorrectable", 393, same),
    Row("gpu_row_remap_pending", 396, same),
    Row("gpu_row_remap_failed", 395, same),
    Row("gpu_recovery_action", 1523, same),
    Row("gpu_pcie_link_generation", 237, same),
    Row("gpu_pcie_link_width", 238, same),
    Row("gpu_pcie_link_generation_max", 235, same),
    Row("gpu_pcie_link_width_max", 236, same),
    Row("gpu_pcie_replays_total", 202, same),
    Row("gpu_mig_mode", MIG_MODE, same),
    Row("gpu_persistence_mode", 66, same),
    Row("gpu_compute_mode", 65, same),
    Row("gpu_virtualization_mode", VIRTUAL_MODE, same),
    Row("gpu_name", 50, text),
    Row("gpu_serial", 53, text),
    Row("gpu_vbios_version", 85, text),
    Row("gpu_minor_number", 55, text),
)
"""Readings of a GPU that come from one field each."""

_LICENSE = Row("vgpu_license_state", 526, license_state)
"""Told inside a vGPU guest only."""

MACHINE_ROWS: tuple[Row, ...] = (
    Row("nvidia_driver_version", DRIVER, text),
    Row("nvidia_library_version", 2, text),
    Row("nvidia_cuda_version", 5, cuda_version),
)
"""Readings of the engine's machine, which every GPU of it repeats."""

MASK, REASON, STATE = "gpu_clock_event_reasons_mask", "gpu_clock_event_active", "gpu_state"
IDENTITY = (DRIVER, UUID, PCI_BUS_ID, MIG_MODE, VIRTUAL_MODE)
"""Asked for in every pass."""

_LANES = (Lane.FAST, Lane.SLOW, Lane.STATIC)


def _by_lane(*rows: Row) -> dict[Lane, tuple[Row, ...]]:
    return {lane: tuple(row for row in rows if CATALOGUE[row.metric].lane is lane) for lane in _LANES}


_OF_GPUS, _OF_GUESTS = _by_lane(*ROWS), _by_lane(*ROWS, _LICENSE)
_ROWS = _by_lane(*ROWS, *MACHINE_ROWS, _LICENSE)
EVERY_FIELD = tuple(sorted({*IDENTITY, *(field for rows in _ROWS.values() for field in every_field(rows))}))
"""All that can be asked for."""


class DeviceReadings(NamedTuple):
    """Values by metric, and those with dimensions."""

    values: dict[str, Value | Absent]
    dims: tuple[DimValue, ...]


def device_fields(lane: Lane, unknown: frozenset[int]) -> tuple[int, ...]:
    """Return the fields to ask for in a pass of a lane; `unknown` is what the engine does not know."""
    wanted = {*IDENTITY, *fields_of(_ROWS[lane], unknown)} - unknown
    return tuple(sorted(wanted))


def map_device(
    values: Mapping[int, FieldValue], lane: Lane, modes: Modes, unknown: frozenset[int] = frozenset()
) -> DeviceReadings:
    """Return a GPU's readings of a lane from its values by field."""
    return _readings(lane, {row: read(row, values, modes, unknown) for row in _told(lane, modes)})


def absent_device(why: Absent, lane: Lane) -> DeviceReadings:
    """Return the readings of a GPU that gave nothing."""
    return _readings(lane, dict.fromkeys(_told(lane, Modes()), why))


def _told(lane: Lane, modes: Modes) -> tuple[Row, ...]:
    return _OF_GUESTS[lane] if modes.guest else _OF_GPUS[lane]


def _readings(lane: Lane, told: Mapping[Row, Value | Absent]) -> DeviceReadings:
    values = {row.metric: value for row, value in told.items() if not row.labels}
    has = {row.metric for row, value in told.items() if row.labels and not isinstance(value, Absent)}
    dims = [
        DimValue(row.metric, row.labels, value)
        for row, value in told.items()
        if row.labels and not (row.metric in has and _unsupported(value))
    ]
    return DeviceReadings(values, (*(_active(values[MASK]) if lane is Lane.FAST else ()), *dims))


def _unsupported(value: Value | Absent) -> bool:
    """Tell whether the board has none of this kind; where it has others, only those are told of."""
    return isinstance(value, Absent) and value.reason in (Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER)


def _active(mask: Value | Absent) -> tuple[DimValue, ...]:
    if isinstance(mask, int):
        return tuple(DimValue(REASON, (name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS)
    why = mask if isinstance(mask, Absent) else Absent(Reason.INVALID_VALUE)
    return tuple(DimValue(REASON, (name,), why) for name, _ in CLOCK_EVENT_REASONS)
