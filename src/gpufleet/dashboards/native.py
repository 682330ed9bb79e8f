"""The dashboard of our own names: an overview, and below it a panel for each metric of the catalogue."""

from gpufleet.dashboards.panel import Dashboard, Look, Panel, Query, Row, Variable
from gpufleet.dialects.native import MEASURED, PREFIX
from gpufleet.model.catalogue import Metric, MetricKind, Subject
from gpufleet.model.catalogue.events import EVENT_METRICS
from gpufleet.model.catalogue.gpu import GPU_METRICS
from gpufleet.model.catalogue.gpu_activity import ACTIVITY_METRICS
from gpufleet.model.catalogue.gpu_board import BOARD_METRICS
from gpufleet.model.catalogue.gpu_errors import ERROR_METRICS
from gpufleet.model.catalogue.gpu_links import LINK_METRICS
from gpufleet.model.catalogue.guest import GUEST_METRICS
from gpufleet.model.catalogue.host import HOST_METRICS
from gpufleet.model.catalogue.instances import INSTANCE_METRICS

SECTIONS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("GPUs: use, memory, heat, power, clocks", GPU_METRICS),
    ("GPUs: activity of their parts", ACTIVITY_METRICS),
    ("GPUs: the board", BOARD_METRICS),
    ("GPUs: errors and spare rows", ERROR_METRICS),
    ("GPUs: PCIe, NVLink and fabric", LINK_METRICS),
    ("MIG devices and vGPU instances", INSTANCE_METRICS),
    ("XIDs", EVENT_METRICS),
    ("Machines", HOST_METRICS),
    ("Virtual machines", GUEST_METRICS),
)
"""Rows below the overview. Together they are the catalogue, but for what Kubernetes says: no agent tells that."""

MACHINE = 'cluster=~"$cluster",node=~"$node"'
DEVICE = f'{MACHINE},uuid=~"$gpu"'

_UNITS = {
    "ratio": "percentunit",
    "bytes": "bytes",
    "bytes_per_second": "Bps",
    "watts": "watt",
    "joules": "joule",
    "celsius": "celsius",
    "hertz": "hertz",
    "seconds": "s",
    "rpm": "rotrpm",
    "": "none",
}
_RATES = {"bytes": "Bps", "joules": "watt", "seconds": "percentunit"}
"""What a second of growth is in; of everything else it is a number of events."""

_PER_SECOND = "cps"


def native_dashboard() -> Dashboard:
    """Return it."""
    rows = [Row(title="", panels=_overview(), closed=False)]
    for title, metrics in SECTIONS:
        panels = tuple(_panel(metric) for metric in metrics if metric.kind is not MetricKind.INFO)
        rows.append(Row(title=title, panels=panels))
    return Dashboard(
        uid="gpufleet",
        title="gpufleet",
        help="GPUs by gpufleet's own names. A gap is a reading that is absent; the panel of absent readings says why.",
        variables=(
            Variable(name="cluster", label="Cluster", query="label_values(gpufleet_build_info, cluster)"),
            Variable(name="node", label="Node", query='label_values(gpufleet_build_info{cluster=~"$cluster"}, node)'),
            Variable(name="gpu", label="GPU", query=f"label_values(gpufleet_gpu_info{{{MACHINE}}}, uuid)"),
        ),
        rows=tuple(rows),
    )


def _overview() -> tuple[Panel, ...]:
    gpus = f'{DEVICE},kind="gpu"'
    xids = f"increase(gpufleet_gpu_xid_errors_total{{{DEVICE}}}[$__rate_interval]) > 0"
    age = f"time() - max by (node, reader, lane) ({MEASURED}{{{MACHINE}}})"
    return (
        _stat("GPUs", "Also those that no driver here reads", f"count(gpufleet_gpu_info{{{gpus}}})"),
        _stat("Nodes", "Agents that tell something", f"count(gpufleet_build_info{{{MACHINE}}})"),
        _stat("Power", "Of all boards together", f"sum(gpufleet_gpu_power_watts{{{gpus}}})", "watt"),
        _stat("Memory in use", "Of all GPUs together", f"sum(gpufleet_gpu_memory_used_bytes{{{gpus}}})", "bytes"),
        Panel(
            title="GPUs by state",
            help="ok, or what keeps a GPU from being read",
            unit="none",
            queries=(Query(f"count by (state) (gpufleet_gpu_state{{{gpus}}} == 1)", "{{state}}"),),
        ),
        Panel(
            title="Absent readings by reason",
            help="Readings without a value now, and why; gpufleet why DEVICE says more",
            unit="none",
            queries=(Query(f"count by (reason) (gpufleet_reading_absent{{{DEVICE}}})", "{{reason}}"),),
        ),
        Panel(
            title="XIDs",
            help="Errors that the driver reported, by number",
            unit="none",
            queries=(Query(xids, "{{node}} {{uuid}} XID {{xid}}"),),
        ),
        Panel(
            title="Clocks held down",
            help="1 while a reason holds clocks down",
            unit="none",
            queries=(
                Query(
                    f'gpufleet_gpu_clock_event_active{{{DEVICE},reason!="gpu_idle"}} == 1',
                    "{{node}} {{uuid}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Age of what was measured",
            help="Since when each reader's lane has told nothing new; it grows where a reader hangs",
            unit="s",
            queries=(Query(age, "{{node}} {{reader}} {{lane}}"),),
            low=0,
        ),
        Panel(
            title="Readers that fail",
            help="1 for a lane whose newest pass failed",
            unit="none",
            queries=(Query(f"gpufleet_reader_success{{{MACHINE}}} == 0", "{{node}} {{reader}} {{lane}}"),),
        ),
    )


def _stat(title: str, words: str, expression: str, unit: str = "none") -> Panel:
    return Panel(
        title=title, help=words, unit=unit, queries=(Query(expression, title),), look=Look.STAT, width=6, height=4
    )


def _panel(metric: Metric) -> Panel:
    of_machine = metric.subjects == (Subject.MACHINE,)
    series = f"{PREFIX}{metric.name}{{{MACHINE if of_machine else DEVICE}}}"
    legend = " ".join(
        ["{{node}}", "{{vm_name}}" if of_machine else "{{uuid}}", *(f"{{{{{name}}}}}" for name in metric.dims)]
    )
    expression, unit, look = series, _UNITS[metric.unit], Look.SERIES
    low, high = (0.0, 1.0) if metric.unit == "ratio" and metric.high == 1 else (None, None)
    if metric.kind is MetricKind.COUNTER:
        expression, unit = f"rate({series}[$__rate_interval])", _RATES.get(metric.unit, _PER_SECOND)
    elif metric.kind is MetricKind.STATE:
        expression, unit, look, legend = f"{series} == 1", "none", Look.STATES, f"{legend} {{{{state}}}}"
    elif metric.name.endswith("_timestamp_seconds"):
        expression, unit = f"{series} * 1000", "dateTimeFromNow"
    return Panel(
        title=_title(metric),
        help=f"{metric.help} ({PREFIX}{metric.name})",
        unit=unit,
        queries=(Query(expression, legend),),
        look=look,
        low=low,
        high=high,
    )


def _title(metric: Metric) -> str:
    """Return the name in words, without what the row and the axis say."""
    name = metric.name.removeprefix("gpu_").removeprefix("host_").removesuffix("_total")
    name = name.removesuffix(f"_{metric.unit}") if metric.unit else name
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]
