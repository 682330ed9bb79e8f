"""Reports as one HTML page that works offline: no scripts, no external resources, bars as inline SVG. Pure.

All texts of captures are escaped. A content security policy in the page forbids everything but its own style.
"""

import html
from collections.abc import Iterable, Sequence

from gpufleet.bench.compare import ComparedMeasurement, Comparison, Verdict
from gpufleet.bench.factors import FactorMatrix
from gpufleet.bench.markdown import (
    labels_text,
    shown_cell,
    shown_difference,
    shown_statistics,
    shown_value,
    shown_verdict,
)
from gpufleet.model.text import printable
from gpufleet.probe.records import MeasuredUnit, Statistics

_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em}"
    "body{color:#1a1a1a;background:#fff}"
    "table{border-collapse:collapse;margin:1em 0;width:100%}"
    "th,td{border-bottom:1px solid #ddd;padding:.3em .6em;text-align:left;vertical-align:top}"
    "th{font-weight:600}.better{color:#05603a}.worse{color:#a3161a}.muted{color:#595959}"
    "svg{display:block}svg text{font:11px system-ui,sans-serif;fill:#1a1a1a}"
)
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    '<meta name="viewport" content="width=device-width">\n'
)

BAR_WIDTH, BAR_HEIGHT, LABEL_WIDTH, VALUE_WIDTH = 420, 18, 40, 240

_COLOURS = ("#1f4e8c", "#b35900", "#05603a", "#7a1f5c", "#5c5c00", "#00606b")

_CLASSES = {Verdict.BETTER: "better", Verdict.WORSE: "worse"}


def comparison_html(comparison: Comparison) -> str:
    """Return a comparison as a page, with bars of medians and ranges for each measurement."""
    captures = [
        (one.letter, one.name, one.machine, one.source, one.started_at, labels_text(one.labels), one.file)
        for one in comparison.captures
    ]
    letters = [one.letter for one in comparison.captures]
    facts = [(one.name, *(one.values[letter] for letter in letters)) for one in comparison.differences]
    body = [
        "<h1>Comparison of captures</h1>",
        _table(("capture", "name", "machine", "source", "started", "labels", "file"), captures),
        *_notes(comparison.notes),
        "<h2>Other differences</h2>",
        _table(("fact", *letters), facts) if facts else "<p>None.</p>",
        "<h2>Measurements</h2>",
    ]
    named: dict[str, list[ComparedMeasurement]] = {}
    for one in comparison.measurements:
        named.setdefault(one.name, []).append(one)
    body += [_compared_section(name, group) for name, group in named.items()]
    return _page("Comparison of captures", body)


def matrix_html(matrix: FactorMatrix) -> str:
    """Return a matrix as a page, with bars for each measurement."""
    columns = [str(number) for number in range(1, len(matrix.combinations) + 1)]
    combinations = [
        (number, *values, ", ".join(files))
        for number, values, files in zip(columns, matrix.combinations, matrix.captures, strict=True)
    ]
    body = [
        "<h1>Captures by factors</h1>",
        _table(("column", *matrix.factors, "files"), combinations),
        *_notes(matrix.notes),
        "<h2>Measurements</h2>",
    ]
    for one in matrix.measurements:
        body.append(f"<h3>{_text(one.name)}</h3>")
        tool = " ".join(part for part in (one.tool, one.tool_version, *one.arguments) if part)
        body.append(f'<p class="muted">{_text(tool)}; {_text(one.better)} is better</p>')
        bars = [(column, cell.statistics) for column, cell in zip(columns, one.cells, strict=True)]
        body.append(_bars(bars, one.unit))
        missing = [
            (column, shown_cell(cell, one.unit))
            for column, cell in zip(columns, one.cells, strict=True)
            if cell.statistics is None
        ]
        body += [_table(("column", "reason"), missing)] if missing else []
    return _page("Captures by factors", body)


def _compared_section(name: str, group: Sequence[ComparedMeasurement]) -> str:
    first = group[0]
    baseline = shown_statistics(first.baseline, first.unit)
    rows = [
        (
            one.letter,
            shown_statistics(one.other, one.unit),
            shown_difference(one),
            shown_verdict(one),
        )
        for one in group
    ]
    classes = [_CLASSES.get(one.verdict, "") for one in group]
    bars = [("A", first.baseline), *((one.letter, one.other) for one in group)]
    return "\n".join(
        (
            f"<h3>{_text(name)}</h3>",
            f'<p class="muted">{_text(first.better)} is better; A: {_text(baseline)}</p>',
            _bars(bars, first.unit),
            _table(("capture", "value", "difference to A", "verdict"), rows, classes),
        )
    )


def _bars(bars: Sequence[tuple[str, Statistics | None]], unit: MeasuredUnit) -> str:
    """Return medians as bars from zero, and the range of the values as a line."""
    known = [(name, statistics) for name, statistics in bars if statistics is not None]
    most = max((statistics.maximum for _, statistics in known), default=0.0)
    if most <= 0:
        return ""
    height = BAR_HEIGHT * len(known)
    width = LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH
    parts = [f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">']
    described = "; ".join(f"{name} {shown_value(statistics.median, unit)}" for name, statistics in known)
    parts.append(f"<title>{_text(described)}</title>")
    for number, (name, statistics) in enumerate(known):
        top = number * BAR_HEIGHT
        length, low, high = (
            max(0.0, value) / most * BAR_WIDTH for value in (statistics.median, statistics.minimum, statistics.maximum)
        )
        colour = _COLOURS[number % len(_COLOURS)]
        middle = top + BAR_HEIGHT / 2
        low_x, high_x = LABEL_WIDTH + low, LABEL_WIDTH + high
        text_x, shown = LABEL_WIDTH + max(length, high) + 6, _text(shown_value(statistics.median, unit))
        parts += [
            f'<text x="0" y="{middle + 4:g}">{_text(name)}</text>',
            f'<rect x="{LABEL_WIDTH}" y="{top + 3}" width="{length:.1f}" height="{BAR_HEIGHT - 6}" fill="{colour}"/>',
            f'<line x1="{low_x:.1f}" x2="{high_x:.1f}" y1="{middle:g}" y2="{middle:g}" stroke="#1a1a1a"/>',
            f'<text x="{text_x:.1f}" y="{middle + 4:g}">{shown}</text>',
        ]
    return "".join((*parts, "</svg>"))


def _notes(notes: Iterable[str]) -> list[str]:
    lines = "".join(f"<li>{_text(note)}</li>" for note in notes)
    return [f"<ul>{lines}</ul>"] if lines else []


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] = ()) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in heading)
    lines = []
    for number, row in enumerate(rows):
        opening = f'<tr class="{classes[number]}">' if classes and classes[number] else "<tr>"
        lines.append(opening + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _page(title: str, body: Iterable[str]) -> str:
    return f"{_HEAD}<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(
        (*body, "</body>\n</html>\n")
    )


def _text(text: str) -> str:
    return html.escape(printable(text), quote=True)
