"""Texts of values and verdicts, and reports in Markdown. Pure."""

import re
from collections.abc import Iterable, Sequence

from gpufleet.bench.compare import ComparedMeasurement, Comparison, Verdict
from gpufleet.bench.factors import FactorMatrix, MatrixCell
from gpufleet.model.text import printable
from gpufleet.probe.records import Fact, MeasuredUnit, Statistics

VERDICTS = {
    Verdict.BETTER: "better",
    Verdict.WORSE: "worse",
    Verdict.NO_DIFFERENCE: "no significant difference",
    Verdict.TOO_FEW_REPEATS: "too few repeats",
    Verdict.NOT_COMPARABLE: "not comparable",
    Verdict.ABSENT: "absent",
}

_SCALES = {
    MeasuredUnit.SECONDS: ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    MeasuredUnit.BYTES_PER_SECOND: ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")),
    MeasuredUnit.OPERATIONS_PER_SECOND: ((1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")),
}

_SPECIAL = re.compile(r"([\\`*\[\]#|<>~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", re.ASCII)


def shown_value(value: float, unit: MeasuredUnit) -> str:
    """Return a value with four digits in a readable unit."""
    scales = _SCALES.get(unit, ((1.0, unit.value),))
    factor, name = next((scale for scale in scales if abs(value) >= scale[0]), scales[-1])
    return f"{value / factor:.4g} {name}".rstrip()


def shown_fact(fact: Fact) -> str:
    """Return the value of a fact with its unit; empty if it is absent."""
    value = fact.value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        digits = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
        return f"{digits} {fact.unit.replace('_', ' ')}".rstrip()
    return printable(value or "")


def shown_statistics(statistics: Statistics | None, unit: MeasuredUnit) -> str:
    """Return the median with the spread and the number of values, or `-`."""
    if statistics is None:
        return "-"
    median = shown_value(statistics.median, unit)
    if statistics.count == 1:
        return f"{median} (n=1)"
    low, high = shown_value(statistics.minimum, unit), shown_value(statistics.maximum, unit)
    return f"{median} ({low} to {high}, n={statistics.count})"


def shown_difference(one: ComparedMeasurement) -> str:
    """Return the difference of medians with its interval, relative to the baseline where possible."""
    if one.interval is None:
        return "-"
    if one.difference_ratio is None or one.low_ratio is None or one.high_ratio is None:
        low, high = shown_value(one.interval.low, one.unit), shown_value(one.interval.high, one.unit)
        return f"{shown_value(one.interval.difference, one.unit)} ({low} to {high})"
    return f"{one.difference_ratio:+.1%} ({one.low_ratio:+.1%} to {one.high_ratio:+.1%})"


def shown_verdict(one: ComparedMeasurement) -> str:
    """Return the verdict with its reason."""
    text = VERDICTS[one.verdict]
    return printable(f"{text}: {one.detail}") if one.detail else text


def shown_cell(cell: MatrixCell, unit: MeasuredUnit) -> str:
    """Return a cell of the matrix: statistics, or the reason why there are none."""
    return shown_statistics(cell.statistics, unit) if cell.statistics is not None else printable(cell.detail)


def comparison_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown. Texts of captures are escaped."""
    captures = [
        (one.letter, one.name, one.machine, one.source, one.started_at, labels_text(one.labels), one.file)
        for one in comparison.captures
    ]
    rows = [
        (
            one.name,
            shown_statistics(one.baseline, one.unit),
            one.letter,
            shown_statistics(one.other, one.unit),
            shown_difference(one),
            shown_verdict(one),
        )
        for one in comparison.measurements
    ]
    letters = [one.letter for one in comparison.captures]
    facts = [(one.name, *(one.values[letter] for letter in letters)) for one in comparison.differences]
    parts = [
        "# Comparison of captures",
        _table(("capture", "name", "machine", "source", "started", "labels", "file"), captures),
        "## Measurements",
        _table(("measurement", "A", "capture", "value", "difference to A", "verdict"), rows),
        "## Other differences",
        _table(("fact", *letters), facts) if facts else "None.",
        *_note_lines(comparison.notes),
    ]
    return "\n\n".join(parts) + "\n"


def matrix_markdown(matrix: FactorMatrix) -> str:
    """Return a matrix as Markdown. Texts of captures are escaped."""
    letters = [str(number) for number in range(1, len(matrix.combinations) + 1)]
    combinations = [
        (number, *values, str(len(files)))
        for number, values, files in zip(letters, matrix.combinations, matrix.captures, strict=True)
    ]
    rows = [
        (one.name, one.tool_version, *(shown_cell(cell, one.unit) for cell in one.cells)) for one in matrix.measurements
    ]
    parts = [
        "# Captures by factors",
        _table(("column", *matrix.factors, "captures"), combinations),
        "## Measurements",
        _table(("measurement", "tool version", *letters), rows),
        *_note_lines(matrix.notes),
    ]
    return "\n\n".join(parts) + "\n"


def labels_text(labels: dict[str, str]) -> str:
    """Return labels in one text."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items())) or "-"


def _note_lines(notes: Iterable[str]) -> list[str]:
    lines = [f"- {_escaped(note)}" for note in notes]
    return ["## Notes", "\n".join(lines)] if lines else []


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(heading), "|" + "---|" * len(heading), *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    """Return a text that Markdown and HTML in it leave as it is."""
    return _SPECIAL.sub(r"\\\1", printable(text))
