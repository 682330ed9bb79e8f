"""Matrix of measurements over the labels of many captures. Pure."""

from collections.abc import Sequence

import msgspec

from gpufleet.bench.compare import LoadedCapture, obstacle_of
from gpufleet.probe.measurements import describe
from gpufleet.probe.records import Better, MeasuredUnit, Measurement, Statistics


class MatrixCell(msgspec.Struct, frozen=True, kw_only=True):
    """Cell: statistics over all values of the row's captures; None without values, with the reason."""

    statistics: Statistics | None = None
    detail: str = ""


class MatrixMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """Measurement of a matrix.

    Attributes:
        name, unit, better, tool, tool_version, arguments: of the measurement. Measurements with other arguments or
            another tool version are other rows.
        cells: one for each combination of factors.
    """

    name: str
    unit: MeasuredUnit
    better: Better
    tool: str
    tool_version: str
    arguments: tuple[str, ...]
    cells: tuple[MatrixCell, ...]


class FactorMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Matrix of a folder.

    Attributes:
        factors: `machine`, and the labels that occur.
        combinations: values of the factors, in their order; the captures of a combination are pooled.
        captures: names of the files of each combination.
        measurements: rows.
        notes: remarks about files.
    """

    factors: tuple[str, ...]
    combinations: tuple[tuple[str, ...], ...]
    captures: tuple[tuple[str, ...], ...]
    measurements: tuple[MatrixMeasurement, ...]
    notes: tuple[str, ...] = ()


def factor_matrix(captures: Sequence[LoadedCapture], notes: Sequence[str] = ()) -> FactorMatrix:
    """Return the matrix of captures. Captures of the same machine and labels are pooled."""
    labels = sorted({label for one in captures for label in one.document.labels})
    factors = ("machine", *labels)
    groups: dict[tuple[str, ...], list[LoadedCapture]] = {}
    for one in captures:
        document = one.document
        machine = f"{document.machine.name} ({document.machine.source})"
        key = (machine, *(document.labels.get(label, "unset") for label in labels))
        groups.setdefault(key, []).append(one)
    combinations = sorted(groups)
    kinds = _distinct_measurements(captures)
    missing = [kind.name for kind in kinds if not kind.values]
    remarks = [f"without values in all captures: {', '.join(missing)}"] if missing else []
    return FactorMatrix(
        factors=factors,
        combinations=tuple(combinations),
        captures=tuple(tuple(one.file for one in groups[key]) for key in combinations),
        measurements=tuple(_row(kind, [groups[key] for key in combinations]) for kind in kinds if kind.values),
        notes=(*notes, *remarks),
    )


def _distinct_measurements(captures: Sequence[LoadedCapture]) -> list[Measurement]:
    """Return one measurement for each name and way of measuring. Names without any value have a single row."""
    found: list[Measurement] = []
    measured = [one for capture in captures for one in capture.document.measurements]
    for one in sorted(measured, key=lambda one: not one.values):  # with values first; sorting is stable
        same = [other for other in found if other.name == one.name]
        if not same or (one.values and all(obstacle_of(one, other) is not None for other in same)):
            found.append(one)
    order = list(dict.fromkeys(one.name for one in measured))
    return sorted(found, key=lambda one: order.index(one.name))


def _row(kind: Measurement, groups: Sequence[Sequence[LoadedCapture]]) -> MatrixMeasurement:
    return MatrixMeasurement(
        name=kind.name,
        unit=kind.unit,
        better=kind.better,
        tool=kind.tool,
        tool_version=kind.tool_version,
        arguments=kind.arguments,
        cells=tuple(_cell(kind, group) for group in groups),
    )


def _cell(kind: Measurement, group: Sequence[LoadedCapture]) -> MatrixCell:
    named = [one for capture in group for one in capture.document.measurements if one.name == kind.name]
    values = tuple(value for one in named if one.values and obstacle_of(kind, one) is None for value in one.values)
    if values:
        return MatrixCell(statistics=describe(values))
    absent = next((one for one in named if one.absent is not None), None)
    other = next((reason for one in named if (reason := obstacle_of(kind, one)) is not None and one.values), None)
    if other is not None:
        return MatrixCell(detail=other)
    return MatrixCell(detail="not measured" if absent is None else f"{absent.absent}: {absent.detail}".rstrip(": "))
