"""Conformance report of a cluster as Markdown. Pure.

Texts from outside, such as names of machines, are escaped: they add no markup and no link.
"""

import datetime as dt
from collections.abc import Iterator, Sequence

from gpufleet.fleet.contract.records import AREA_TITLES, ItemRemedy
from gpufleet.fleet.contract.report import ConformanceItem, ConformanceMetadata, ConformanceReport, HiddenEntry
from gpufleet.model.text import clean

_WHOLE = "the whole cluster"


def render_report(report: ConformanceReport) -> str:
    """Return the report as Markdown."""
    head = report.metadata
    lines = [
        f"# {_cell(head.cluster)}: {_cell(head.contract)} {' and '.join(head.versions)}",
        "",
        "| subject | value |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in _head(head)),
        "",
        "## Not visible",
        "",
        *_not_visible(report.not_visible),
    ]
    if report.warnings:
        lines += ["", "Warnings, until the next version of the contract:", ""]
        lines += [f"- `{item}`" for item in report.warnings]
    if report.ignored_waivers:
        lines += ["", "Waivers that do not count:", "", *(f"- {_cell(one)}" for one in report.ignored_waivers)]
    for area, items in report.spec.items():
        if items:
            lines += ["", f"## {AREA_TITLES[area]}", "", "| item | level | status | since | evidence | notes |"]
            lines += ["|---|---|---|---|---|---|", *(_row(one) for one in items)]
    return "\n".join(lines) + "\n"


def _head(head: ConformanceMetadata) -> Iterator[tuple[str, str]]:
    must = head.must
    yield (
        "verdict",
        head.visibility.replace("_", " ")
        + (f" since {_time(head.visible_since)}" if head.visible_since is not None else ""),
    )
    tier = "unknown" if head.tier is None else f"{head.tier:d}"
    yield "tier", f"{tier}, {'declared' if head.is_declared else 'observed'}"
    yield "reached tier", "none" if head.reached_tier is None else f"{head.reached_tier:d}"
    percent = "none applies" if head.percent is None else f"{head.percent:g} %"
    yield (
        "MUST items met",
        (
            f"{percent}: {must.met} met, {must.not_met} not met, {must.unknown} unknown, {must.waived} waived, "
            f"{must.not_applicable} not applicable"
        ),
    )
    uncounted = f", and those of {head.machines_without_count} machines" if head.machines_without_count else ""
    yield "GPUs not visible", f"{head.gpus_not_visible}{uncounted}, on {head.machines_not_visible} known machines"
    yield "time", _time(head.at)


def _not_visible(entries: Sequence[HiddenEntry]) -> Iterator[str]:
    if not entries:
        yield "Nothing."
        return
    yield from ("| item | concerns | GPUs | reason | examples |", "|---|---|---|---|---|")
    for one in entries:
        concerns = f"{one.machines} machines" if one.machines else _WHOLE if one.is_whole else "GPUs"
        gpus = "all" if one.gpus is None else str(one.gpus)
        examples = ", ".join(_cell(name) for name in one.examples)
        yield f"| `{one.item}` | {concerns} | {gpus} | {_cell(one.reason)} | {examples} |"


def _row(item: ConformanceItem) -> str:
    remedy = ""
    if item.remedy is not None:
        remedy = f"; {_remedy(item.remedy)}" if item.notes else _remedy(item.remedy)
    evidence = "<br>".join(_cell(one) for one in item.evidence)
    since = "" if item.since is None else _time(item.since)
    notes = f"{_cell(item.notes)}{remedy}"
    return f"| `{item.id}`: {item.description} | {item.level} | {item.status} | {since} | {evidence} | {notes} |"


def _remedy(remedy: ItemRemedy) -> str:
    parts = [f"`{remedy.command}`" if remedy.command else "", f"docs/{remedy.page}" if remedy.page else ""]
    return "remedy: " + ", ".join(one for one in parts if one)


def _time(at: dt.datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%SZ}"


_ESCAPES = str.maketrans({character: f"\\{character}" for character in "\\`*_[]|#~"} | {"<": "&lt;", "&": "&amp;"})


def _cell(text: str) -> str:
    """Return a text from outside as the cell of a table, without markup of its own."""
    return clean(" ".join(text.split())).translate(_ESCAPES).replace("://", "\\://")  # no links either
