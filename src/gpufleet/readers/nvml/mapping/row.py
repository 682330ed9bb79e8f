"""What a row of the mapping says, and how it is read."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Metric, Role, ValueType
from gpufleet.model.reading import Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import FIELDS
from gpufleet.readers.nvml.calls.fields import FIELD_VALUES
from gpufleet.readers.nvml.context import NOT_SUPPORTED
from gpufleet.readers.nvml.parse import absence_of, check, entry_of, is_sentinel, label_of, part_of, state_of
from gpufleet.readers.nvml.protocol import Answer

Convert = Callable[[protocol.Value], Value | None]
"""Turns a raw value into the catalogue's unit; None where the raw value says nothing."""


class Row(NamedTuple):
    """Where one reading comes from.

    Attributes:
        metric: catalogue name.
        call: key in `calls.CALLS`.
        convert: to the catalogue's unit; None for a numbered state.
        part: which of several values of the call.
        entry: which of several entries of the call, or of the part, where each has a code of its own.
        every: there is a reading for each entry, labelled with its position.
        names: what the entries are labelled with, in their order, where not with their position.
        positions: which entries, where not all of them.
        sparse: entries that are not supported are not told, unless none is.
        silent: where none is, nothing is told at all: another row of the metric tells it.
        instead: where to look for an entry that is not supported here.
        labels: values of the catalogue row's dimensions, after the entry's.
        inner: the function that the entries come from, where it is not the one that the call is named after.
        field: id to show of an entry that is a field value; several where there are several entries.
        bits: width of NVML's result; its all-ones mean "no value". 0 where every bit pattern is a value.
    """

    metric: str
    call: str
    convert: Convert | None
    part: int | None = None
    entry: int | None = None
    every: bool = False
    names: tuple[str, ...] = ()
    positions: tuple[int, ...] = ()
    sparse: bool = False
    silent: bool = False
    instead: "Row | None" = None
    labels: tuple[str, ...] = ()
    inner: str = ""
    field: int | tuple[int, ...] | None = None
    bits: int = 32


class Modes(NamedTuple):
    """What changes the meaning of "not supported", and what is told of a device at all."""

    mig: bool = False
    guest: bool = False
    roles: frozenset[Role] = frozenset()


NO_MODES = Modes()

_NOT_SUPPORTED = frozenset({NOT_SUPPORTED})
_UNSUPPORTED = frozenset({NOT_SUPPORTED, protocol.NOT_OFFERED})

_FIELDS = {
    one.name: (position, next(id_ for _, id_ in one.ids if id_ is not None))
    for fields in FIELDS.values()
    for position, one in enumerate(fields)
}


def field_row(metric: str, name: str, convert: Convert | None, *, bits: int = 32) -> Row:
    """Return a row of a field value, by the field's name."""
    position, id_ = _FIELDS[name]
    return Row(metric, FIELD_VALUES, convert, entry=position, field=id_, bits=bits)


def field_table(metric: str, prefix: str, names: tuple[str, ...], convert: Convert, *, bits: int = 64) -> Row:
    """Return a row of several field values, named `prefix, name`, that are labelled with these names."""
    found = [_FIELDS[f"{prefix}, {name}"] for name in names]
    positions, ids = tuple([position for position, _ in found]), tuple([id_ for _, id_ in found])
    return Row(
        metric, FIELD_VALUES, convert, every=True, names=names, positions=positions, sparse=True, field=ids, bits=bits
    )


def read(row: Row, metric: Metric, answer: Answer, modes: Modes) -> Value | Absent:
    """Return one reading from its call's answer."""
    if modes.mig and by_nature(metric, Reason.NOT_IN_MIG_MODE):
        return Absent(Reason.NOT_IN_MIG_MODE)
    if row.part is not None:
        answer = part_of(answer, row.part)
    call = f"FI {row.field}" if isinstance(row.field, int) else label_of(answer.asked)
    if row.entry is not None and not answer.code:
        answer = entry_of(answer, row.entry)
        call = row.inner or call
    return _value(row, metric, answer.code, answer.value, call, modes)


def read_every(
    row: Row, metric: Metric, answer: Answer, modes: Modes
) -> Iterator[tuple[tuple[str, ...], Value | Absent]]:
    """Return labels and reading of each entry; where there is none, or why, it is told once, of the first."""
    first = first_labels(row)
    if modes.mig and by_nature(metric, Reason.NOT_IN_MIG_MODE):
        if not row.silent:
            yield first, Absent(Reason.NOT_IN_MIG_MODE)
        return
    listed = answer if row.part is None else part_of(answer, row.part)
    if listed.code or not isinstance(listed.value, list) or not listed.value:
        missing = listed if listed.code else Answer(NOT_SUPPORTED, None, listed.asked)
        if not row.silent:
            yield first, why_absent(metric, missing, label_of(answer.asked), modes)
        return
    entries = listed.value
    positions = row.positions or range(min(len(entries), len(row.names)) if row.names else len(entries))
    found = [_entry(row, answer, entries, position) for position in positions]  # what has no name is left alone
    untold = _NOT_SUPPORTED if isinstance(row.field, tuple) else _UNSUPPORTED
    none = all(code in untold for _, code, _ in found)
    for order, (used, code, raw) in enumerate(found):
        if row.sparse and code in untold and not (none and order == 0 and not row.silent):
            continue
        name = row.names[order] if row.names else str(order)
        call = f"FI {row.field[order]}" if isinstance(row.field, tuple) else used.inner or label_of(answer.asked)
        yield (name, *row.labels), _value(used, metric, code, raw, call, modes)


def first_labels(row: Row) -> tuple[str, ...]:
    """Return the labels of a row's first, or only, reading."""
    return (row.names[0] if row.names else "0", *row.labels) if row.every else row.labels


def _entry(row: Row, answer: Answer, entries: list[Any], position: int) -> tuple[Row, int, protocol.Value]:
    """Return the row by which one entry is read, its code and its value."""
    code, raw = _coded(entries, position)
    if code in _UNSUPPORTED and row.instead is not None:
        other = part_of(answer, row.instead.part)
        if not other.code and isinstance(other.value, list):
            other_code, other_raw = _coded(other.value, position)
            if other_code not in _UNSUPPORTED:
                return row.instead, other_code, other_raw
    return row, code, raw


def _coded(entries: list[Any], position: int) -> tuple[int, protocol.Value]:
    """Return the code and the value of one entry of a list; an entry that is no [code, value] is a value."""
    if position >= len(entries):
        return protocol.UNTOUCHED, None
    entry = entries[position]
    if not isinstance(entry, list) or len(entry) != 2:
        return 0, entry
    code, raw = entry
    return (code if isinstance(code, int) else protocol.UNTOUCHED), raw


def state(metric: Metric, answer: Answer, modes: Modes) -> Value | Absent:
    """Return the name of a numbered state that an answer gives."""
    call = label_of(answer.asked)
    return why_absent(metric, answer, call, modes) if answer.code else state_of(metric, answer.value, call)


def why_absent(metric: Metric, answer: Answer, call: str, modes: Modes) -> Absent:
    """Return why an answer that failed gives no reading."""
    why = absence_of(answer.code, call, answer.value)
    if why.reason is Reason.NOT_SUPPORTED and modes.guest and by_nature(metric, Reason.NOT_IN_GUEST):
        return Absent(Reason.NOT_IN_GUEST, call)
    return why


def by_nature(metric: Metric, reason: Reason) -> bool:
    """Tell whether the catalogue says that a metric can be absent for this reason."""
    return any(case.reason is reason for case in metric.absent_when)


def _value(row: Row, metric: Metric, code: int, raw: protocol.Value, call: str, modes: Modes) -> Value | Absent:
    if code:
        return why_absent(metric, Answer(code, raw), call, modes)
    if is_sentinel(raw, row.bits):
        return Absent(Reason.INVALID_VALUE, call)
    if row.convert is None:
        return state_of(metric, raw, call)
    try:
        value = row.convert(raw)
    except (TypeError, ValueError, LookupError):
        return Absent(Reason.INVALID_VALUE, call)
    if value is None:
        return Absent(Reason.NO_DATA if metric.type is ValueType.TEXT else Reason.NOT_SUPPORTED, call)
    return check(metric, value, call)
