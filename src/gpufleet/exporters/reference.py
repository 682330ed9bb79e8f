"""Reference pages rendered from the catalogue: metrics, events and XIDs, and other projects' metric names."""

import re
from collections.abc import Iterable

from gpufleet.dialects import l9gpu, nvitop_exporter
from gpufleet.dialects.all_smi import ALL_SMI
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.dialect import Dialect, FamilyMapping
from gpufleet.dialects.kubevirt import KUBEVIRT
from gpufleet.dialects.nvidia_gpu_exporter import NVIDIA_GPU_EXPORTER
from gpufleet.dialects.otel_names import HW, SYSTEM, UNREAD, OtelRow
from gpufleet.model.catalogue import CATALOGUE, CATALOGUE_VERSION, Metric, MetricKind, Subject
from gpufleet.model.event import EVENT_KINDS
from gpufleet.model.xid import TABLE_DATE, TABLE_SOURCE, XIDS

_SECTIONS = (("GPUs, MIG devices and vGPU instances", False), ("The machine", True))
"""Titles, and whether the section covers metrics of the machine."""


def render_metrics_reference() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Metrics",
        "",
        f"Rendered from the catalogue (version {CATALOGUE_VERSION}) by `make docs`; do not edit.",
        "",
        "Prometheus names are `gpufleet_` and the name below. Units are base units; ratios run from 0 to 1.",
        "A state has one series for each of its names; an info text is a label of `gpufleet_gpu_info` or",
        "`gpufleet_host_info`. A reading without a value has no series: `gpufleet_reading_absent` gives its reason.",
    ]
    for title, of_machine in _SECTIONS:
        metrics = [metric for metric in CATALOGUE.values() if (Subject.MACHINE in metric.subjects) is of_machine]
        lines += ["", f"## {title}", "", *_overview(metrics)]
        for metric in metrics:
            lines += ["", *_entry(metric)]
    return "\n".join(lines) + "\n"


def _overview(metrics: Iterable[Metric]) -> list[str]:
    rows = [f"| [`{m.name}`](#{m.name}) | {m.kind} | {m.unit or '–'} | {m.lane} | {m.help} |" for m in metrics]
    return ["| name | kind | unit | lane | meaning |", "|---|---|---|---|---|", *rows]


def _entry(metric: Metric) -> list[str]:
    facts = [f"{metric.kind}, {metric.type}" + (f", {metric.unit}" if metric.unit else "")]
    if metric.kind is not MetricKind.INFO and (metric.low is not None or metric.high is not None):
        facts.append(f"range {_bound(metric.low)} to {_bound(metric.high)}")
    if metric.states:
        facts.append("states " + ", ".join(f"`{state}`" for state in metric.states))
    if metric.dims:
        facts.append("dimensions " + ", ".join(f"`{dim}`" for dim in metric.dims))
    facts.append("of " + ", ".join(metric.subjects))
    if metric.role is not None:
        facts.append(f"of a gpu only as `{metric.role}`")
    facts.append("seen from " + ", ".join(metric.sides))
    lines = [f"### {metric.name}", "", f"{metric.help}.", "", f"- {'; '.join(facts)}"]
    sources = [
        *(f"NVML `{name}`" for name in metric.nvml),
        *(f"DCGM field {field}" for field in metric.dcgm),
        *(f"nvidia-smi `{name}`" for name in metric.nvidia_smi),
        *(f"`{file}`" for file in metric.kernel),
    ]
    if sources:
        lines.append(f"- from {', '.join(sources)}")
    if metric.otel:
        lines.append(f"- OpenTelemetry `{metric.otel}`")
    lines += [f"- absent, `{case.reason}`: {case.when}" for case in metric.absent_when]
    return lines


def _bound(bound: float | None) -> str:
    return "any" if bound is None else f"{bound:g}"


def render_events_reference() -> str:
    """Return the page as Markdown."""
    kinds = [
        f"| `{row.kind}` | {row.help} | {row.code or '–'} | {_names(row.attributes)} | {row.reporter} |"
        for row in EVENT_KINDS.values()
    ]
    xids = [f"| {row.code} | {row.name} | {row.cls} | `{row.action}` |" for row in XIDS.values()]
    lines = [
        "# Events",
        "",
        "Rendered from the tables by `make docs`; do not edit.",
        "",
        "An event has a time, a kind, a code, attributes, and a device unless it concerns the whole machine. `sources`",
        "names the reporters if there are several. `count` is the number of reports if there was more than one.",
        "",
        "| kind | meaning | code | attributes | source |",
        "|---|---|---|---|---|",
        *kinds,
        "",
        "## XIDs",
        "",
        f"From NVIDIA's catalogue ({TABLE_SOURCE}) as of {TABLE_DATE}, rephrased. `action` is the first action that it",
        "recommends. An XID that is not listed has class and action `unknown`. An XID can have several causes: the",
        "class is the most likely. `investigate`: the accompanying events decide. `as_reported`: the message names the",
        "action.",
        "",
        "| XID | meaning | class | action |",
        "|---|---|---|---|",
        *xids,
    ]
    return "\n".join(lines) + "\n"


def _names(attributes: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in attributes) or "–"


PAGES = (DCGM_EXPORTER, ALL_SMI, NVIDIA_GPU_EXPORTER, KUBEVIRT)
TEXT_FAMILIES = {
    "all_smi_gpu_info": "also written",
    "nvidia_smi_gpu_info": "texts of a GPU; read and written",
}
"""Notes on info families, whose labels are texts."""

_GUEST_NOTE = (
    "Agents and hubs do not read it: its series describe virtual machines, and a label is no proof of a machine's "
    "identity."
)

_METRIC_NAME = re.compile(r"`gpufleet_(\w+)`")


def render_dialects_reference() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Names of other projects",
        "",
        "Rendered from the tables by `make docs`; do not edit.",
        "",
        "On `/metrics` a catalogue name has the prefix `gpufleet_`. `{}` selects a value of a dimension. A name",
        "without a catalogue metric states the reason. Write only: gpufleet writes the name and does not read it. Read",
        "only: gpufleet writes the metric under another name.",
        "",
    ]
    for dialect in PAGES:
        lines += _page(dialect)
    lines += _otel()
    lines += _l9gpu()
    lines += _section("nvitop-exporter", "Compared only; neither read nor written.")
    compared = [_row(name, _our_metric(metric), "") for name, metric in nvitop_exporter.MAPPED.items()]
    lines += _table(compared + [_row(name, "–", why) for name, why in nvitop_exporter.UNMAPPED.items()])
    return "\n".join(lines).rstrip() + "\n"


def _page(dialect: Dialect) -> list[str]:
    text = f"`--dialect {_flag(dialect.name)}`; read by agents, hubs and `gpufleet decode`."
    if dialect is KUBEVIRT:
        text = f"`--dialect {_flag(dialect.name)}`; read by `gpufleet decode`. {_GUEST_NOTE}"
    rows = [_row(family.name, _metric_of_family(family), _note(family)) for family in dialect.families.values()]
    rows += [_row(name, "–", TEXT_FAMILIES[name]) for name in dialect.special if name in TEXT_FAMILIES]
    rows += [_row(name, _replacement(why), _reason_with_note(name, why)) for name, why in dialect.unread.items()]
    return [*_section(dialect.name, text), *_table(rows)]


def _replacement(why: str) -> str:
    """Return the first catalogue metric that a reason names as replacement."""
    named = [name for name in _METRIC_NAME.findall(why) if name in CATALOGUE]
    return _our_metric(named[0]) if named else "–"


def _reason_with_note(name: str, why: str) -> str:
    return f"{why}; {TEXT_FAMILIES[name]}" if name in TEXT_FAMILIES else why


def _flag(name: str) -> str:
    return "dcgm" if name == DCGM_EXPORTER.name else name


def _metric_of_family(family: FamilyMapping) -> str:
    return _our_metric(family.metric, family.labels)


def _our_metric(metric: str, labels: tuple[str, ...] = ()) -> str:
    dims = ", ".join(f"{name}={value}" for name, value in zip(CATALOGUE[metric].dims, labels, strict=False))
    return f"`{metric}{{{dims}}}`" if labels else f"`{metric}`"


def _note(family: FamilyMapping) -> str:
    notes = []
    if family.times != family.over:
        notes.append(f"catalogue value = theirs {_factor(family.times, family.over)}")
    if family.states:
        notes.append(", ".join(f"{number} {state}" for number, state in enumerate(family.states)))
    if family.zero is not None:
        notes.append(f"0 means `{family.zero}`")
    if family.unread:
        notes.append(f"write only: {family.unread}")
    if not family.written:
        notes.append("read only")
    return "; ".join(notes)


def _factor(times: int, over: int) -> str:
    return f"× {times}" if over == 1 else f"/ {over}"


def _otel() -> list[str]:
    text = (
        "OTLP names, read and written. A metric without a conventional name is `gpufleet.` plus its catalogue name, "
        "with its dimensions as attributes. A device is `hw.id`, with `hw.type` `gpu`."
    )
    rows = [_otel_row(row) for row in (*HW, *SYSTEM)]
    rows += [_row(name, "–", why) for name, why in UNREAD.items()]
    return [*_section("OpenTelemetry", text), *_table(rows)]


def _otel_row(row: OtelRow, note: str = "") -> str:
    attributes = [f"`{name}={value}`" for name, value in row.fixed] + [f"`{name}`" for name in row.dims]
    notes = [f"{row.instrument.replace('_', ' ')}, `{row.unit}`", *attributes]
    if row.times != row.over:
        notes.append(f"catalogue value = theirs {_factor(row.times, row.over)}")
    if row.states:
        notes.append(f"1 for {', '.join(row.states)}")
    if row.zero is not None:
        notes.append(f"0 means `{row.zero}`")
    return _row(row.name, _our_metric(row.metric, row.labels), "; ".join([*notes, note] if note else notes))


def _l9gpu() -> list[str]:
    text = (
        "OTLP names: written with `[push.otlp] dialects`, read by hubs. All are gauges, as in l9gpu. Write only: "
        "gpufleet writes the name and does not read it. `--dialect l9gpu` writes them on a page, with underscores "
        "and without units (`gpu_utilization`); such a page is not read."
    )
    rows = [_otel_row(row, f"write only: {row.unread}" if row.unread else "") for row in l9gpu.L9GPU]
    written = {one.name: one.metric for one in (*l9gpu.QUOTIENTS, l9gpu.SUM)}
    for name, why in l9gpu.L9GPU_UNREAD.items():
        metric = written.get(name)
        rows.append(
            _row(name, _our_metric(metric), f"write only: {why}") if metric else _row(name, _replacement(why), why)
        )
    rows += [_row(f"{prefix}*", "–", "metrics of applications, not of devices") for prefix in l9gpu.L9GPU_PREFIXES]
    return [*_section("l9gpu", text), *_table(rows)]


def _section(title: str, text: str) -> list[str]:
    return [f"## {title}", "", text, ""]


def _table(rows: Iterable[str]) -> list[str]:
    return ["| name | catalogue metric | note |", "|---|---|---|", *rows, ""]


def _row(theirs: str, ours: str, note: str) -> str:
    return f"| `{theirs}` | {ours} | {note} |"
