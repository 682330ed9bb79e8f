"""Rows of the mapping, and how a reading is obtained by one."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from gpufleet.model.absence import Absent, Reason, worst_absence
from gpufleet.model.catalogue import GpuRole, Metric, ValueType
from gpufleet.model.reading import Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import FIELDS
from gpufleet.readers.nvml.calls.fields import FIELD_VALUES
from gpufleet.readers.nvml.context import NOT_SUPPORTED
from gpufleet.readers.nvml.parse import absence_of, check, entry_of, is_sentinel, label_of, part_of, state_of
from gpufleet.readers.nvml.protocol import CallResult

Convert = Callable[[protocol.Value], Value | None]
"""Converts a raw value to the catalogue's unit; None if the raw value carries no information."""


class FailedEntriesError(Exception):
    """Raised by a conversion whose value needs entries that failed.

    Attributes:
        codes: return codes of the entries.
    """

    def __init__(self, codes: Iterable[int]) -> None:
        super().__init__()
        self.codes = tuple(codes)


class MetricRow(NamedTuple):
    """Source of one metric in the driver's answers.

    Attributes:
        metric: catalogue name.
        call: key in `calls.CALLS`.
        convert: conversion to the catalogue's unit; None for a numbered state.
        part: index of the value, if the call returns several.
        entry: index of the entry in the call or part, if each entry has its own code.
        every: one reading per entry, labelled with its position.
        label: the entries are pairs of label and value; converts the label. There can be no entry.
        names: labels of the entries, in order, instead of their positions.
        positions: limits the entries to these.
        sparse: unsupported entries are omitted, unless all are.
        omit_if_none: omits all if no entry is supported, because another row of the metric reports that.
        instead: alternative row for entries that are not supported here.
        labels: label values of the catalogue row's dimensions, after the entry's.
        inner: function that returns the entries, if the call is named after another.
        field: shown id of an entry that is a field value; several for several entries.
        unmeasured: reason for a reading whose conversion returns None; by default, that of the metric's type.
        bits: width of NVML's result, whose all-ones mean "no value"; 0 if every bit pattern is a value.
    """

    metric: str
    call: str
    convert: Convert | None
    part: int | None = None
    entry: int | None = None
    every: bool = False
    label: Callable[[protocol.Value], str] | None = None
    names: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()
    sparse: bool = False
    omit_if_none: bool = False
    instead: "MetricRow | None" = None
    labels: tuple[str, ...] = ()
    inner: str = ""
    field: int | tuple[int, ...] | None = None
    unmeasured: Reason | None = None
    bits: int = 32


class DeviceModes(NamedTuple):
    """Modes of a device that change the reason of an absence, and its roles, which select the rows that apply."""

    mig: bool = False
    guest: bool = False
    roles: frozenset[GpuRole] = frozenset()


NO_MODES = DeviceModes()

_NOT_SUPPORTED = frozenset({NOT_SUPPORTED})
_UNSUPPORTED = frozenset({NOT_SUPPORTED, protocol.NOT_OFFERED})

_FIELDS = {
    field.name: (position, next(id_ for _, id_ in field.ids if id_ is not None))
    for fields in FIELDS.values()
    for position, field in enumerate(fields)
}


def field_row(metric: str, name: str, convert: Convert | None, *, bits: int = 32) -> MetricRow:
    """Return a row of a field value, by the field's name."""
    position, id_ = _FIELDS[name]
    return MetricRow(metric, FIELD_VALUES, convert, entry=position, field=id_, bits=bits)


def field_table(metric: str, prefix: str, names: tuple[str, ...], convert: Convert, *, bits: int = 64) -> MetricRow:
    """Return a row of several field values, named `prefix, name` and labelled with these names."""
    found = [_FIELDS[f"{prefix}, {name}"] for name in names]
    positions, ids = tuple([position for position, _ in found]), tuple([id_ for _, id_ in found])
    return MetricRow(
        metric, FIELD_VALUES, convert, every=True, names=names, positions=positions, sparse=True, field=ids, bits=bits
    )


def read(row: MetricRow, metric: Metric, answer: CallResult, modes: DeviceModes) -> Value | Absent:
    """Return one reading from its call's answer."""
    if modes.mig and can_be_absent(metric, Reason.NOT_IN_MIG_MODE):
        return Absent(Reason.NOT_IN_MIG_MODE)
    if row.part is not None:
        answer = part_of(answer, row.part)
    call = f"FI {row.field}" if isinstance(row.field, int) else label_of(answer.breadcrumb)
    if row.entry is not None and not answer.code:
        answer = entry_of(answer, row.entry)
        call = row.inner or call
    return _value(row, metric, answer.code, answer.value, call, modes)


def read_entries(
    row: MetricRow, metric: Metric, answer: CallResult, modes: DeviceModes
) -> Iterator[tuple[tuple[str, ...], Value | Absent]]:
    """Return labels and reading of each entry. If there are none, the reason is reported once, for the first entry."""
    if row.label is not None:
        yield from _read_pairs(row, row.label, metric, answer, modes)
        return
    first = first_labels(row)
    if modes.mig and can_be_absent(metric, Reason.NOT_IN_MIG_MODE):
        if not row.omit_if_none:
            yield first, Absent(Reason.NOT_IN_MIG_MODE)
        return
    listed = answer if row.part is None else part_of(answer, row.part)
    if listed.code or not isinstance(listed.value, list) or not listed.value:
        missing = listed if listed.code else CallResult(NOT_SUPPORTED, None, listed.breadcrumb)
        if not row.omit_if_none:
            yield first, why_absent(metric, missing, label_of(answer.breadcrumb), modes)
        return
    entries = listed.value
    # Entries beyond the names are ignored.
    positions = row.positions or range(min(len(entries), len(row.names)) if row.names else len(entries))
    found = [_entry(row, answer, entries, position) for position in positions]
    omitted = _NOT_SUPPORTED if isinstance(row.field, tuple) else _UNSUPPORTED
    none = all(code in omitted for _, code, _ in found)
    for order, (used, code, raw) in enumerate(found):
        if row.sparse and code in omitted and not (none and order == 0 and not row.omit_if_none):
            continue
        name = row.names[order] if row.names else str(order)
        call = f"FI {row.field[order]}" if isinstance(row.field, tuple) else used.inner or label_of(answer.breadcrumb)
        yield (name, *row.labels), _value(used, metric, code, raw, call, modes)


def _read_pairs(
    row: MetricRow, label: Callable[[protocol.Value], str], metric: Metric, answer: CallResult, modes: DeviceModes
) -> Iterator[tuple[tuple[str, ...], Value | Absent]]:
    """Return label and reading of each pair. A failure is reported once, except that the call is not supported."""
    call = label_of(answer.breadcrumb)
    if answer.code:
        if answer.code not in _UNSUPPORTED:
            yield first_labels(row), why_absent(metric, answer, call, modes)
        return
    found: dict[tuple[str, ...], Value | Absent] = {}
    for pair in answer.value if isinstance(answer.value, list) else ():
        try:
            name, raw = pair
            labels = (label(name),)
        except (TypeError, ValueError):
            found[first_labels(row)] = Absent(Reason.INVALID_VALUE, call)
        else:
            found[labels] = _value(row, metric, 0, raw, call, modes)
    yield from found.items()


def first_labels(row: MetricRow) -> tuple[str, ...]:
    """Return the labels of a row's first or only reading."""
    return (row.names[0] if row.names else "0", *row.labels) if row.every else row.labels


def _entry(
    row: MetricRow, answer: CallResult, entries: list[Any], position: int
) -> tuple[MetricRow, int, protocol.Value]:
    """Return the row that applies to an entry, the entry's code and its value."""
    code, raw = _code_and_value(entries, position)
    if code in _UNSUPPORTED and row.instead is not None:
        other = part_of(answer, row.instead.part)
        if not other.code and isinstance(other.value, list):
            other_code, other_raw = _code_and_value(other.value, position)
            if other_code not in _UNSUPPORTED:
                return row.instead, other_code, other_raw
    return row, code, raw


def _code_and_value(entries: list[Any], position: int) -> tuple[int, protocol.Value]:
    """Return code and value of an entry of a list; an entry that is not [code, value] is a value."""
    if position >= len(entries):
        return protocol.UNTOUCHED, None
    entry = entries[position]
    if not isinstance(entry, list) or len(entry) != 2:
        return 0, entry
    code, raw = entry
    return (code if isinstance(code, int) else protocol.UNTOUCHED), raw


def state(metric: Metric, answer: CallResult, modes: DeviceModes) -> Value | Absent:
    """Return the name of the numbered state in an answer."""
    call = label_of(answer.breadcrumb)
    return why_absent(metric, answer, call, modes) if answer.code else state_of(metric, answer.value, call)


def why_absent(metric: Metric, answer: CallResult, call: str, modes: DeviceModes) -> Absent:
    """Return the absence for a failed answer."""
    why = absence_of(answer.code, call, answer.value)
    if why.reason is Reason.NOT_SUPPORTED and modes.guest and can_be_absent(metric, Reason.NOT_IN_GUEST):
        return Absent(Reason.NOT_IN_GUEST, call)
    return why


def can_be_absent(metric: Metric, reason: Reason) -> bool:
    """Return whether the catalogue lists this reason for a metric."""
    return any(case.reason is reason for case in metric.absent_when)


def _value(
    row: MetricRow, metric: Metric, code: int, raw: protocol.Value, call: str, modes: DeviceModes
) -> Value | Absent:
    if code:
        return why_absent(metric, CallResult(code, raw), call, modes)
    if is_sentinel(raw, row.bits):
        return Absent(Reason.INVALID_VALUE, call)
    if row.convert is None:
        return state_of(metric, raw, call)
    try:
        value = row.convert(raw)
    except FailedEntriesError as failed:
        return worst_absence(why_absent(metric, CallResult(code, None), call, modes) for code in failed.codes)
    except (TypeError, ValueError, LookupError):
        return Absent(Reason.INVALID_VALUE, call)
    if value is None:
        usual = Reason.NO_DATA if metric.type is ValueType.TEXT else Reason.NOT_SUPPORTED
        return Absent(row.unmeasured or usual, call)
    return check(metric, value, call)
