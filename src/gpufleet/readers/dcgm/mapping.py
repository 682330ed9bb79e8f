"""From DCGM's fields to the catalogue: the only place that knows DCGM's units.

Field ids are those of dcgm_fields.h; DCGM 4.6.1 adds fields in base units under new ids and keeps these.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire.codes import REASONS, blank_of, name_of
from gpufleet.codecs.dcgm_wire.values import FieldValue
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, ValueType
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.reading import DimValue, Value

Told = int | float | str

UUID, PCI_BUS_ID, MIG_MODE, VIRTUAL_MODE = 54, 57, 67, 500
VGPU_GUEST = 2
"""Value of VIRTUAL_MODE: the engine runs inside a vGPU guest."""

MIB = 1 << 20


class Row(NamedTuple):
    """Where one metric comes from: a field, and how its value becomes the catalogue's unit."""

    metric: str
    field: int
    convert: Callable[[Told], Value | None]


def _number(told: Told) -> int | float:
    if isinstance(told, str):
        raise TypeError(f"a text where a number is expected: {told[:40]!r}")
    return told


def _times(factor: int) -> Callable[[Told], Value]:
    return lambda told: int(_number(told)) * factor


def _over(divisor: int) -> Callable[[Told], Value]:
    return lambda told: _number(told) / divisor


def _same(told: Told) -> Value:
    return int(_number(told))


def _real(told: Told) -> Value:
    return float(_number(told))


def _sensor(told: Told) -> Value | None:
    """A board without the sensor is told as 0 (seen on boards without HBM): that is no temperature."""
    return float(_number(told)) or None


def _text(told: Told) -> Value | None:
    return str(told).strip() or None


ROWS: tuple[Row, ...] = (
    Row("gpu_utilization_ratio", 203, _over(100)),
    Row("gpu_memory_activity_ratio", 204, _over(100)),
    Row("gpu_encoder_utilization_ratio", 206, _over(100)),
    Row("gpu_decoder_utilization_ratio", 207, _over(100)),
    Row("gpu_memory_total_bytes", 250, _times(MIB)),
    Row("gpu_memory_used_bytes", 252, _times(MIB)),
    Row("gpu_memory_free_bytes", 251, _times(MIB)),
    Row("gpu_memory_reserved_bytes", 253, _times(MIB)),
    Row("gpu_bar1_total_bytes", 90, _times(MIB)),
    Row("gpu_bar1_used_bytes", 92, _times(MIB)),
    Row("gpu_temperature_celsius", 150, _real),
    Row("gpu_memory_temperature_celsius", 140, _sensor),
    Row("gpu_temperature_margin_celsius", 153, _real),
    Row("gpu_power_watts", 155, _real),
    Row("gpu_power_instant_watts", 157, _real),
    Row("gpu_power_limit_watts", 164, _real),
    Row("gpu_power_default_limit_watts", 163, _real),
    Row("gpu_energy_joules_total", 156, _over(1000)),
    Row("gpu_sm_clock_hertz", 100, _times(1_000_000)),
    Row("gpu_memory_clock_hertz", 101, _times(1_000_000)),
    Row("gpu_video_clock_hertz", 102, _times(1_000_000)),
    Row("gpu_sm_clock_max_hertz", 113, _times(1_000_000)),
    Row("gpu_clock_event_reasons_mask", 112, _same),
    Row("gpu_performance_state", 190, _same),
    Row("gpu_ecc_corrected_errors_total", 310, _same),
    Row("gpu_ecc_uncorrected_errors_total", 311, _same),
    Row("gpu_ecc_corrected_lifetime_errors_total", 312, _same),
    Row("gpu_ecc_uncorrected_lifetime_errors_total", 313, _same),
    Row("gpu_remapped_rows_correctable", 394, _same),
    Row("gpu_remapped_rows_uncorrectable", 393, _same),
    Row("gpu_row_remap_pending", 396, _same),
    Row("gpu_row_remap_failed", 395, _same),
    Row("gpu_pcie_link_generation", 237, _same),
    Row("gpu_pcie_link_width", 238, _same),
    Row("gpu_pcie_link_generation_max", 235, _same),
    Row("gpu_pcie_link_width_max", 236, _same),
    Row("gpu_pcie_replays_total", 202, _same),
    Row("gpu_mig_mode", MIG_MODE, _same),
    Row("gpu_persistence_mode", 66, _same),
    Row("gpu_compute_mode", 65, _same),
    Row("gpu_virtualization_mode", VIRTUAL_MODE, _same),
    Row("gpu_name", 50, _text),
    Row("gpu_serial", 53, _text),
    Row("gpu_vbios_version", 85, _text),
    Row("gpu_minor_number", 55, _text),
)
"""Metrics of a GPU that come from one field each, read from the driver at the instant of asking."""

FAN, MASK, REASON, STATE = "gpu_fan_speed_ratio", "gpu_clock_event_reasons_mask", "gpu_clock_event_active", "gpu_state"
FAN_FIELD = 191

_ROWS = {
    lane: tuple((row, CATALOGUE[row.metric]) for row in ROWS if CATALOGUE[row.metric].lane is lane)
    for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)
}
FIELDS: dict[Lane, tuple[int, ...]] = {
    lane: tuple(sorted({row.field for row, _ in rows} | ({FAN_FIELD} if lane is Lane.FAST else set())))
    for lane, rows in _ROWS.items()
}
"""The fields of each lane, as they are asked for."""


class Modes(NamedTuple):
    """What changes the meaning of "not supported"."""

    mig: bool
    guest: bool


def map_device(
    values: Mapping[int, FieldValue], lane: Lane, modes: Modes
) -> tuple[dict[str, Value | Absent], tuple[DimValue, ...]]:
    """Return a GPU's readings of a lane from its values by field."""
    found = {metric.name: read(row, metric, values.get(row.field), modes) for row, metric in _ROWS[lane]}
    if lane is not Lane.FAST:
        return found, ()
    fan = read(Row(FAN, FAN_FIELD, _over(100)), CATALOGUE[FAN], values.get(FAN_FIELD), modes)
    return found, (*_active(found[MASK]), DimValue(FAN, ("0",), fan))


def read(row: Row, metric: Metric, told: FieldValue | None, modes: Modes) -> Value | Absent:
    """Return one metric's reading from its field's value."""
    field = f"DCGM {row.field}"
    if modes.mig and _by_nature(metric, Reason.NOT_IN_MIG_MODE):
        return Absent(Reason.NOT_IN_MIG_MODE)
    if told is None or told.value is None:
        return Absent(Reason.NOT_REPORTED, field)
    if told.status:
        why = Absent(REASONS.get(told.status, Reason.DRIVER_ERROR), f"{field}: {name_of(told.status)}")
        return _in_guest(why, metric, modes)
    blank = blank_of(told.value)
    if blank is not None:
        return _in_guest(Absent(blank, field), metric, modes)
    try:
        value = row.convert(told.value)
    except (TypeError, ValueError, OverflowError):
        return Absent(Reason.INVALID_VALUE, field)
    if value is None:
        return Absent(Reason.NO_DATA if metric.type is ValueType.TEXT else Reason.NOT_SUPPORTED, field)
    return _checked(metric, value, field)


def absent_device(why: Absent, lane: Lane) -> tuple[dict[str, Value | Absent], tuple[DimValue, ...]]:
    """Return the readings of a GPU that gave nothing."""
    found: dict[str, Value | Absent] = {metric.name: why for _, metric in _ROWS[lane]}
    return found, (*_active(why), DimValue(FAN, ("0",), why)) if lane is Lane.FAST else ()


def by_entity(values: Iterable[FieldValue]) -> dict[tuple[int, int], dict[int, FieldValue]]:
    """Return entity to field to value; of a field told twice the later value."""
    found: dict[tuple[int, int], dict[int, FieldValue]] = {}
    for value in values:
        found.setdefault(value.entity, {})[value.field] = value
    return found


def _checked(metric: Metric, value: Value, field: str) -> Value | Absent:
    if metric.type is ValueType.ENUM:
        known = isinstance(value, int) and 0 <= value < len(metric.states)
        return metric.states[int(value)] if known else Absent(Reason.INVALID_VALUE, f"{field}: a state without a name")
    if isinstance(value, str):
        return value
    too_low, too_high = metric.low is not None and value < metric.low, metric.high is not None and value > metric.high
    return Absent(Reason.INVALID_VALUE, field) if too_low or too_high else value


def _active(mask: Value | Absent) -> tuple[DimValue, ...]:
    if isinstance(mask, int):
        return tuple(DimValue(REASON, (name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS)
    why = mask if isinstance(mask, Absent) else Absent(Reason.INVALID_VALUE)
    return tuple(DimValue(REASON, (name,), why) for name, _ in CLOCK_EVENT_REASONS)


def _in_guest(why: Absent, metric: Metric, modes: Modes) -> Absent:
    unseen = why.reason in (Reason.NOT_SUPPORTED, Reason.NO_DATA)
    return (
        Absent(Reason.NOT_IN_GUEST, why.detail)
        if modes.guest and unseen and _by_nature(metric, Reason.NOT_IN_GUEST)
        else why
    )


def _by_nature(metric: Metric, reason: Reason) -> bool:
    return any(case.reason is reason for case in metric.absent_when)
