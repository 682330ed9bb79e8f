"""Dashboard for gpufleet's own metric names: an overview, and a panel per metric of the catalogue."""

from gpufleet.dashboards.panel import Dashboard, DashboardRow, DashboardVariable, Panel, PanelQuery, PanelType
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
"""Rows below the overview: the whole catalogue except metrics reported by Kubernetes, which agents do not export."""

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
"""Grafana unit of a counter's rate by metric unit; the default is events per second."""

_PER_SECOND = "cps"


def native_dashboard() -> Dashboard:
    """Return the dashboard."""
    rows = [DashboardRow(title="", panels=_overview(), collapsed=False)]
    for title, metrics in SECTIONS:
        panels = tuple(_metric_panel(metric) for metric in metrics if metric.kind is not MetricKind.INFO)
        rows.append(DashboardRow(title=title, panels=panels))
    return Dashboard(
        uid="gpufleet",
        title="gpufleet",
        help="GPUs by gpufleet metric names. A gap is an absent reading; the panel of absent readings has its reason.",
        variables=(
            DashboardVariable(name="cluster", label="Cluster", query="label_values(gpufleet_build_info, cluster)"),
            DashboardVariable(
                name="node", label="Node", query='label_values(gpufleet_build_info{cluster=~"$cluster"}, node)'
            ),
            DashboardVariable(name="gpu", label="GPU", query=f"label_values(gpufleet_gpu_info{{{MACHINE}}}, uuid)"),
        ),
        rows=tuple(rows),
    )


def _overview() -> tuple[Panel, ...]:
    gpus = f'{DEVICE},kind="gpu"'
    xids = f"increase(gpufleet_gpu_xid_errors_total{{{DEVICE}}}[$__rate_interval]) > 0"
    age = f"time() - max by (node, reader, lane) ({MEASURED}{{{MACHINE}}})"
    return (
        _stat("GPUs", "Includes GPUs that no driver here can read", f"count(gpufleet_gpu_info{{{gpus}}})"),
        _stat("Nodes", "Agents that report", f"count(gpufleet_build_info{{{MACHINE}}})"),
        _stat("Power", "Sum over all boards", f"sum(gpufleet_gpu_power_watts{{{gpus}}})", "watt"),
        _stat("Memory in use", "Sum over all GPUs", f"sum(gpufleet_gpu_memory_used_bytes{{{gpus}}})", "bytes"),
        Panel(
            title="GPUs by state",
            help="ok, or the reason why a GPU cannot be read",
            unit="none",
            queries=(PanelQuery(f"count by (state) (gpufleet_gpu_state{{{gpus}}} == 1)", "{{state}}"),),
        ),
        Panel(
            title="Absent readings by reason",
            help="Readings without a value, by reason; see gpufleet why DEVICE for details",
            unit="none",
            queries=(PanelQuery(f"count by (reason) (gpufleet_reading_absent{{{DEVICE}}})", "{{reason}}"),),
        ),
        Panel(
            title="XIDs",
            help="Errors reported by the driver, by XID",
            unit="none",
            queries=(PanelQuery(xids, "{{node}} {{uuid}} XID {{xid}}"),),
        ),
        Panel(
            title="Clock throttling",
            help="1 while a reason reduces clocks",
            unit="none",
            queries=(
                PanelQuery(
                    f'gpufleet_gpu_clock_event_active{{{DEVICE},reason!="gpu_idle"}} == 1',
                    "{{node}} {{uuid}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Age of measurements",
            help="Time since the newest measurement of each reader and lane; grows while a reader hangs",
            unit="s",
            queries=(PanelQuery(age, "{{node}} {{reader}} {{lane}}"),),
            low=0,
        ),
        Panel(
            title="Failing readers",
            help="1 if the newest pass of the lane failed",
            unit="none",
            queries=(PanelQuery(f"gpufleet_reader_success{{{MACHINE}}} == 0", "{{node}} {{reader}} {{lane}}"),),
        ),
    )


def _stat(title: str, description: str, expression: str, unit: str = "none") -> Panel:
    return Panel(
        title=title,
        help=description,
        unit=unit,
        queries=(PanelQuery(expression, title),),
        type=PanelType.STAT,
        width=6,
        height=4,
    )


def _metric_panel(metric: Metric) -> Panel:
    of_machine = metric.subjects == (Subject.MACHINE,)
    series = f"{PREFIX}{metric.name}{{{MACHINE if of_machine else DEVICE}}}"
    legend = " ".join(
        ["{{node}}", "{{vm_name}}" if of_machine else "{{uuid}}", *(f"{{{{{name}}}}}" for name in metric.dims)]
    )
    expression, unit, panel_type = series, _UNITS[metric.unit], PanelType.SERIES
    low, high = (0.0, 1.0) if metric.unit == "ratio" and metric.high == 1 else (None, None)
    if metric.kind is MetricKind.COUNTER:
        expression, unit = f"rate({series}[$__rate_interval])", _RATES.get(metric.unit, _PER_SECOND)
    elif metric.kind is MetricKind.STATE:
        expression, unit, panel_type, legend = f"{series} == 1", "none", PanelType.STATES, f"{legend} {{{{state}}}}"
    elif metric.name.endswith("_timestamp_seconds"):
        expression, unit = f"{series} * 1000", "dateTimeFromNow"
    return Panel(
        title=_title(metric),
        help=f"{metric.help} ({PREFIX}{metric.name})",
        unit=unit,
        queries=(PanelQuery(expression, legend),),
        type=panel_type,
        low=low,
        high=high,
    )


def _title(metric: Metric) -> str:
    """Return a title from the metric's name, without the subject and unit, which the row and axis show."""
    name = metric.name.removeprefix("gpu_").removeprefix("host_").removesuffix("_total")
    name = name.removesuffix(f"_{metric.unit}") if metric.unit else name
    title = name.replace("_", " ")
    return title[:1].upper() + title[1:]
