"""Rows of the mapping, and their evaluation."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpufleet.codecs.dcgm_wire.codes import REASONS, blank_of, name_of
from gpufleet.codecs.dcgm_wire.values import FieldValue
from gpufleet.fleet.ecc import EccMode
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Metric, ValueType
from gpufleet.model.reading import Value
from gpufleet.readers.dcgm.mapping.units import Convert

MAX_INTEGER = 2**63 - 1
"""Largest integer that is accepted; an engine can send MiB that are more bytes than this."""


class DcgmRow(NamedTuple):
    """Row of the mapping: the DCGM field of one reading.

    Attributes:
        metric: catalogue name.
        field: id in dcgm_fields.h.
        convert: conversion to the catalogue's unit.
        labels: values of the metric's dimensions.
        base: field in base units, added by DCGM 4.6.1, and its conversion. Used if the engine does not know `field`.
    """

    metric: str
    field: int
    convert: Convert
    labels: tuple[str, ...] = ()
    base: tuple[int, Convert] | None = None


class EngineGpuModes(NamedTuple):
    """Modes of a GPU that change the meaning of its readings.

    Attributes:
        mig: it is divided into MIG devices.
        guest: it is the device of a vGPU guest.
        ecc: its ECC mode; None if it is not read.
    """

    mig: bool = False
    guest: bool = False
    ecc: EccMode = None


def field_source(row: DcgmRow, unknown: frozenset[int]) -> tuple[int, Convert]:
    """Return the field to request and its conversion; `unknown` are the fields that the engine does not know."""
    if row.base is not None and row.field in unknown and row.base[0] not in unknown:
        return row.base
    return row.field, row.convert


def fields_of(rows: Iterable[DcgmRow], unknown: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """Return the fields to request: each once, without those that the engine does not know."""
    return tuple(sorted({field_source(row, unknown)[0] for row in rows} - unknown))


def every_field(rows: Iterable[DcgmRow]) -> tuple[int, ...]:
    """Return all fields of the rows, alternatives included."""
    rows = tuple(rows)
    return tuple(sorted({row.field for row in rows} | {row.base[0] for row in rows if row.base is not None}))


def read_row(
    row: DcgmRow, values: Mapping[int, FieldValue], modes: EngineGpuModes, unknown: frozenset[int]
) -> Value | Absent:
    """Return one reading from a device's values by field."""
    metric = CATALOGUE[row.metric]
    number, convert = field_source(row, unknown)
    if modes.mig and can_be_absent(metric, Reason.NOT_IN_MIG_MODE):
        return Absent(Reason.NOT_IN_MIG_MODE)
    if number in unknown:
        return Absent(Reason.NOT_IN_DRIVER, f"{_field(number)}: the engine does not know it")
    reported = values.get(number)
    if reported is None or (reported.value is None and not reported.status):
        return Absent(Reason.NOT_REPORTED, _field(number))
    if reported.status:
        why = Absent(REASONS.get(reported.status, Reason.DRIVER_ERROR), f"{_field(number)}: {name_of(reported.status)}")
        return absence_in_guest(why, metric, modes)
    assert reported.value is not None
    blank = blank_of(reported.value)
    if blank is not None:
        return absence_in_guest(Absent(blank, _field(number)), metric, modes)
    try:
        value = convert(reported.value)
    except (TypeError, ValueError, OverflowError):
        return Absent(Reason.INVALID_VALUE, _field(number))
    if value is None:
        why = Absent(Reason.NO_DATA if metric.type is ValueType.TEXT else Reason.NOT_SUPPORTED, _field(number))
        return absence_in_guest(why, metric, modes)
    return _checked(metric, value, number)


def _field(number: int) -> str:
    return f"DCGM {number}"


def absence_in_guest(why: Absent, metric: Metric, modes: EngineGpuModes) -> Absent:
    """Return the absence; in a vGPU guest `not_in_guest` if the catalogue allows that reason for the metric."""
    hidden = modes.guest and why.reason in (Reason.NOT_SUPPORTED, Reason.NO_DATA)
    return Absent(Reason.NOT_IN_GUEST, why.detail) if hidden and can_be_absent(metric, Reason.NOT_IN_GUEST) else why


def can_be_absent(metric: Metric, reason: Reason) -> bool:
    """Return whether the catalogue lists this reason of absence for the metric."""
    return any(case.reason is reason for case in metric.absent_when)


def by_entity(values: Iterable[FieldValue]) -> dict[tuple[int, int], dict[int, FieldValue]]:
    """Group values by entity and field; the later of two values of a field counts."""
    found: dict[tuple[int, int], dict[int, FieldValue]] = {}
    for value in values:
        found.setdefault(value.entity, {})[value.field] = value
    return found


def _checked(metric: Metric, value: Value, number: int) -> Value | Absent:
    if metric.type is ValueType.ENUM:
        known = isinstance(value, int) and 0 <= value < len(metric.states)
        return metric.states[int(value)] if known else Absent(Reason.INVALID_VALUE, f"{_field(number)}: unknown state")
    if isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return Absent(Reason.INVALID_VALUE, _field(number))
    too_low, too_high = metric.low is not None and value < metric.low, metric.high is not None and value > metric.high
    return Absent(Reason.INVALID_VALUE, _field(number)) if too_low or too_high else value
