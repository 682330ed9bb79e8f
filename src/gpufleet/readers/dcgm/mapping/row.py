"""What a row of the mapping says, and how it is read."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire.codes import REASONS, blank_of, name_of
from gpufleet.codecs.dcgm_wire.values import FieldValue
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Metric, ValueType
from gpufleet.model.reading import Value
from gpufleet.readers.dcgm.mapping.units import Convert

LARGEST = 2**63 - 1
"""Of whole numbers, everywhere; MiB as an engine can write them are more bytes than that."""


class Row(NamedTuple):
    """Where one reading comes from.

    Attributes:
        metric: catalogue name.
        field: id in dcgm_fields.h.
        convert: to the catalogue's unit.
        labels: values of the catalogue row's dimensions.
        base: the same in base units, under the id that DCGM 4.6.1 gave it, and how it is converted; it is asked
            where an engine does not know the older id any more.
    """

    metric: str
    field: int
    convert: Convert
    labels: tuple[str, ...] = ()
    base: tuple[int, Convert] | None = None


class Modes(NamedTuple):
    """What changes the meaning of "not supported"."""

    mig: bool = False
    guest: bool = False


def source(row: Row, unknown: frozenset[int]) -> tuple[int, Convert]:
    """Return the field to ask an engine for, and how its value is converted; `unknown` is what it does not know."""
    if row.base is not None and row.field in unknown and row.base[0] not in unknown:
        return row.base
    return row.field, row.convert


def fields_of(rows: Iterable[Row], unknown: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """Return the fields to ask an engine for: each once, and none that it does not know."""
    return tuple(sorted({source(row, unknown)[0] for row in rows} - unknown))


def every_field(rows: Iterable[Row]) -> tuple[int, ...]:
    """Return all fields that the rows could ask for."""
    rows = tuple(rows)
    return tuple(sorted({row.field for row in rows} | {row.base[0] for row in rows if row.base is not None}))


def read(row: Row, values: Mapping[int, FieldValue], modes: Modes, unknown: frozenset[int]) -> Value | Absent:
    """Return one reading from what the engine told of a device, by field."""
    metric = CATALOGUE[row.metric]
    number, convert = source(row, unknown)
    if modes.mig and by_nature(metric, Reason.NOT_IN_MIG_MODE):
        return Absent(Reason.NOT_IN_MIG_MODE)
    if number in unknown:
        return Absent(Reason.NOT_IN_DRIVER, f"{_field(number)}: the engine does not know it")
    told = values.get(number)
    if told is None or (told.value is None and not told.status):
        return Absent(Reason.NOT_REPORTED, _field(number))
    if told.status:
        why = Absent(REASONS.get(told.status, Reason.DRIVER_ERROR), f"{_field(number)}: {name_of(told.status)}")
        return in_guest(why, metric, modes)
    assert told.value is not None
    blank = blank_of(told.value)
    if blank is not None:
        return in_guest(Absent(blank, _field(number)), metric, modes)
    try:
        value = convert(told.value)
    except (TypeError, ValueError, OverflowError):
        return Absent(Reason.INVALID_VALUE, _field(number))
    if value is None:
        return Absent(Reason.NO_DATA if metric.type is ValueType.TEXT else Reason.NOT_SUPPORTED, _field(number))
    return _checked(metric, value, number)


def _field(number: int) -> str:
    return f"DCGM {number}"


def in_guest(why: Absent, metric: Metric, modes: Modes) -> Absent:
    """Return why, or that a vGPU guest cannot see it where that is so by nature."""
    unseen = modes.guest and why.reason in (Reason.NOT_SUPPORTED, Reason.NO_DATA)
    return Absent(Reason.NOT_IN_GUEST, why.detail) if unseen and by_nature(metric, Reason.NOT_IN_GUEST) else why


def by_nature(metric: Metric, reason: Reason) -> bool:
    """Tell whether the catalogue says that the metric can be absent for this reason."""
    return any(case.reason is reason for case in metric.absent_when)


def by_entity(values: Iterable[FieldValue]) -> dict[tuple[int, int], dict[int, FieldValue]]:
    """Return entity to field to value; of a field told twice the later value."""
    found: dict[tuple[int, int], dict[int, FieldValue]] = {}
    for value in values:
        found.setdefault(value.entity, {})[value.field] = value
    return found


def _checked(metric: Metric, value: Value, number: int) -> Value | Absent:
    if metric.type is ValueType.ENUM:
        known = isinstance(value, int) and 0 <= value < len(metric.states)
        return (
            metric.states[int(value)]
            if known
            else Absent(Reason.INVALID_VALUE, f"{_field(number)}: a state without a name")
        )
    if isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) > LARGEST:
        return Absent(Reason.INVALID_VALUE, _field(number))
    too_low, too_high = metric.low is not None and value < metric.low, metric.high is not None and value > metric.high
    return Absent(Reason.INVALID_VALUE, _field(number)) if too_low or too_high else value
