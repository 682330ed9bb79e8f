"""Conformance report of a cluster as Markdown. Pure.

Texts from outside, such as names of machines, are escaped: they add no markup and no link.
"""

import datetime as dt
from collections.abc import Iterator, Sequence

from gpufleet.fleet.contract.records import AREA_TITLES, ItemRemedy
from gpufleet.fleet.contract.report import ConformanceItem, ConformanceMetadata, ConformanceReport, HiddenEntry
from gpufleet.model.text import clean, counted

NOT_JUDGED = "not judged yet, only the registration was checked"
"""State of a cluster without a verdict."""


def tier_text(head: ConformanceMetadata) -> str:
    """Return the tier by which a cluster was judged, and where it is from."""
    if head.tier is None:
        return "not known yet"
    return f"{head.tier:d}, {'as declared' if head.is_declared else 'as observed'}"


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
    yield "tier", tier_text(head)
    yield "reached tier", "none" if head.reached_tier is None else f"{head.reached_tier:d}"
    percent = "none applies" if head.percent is None else f"{head.percent:g} %"
    yield (
        "MUST items met",
        (
            f"{percent}: {must.met} met, {must.not_met} not met, {must.unknown} unknown, {must.waived} waived, "
            f"{must.not_applicable} not applicable"
        ),
    )
    without = head.machines_without_count
    uncounted = f", and those of {counted(without, 'machine')}" if without else ""
    reporting = f", {head.gpus_reporting} of them report" if head.gpus_reporting else ""
    known = f"on {counted(head.machines_not_visible, 'known machine')}"
    yield "GPUs not visible", f"{head.gpus_not_visible}{uncounted}, {known}{reporting}"
    yield "time", _time(head.at) if head.age_seconds is not None else f"{_time(head.at)}: {NOT_JUDGED}"


def _not_visible(entries: Sequence[HiddenEntry]) -> Iterator[str]:
    if not entries:
        yield "Nothing."
        return
    yield from (
        "| item | concerns | GPUs | reason | not visible or not certain | examples |",
        "|---|---|---|---|---|---|",
    )
    for one in entries:
        concerns = counted(one.machines, "machine") if one.machines else "the cluster" if one.is_whole else "GPUs"
        gpus = "unknown" if one.gpus is None else str(one.gpus)
        examples = ", ".join(_cell(name) for name in one.examples)
        yield f"| `{one.item}` | {concerns} | {gpus} | {_cell(one.reason)} | {one.consequence} | {examples} |"


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
