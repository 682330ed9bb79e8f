"""Reference page of metrics, rendered from the catalogue."""

from collections.abc import Iterable

from gpufleet.model.catalogue import CATALOGUE, CATALOGUE_VERSION, Metric, MetricKind, Subject

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
