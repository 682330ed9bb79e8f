"""Dashboard for gpufleet's own metric names: an overview, and below it every metric of the catalogue."""

from gpufleet.dashboards.panel import Dashboard, DashboardRow, DashboardVariable, Panel, PanelQuery, PanelType
from gpufleet.dialects.native import MEASURED, PREFIX
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane, Metric, MetricKind, Subject
from gpufleet.model.catalogue.events import EVENT_METRICS
from gpufleet.model.catalogue.gpu import GPU_METRICS
from gpufleet.model.catalogue.gpu_activity import ACTIVITY_METRICS
from gpufleet.model.catalogue.gpu_board import BOARD_METRICS
from gpufleet.model.catalogue.gpu_errors import ERROR_METRICS
from gpufleet.model.catalogue.gpu_links import LINK_METRICS
from gpufleet.model.catalogue.guest import GUEST_METRICS
from gpufleet.model.catalogue.host import HOST_METRICS
from gpufleet.model.catalogue.instances import INSTANCE_METRICS
from gpufleet.model.catalogue.probe import PROBE_METRICS
from gpufleet.model.view import Side

SECTIONS: tuple[tuple[str, tuple[Metric, ...]], ...] = (
    ("GPUs: utilization, memory, temperature, power, clocks", GPU_METRICS),
    ("GPUs: activity of their parts", ACTIVITY_METRICS),
    ("GPUs: the board", BOARD_METRICS),
    ("GPUs: errors and spare rows", ERROR_METRICS),
    ("GPUs: PCIe, NVLink and fabric", LINK_METRICS),
    ("MIG devices and vGPU instances", INSTANCE_METRICS),
    ("XIDs", EVENT_METRICS),
    ("Machines", HOST_METRICS),
    ("Virtual machines", GUEST_METRICS),
    ("Performance probe", PROBE_METRICS),
)
"""Rows below the overview: the whole catalogue except metrics reported by Kubernetes, which agents do not export."""

CONSTANTS = frozenset(
    {
        "gpu_memory_total_bytes",
        "gpu_bar1_total_bytes",
        "gpu_protected_memory_total_bytes",
        "gpu_unprotected_memory_total_bytes",
        "gpu_mig_devices_max",
        "mig_multiprocessors",
        "mig_gpu_slices",
        "mig_compute_slices",
        "mig_copy_engines",
        "mig_decoders",
        "mig_encoders",
        "mig_jpeg_engines",
        "mig_ofa_engines",
        "mig_placement_start",
        "mig_placement_size",
        "gpu_vgpu_host_mode",
        "gpu_vgpu_scheduler_policy",
        "gpu_vgpu_scheduler_arr_mode",
        "gpu_vgpu_scheduler_arr_supported",
        "gpu_vgpu_scheduler_time_slice_seconds",
        "gpu_vgpu_heterogeneous_mode",
        "gpu_vgpu_capability",
        "vgpu_ecc_mode",
        "vgpu_frame_rate_limit_hertz",
        "vgpu_placement_id",
        "vgpu_accounting_mode",
        "host_cpus",
        "host_memory_total_bytes",
        "host_swap_total_bytes",
        "host_filesystem_size_bytes",
        "host_filesystem_files",
        "guest_expected_gpus",
    }
)
"""Metrics outside the static lane that are constant while a machine runs."""

_WRITTEN = (
    "ARR", "BAR1", "C2C", "CPU", "CPUs", "CUDA", "DCGM", "DRAM", "ECC", "FP16", "FP32", "FP64", "GPU", "GPUs",
    "GSP", "ID", "InfiniBand", "JPEG", "MIG", "MPS", "NUMA", "NVIDIA", "NVLink", "NVLinks", "NVSwitch", "OFA",
    "PCI", "PCIe", "SM", "SRAM", "TPC", "VM", "XID", "vGPU",
)  # fmt: skip

ACRONYMS = {text.lower(): text for text in _WRITTEN}
"""Lower-case part of a metric's name to its form in titles."""

MACHINE = 'cluster=~"$cluster",node=~"$node"'
DEVICE = f'{MACHINE},uuid=~"$gpu"'
MACHINE_LABELS = "cluster, node, vm_name"
DEVICE_LABELS = f"{MACHINE_LABELS}, uuid"

TOP = 10
"""GPUs in a ranking."""

_LISTING = '__name__=~"{}"'.format(
    "|".join(f"{PREFIX}gpu_{name}" for name in ("info", "state", "temperature_celsius", "memory_used_bytes"))
)
"""Matcher of the series that show a GPU."""

_DEVICE_TEXTS = "kind, name, serial, pci_address, board_part_number, vbios_version"
_MACHINE_TEXTS = (
    "hostname, product_name, cpu_model, os_name, kernel_release, nvidia_driver_version, nvidia_cuda_version"
)

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

_EXCEPT = "without nodes whose source has no values of idle GPUs (all-smi)"

_PER_SECOND = "cps"
_TIME = "_timestamp_seconds"


def native_dashboard() -> Dashboard:
    """Return the dashboard."""
    rows = [
        DashboardRow(title="", panels=_overview(), collapsed=False),
        DashboardRow(title="Inventory", panels=_inventory()),
    ]
    for title, metrics in SECTIONS:
        rows.append(DashboardRow(title=title, panels=_section(metrics)))
    return Dashboard(
        uid="gpufleet",
        title="gpufleet",
        help="GPUs by gpufleet metric names. A gap is an absent reading; the panel of absent readings has its reason.",
        variables=(
            DashboardVariable(name="cluster", label="Cluster", query="label_values(gpufleet_host_load_1m, cluster)"),
            DashboardVariable(
                name="node", label="Node", query='label_values(gpufleet_host_load_1m{cluster=~"$cluster"}, node)'
            ),
            DashboardVariable(name="gpu", label="GPU", query=f"label_values(gpufleet_gpu_state{{{MACHINE}}}, uuid)"),
        ),
        rows=tuple(rows),
    )


def _overview() -> tuple[Panel, ...]:
    gpus = f'{DEVICE},kind="gpu"'
    # A hub that forwards names the reader: of several readers of one GPU, the greatest value counts.
    utilization, temperature, power, used, total = (
        f"max by ({DEVICE_LABELS}) (gpufleet_gpu_{name}{{{gpus}}})"
        for name in (
            "utilization_ratio",
            "temperature_celsius",
            "power_watts",
            "memory_used_bytes",
            "memory_total_bytes",
        )
    )
    # Means and shares of a node without the values of its idle GPUs would be too high. Another reader may have them.
    zero = f'gpufleet_reading_absent{{{gpus},reason="{Reason.AMBIGUOUS_ZERO}",metric='
    but_use, but_memory = (
        f'unless on (cluster, node) ({zero}"{metric}"}} unless on ({DEVICE_LABELS}) {values})'
        for metric, values in (("gpu_utilization_ratio", utilization), ("gpu_memory_used_bytes", used))
    )
    measured = f"({utilization} {but_use})"
    # Of the GPUs that report both.
    used, total = f"({used} and {total} {but_memory})", f"({total} and {used} {but_memory})"
    states = f"max by ({DEVICE_LABELS}, pci_address, state) (gpufleet_gpu_state{{{gpus}}})"
    failed = f'max by ({DEVICE_LABELS}, pci_address, state) (gpufleet_gpu_state{{{gpus},state!="ok"}})'
    stateless = f'gpufleet_reading_absent{{{gpus},metric="gpu_state"'
    absent, bound, unread = (
        f"max by ({DEVICE_LABELS}, pci_address, reason) ({stateless}{matchers}}})"
        for matchers in (
            "",
            f',reason="{Reason.BOUND_TO_VFIO}"',
            f',side="{Side.PCI_ONLY}",reason!="{Reason.BOUND_TO_VFIO}"',
        )
    )
    reasons = f'label_replace({absent}, "state", "$1", "reason", "(.*)")'
    # A hub forwards no texts, and most exporters report no state.
    listed = f"max by ({DEVICE_LABELS}, pci_address) ({{{_LISTING},{gpus}}})"
    nodes = f"count by (cluster, node) (gpufleet_host_load_1m{{{MACHINE}}})"
    xids, last_xid = f"gpufleet_gpu_xid_events_total{{{DEVICE}}}", f"gpufleet_gpu_last_xid{{{DEVICE}}}"
    last_xid_at = f"gpufleet_gpu_last_xid_timestamp_seconds{{{DEVICE}}}"
    age = f"time() - max by (node, reader, lane) ({MEASURED}{{{MACHINE}}})"
    return (
        _stat(
            "GPUs",
            "Includes GPUs that no driver here can read; those passed through count in their virtual machine",
            f"count({listed} unless on ({DEVICE_LABELS}, pci_address) {bound})",
        ),
        _stat("GPUs not ok", "In another state than ok, or read by no driver", f"sum({failed} or {unread})"),
        _stat("Nodes", "Machines that report their load", f"count({nodes})"),
        _stat("Utilization", f"Mean of all GPUs; {_EXCEPT}", f"avg({measured})", "percentunit"),
        _stat("Memory in use", f"Share of all GPUs; {_EXCEPT}", f"sum {used} / sum {total}", "percentunit"),
        _stat("Highest temperature", "Of all GPUs", f"max({temperature})", "celsius"),
        _stat("Power", "Sum over all boards", f"sum({power})", "watt"),
        _stat("XIDs", "Errors in the selected time range", f"round(sum(increase({xids}[$__range])))"),
        _per_node(
            "Utilization", f"Mean of the node's GPUs; {_EXCEPT}", f"avg by (cluster, node) ({measured})", "percentunit"
        ),
        _per_node(
            "Memory in use",
            f"Share of the memory of the node's GPUs; {_EXCEPT}",
            f"sum by (cluster, node) {used} / sum by (cluster, node) {total}",
            "percentunit",
        ),
        _per_node(
            "Highest temperature", "Hottest GPU of the node", f"max by (cluster, node) ({temperature})", "celsius"
        ),
        _per_node("Power", "Sum of the node's boards", f"sum by (cluster, node) ({power})", "watt"),
        _top("Most utilized GPUs", utilization, "percentunit"),
        _top("Least utilized GPUs", measured, "percentunit", function="bottomk", scope=f"; {_EXCEPT}"),
        _top("Hottest GPUs", temperature, "celsius"),
        _top("GPUs with the highest power", power, "watt"),
        Panel(
            title="XIDs",
            help="Errors reported by the driver",
            unit="none",
            queries=(
                PanelQuery(
                    f"sum by (cluster, node, uuid) (increase({xids}[$__rate_interval])) > 0", "{{node}} {{uuid}}"
                ),
            ),
        ),
        Panel(
            title="Last XID of each GPU",
            help="Number and time of the driver's last error; GPUs without one are not listed",
            unit="none",
            queries=(
                PanelQuery(f"max by ({DEVICE_LABELS}) ({last_xid})", "XID"),
                PanelQuery(f"max by ({DEVICE_LABELS}) ({last_xid_at}) * 1000", "Time", "dateTimeAsIso"),
            ),
            type=PanelType.TABLE,
        ),
        Panel(
            title="GPUs by state",
            help="ok, or the reason why a GPU cannot be read",
            unit="none",
            queries=(PanelQuery(f"count by (state) ({states} == 1 or {reasons})", "{{state}}"),),
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
            title="Absent readings by reason",
            help="Readings without a value, by reason; see gpufleet why DEVICE for details",
            unit="none",
            queries=(PanelQuery(f"count by (reason) (gpufleet_reading_absent{{{DEVICE}}})", "{{reason}}"),),
        ),
        Panel(
            title="Failing readers",
            help="1 if the newest pass of the lane failed",
            unit="none",
            queries=(PanelQuery(f"gpufleet_reader_success{{{MACHINE}}} == 0", "{{node}} {{reader}} {{lane}}"),),
        ),
        Panel(
            title="Age of measurements",
            help="Time since the newest measurement of each reader and lane; grows while a reader hangs",
            unit="s",
            queries=(PanelQuery(age, "{{node}} {{reader}} {{lane}}"),),
            low=0,
        ),
    )


def _stat(title: str, description: str, expression: str, unit: str = "none") -> Panel:
    return Panel(
        title=title,
        help=description,
        unit=unit,
        queries=(PanelQuery(expression, title),),
        type=PanelType.STAT,
        width=3,
        height=4,
    )


def _per_node(title: str, description: str, expression: str, unit: str) -> Panel:
    low, high = (0.0, 1.0) if unit == "percentunit" else (None, None)
    query = PanelQuery(expression, "{{cluster}} {{node}}")
    return Panel(title=f"{title} by node", help=description, unit=unit, queries=(query,), low=low, high=high)


def _top(title: str, series: str, unit: str, *, function: str = "topk", scope: str = "") -> Panel:
    order = "sort_desc" if function == "topk" else "sort"
    return Panel(
        title=title,
        help=f"{TOP} GPUs now{scope}",
        unit=unit,
        queries=(PanelQuery(f"{order}({function}({TOP}, {series}))", "{{node}} {{uuid}}"),),
        type=PanelType.BARS,
        low=0.0,
        high=1.0 if unit == "percentunit" else None,
        width=6,
    )


def _section(metrics: tuple[Metric, ...]) -> tuple[Panel, ...]:
    """Return a panel per metric that changes, then tables of constants and points in time."""
    values = [metric for metric in metrics if metric.kind is not MetricKind.INFO]
    tabulated = [metric for metric in values if _is_tabulated(metric)]
    panels = [_metric_panel(metric) for metric in values if metric not in tabulated]
    for of_machine, subject in ((False, "devices"), (True, "machines")):
        columns = [metric for metric in tabulated if not metric.dims and _is_of_machine(metric) is of_machine]
        if columns:
            queries = tuple(_column(metric) for metric in columns)
            are_times = all(metric.name.endswith(_TIME) for metric in columns)
            title = f"{'Times' if are_times else 'Constants'} of {subject}"
            panels.append(_table(title, "Values that do not change over time, and times of events", queries))
    panels += [_table(_title(metric), _help(metric), (_column(metric),)) for metric in tabulated if metric.dims]
    return tuple(panels)


def _inventory() -> tuple[Panel, ...]:
    devices = f"max by ({DEVICE_LABELS}, {_DEVICE_TEXTS}) (gpufleet_gpu_info{{{DEVICE}}})"
    machines = f"max by ({MACHINE_LABELS}, {_MACHINE_TEXTS}) (gpufleet_host_info{{{MACHINE}}})"
    return (
        _table("Devices", "Names, versions and addresses", (PanelQuery(devices, "Model", label="name"),)),
        _table("Machines", "Names and versions", (PanelQuery(machines, "Host name", label="hostname"),)),
    )


def _is_tabulated(metric: Metric) -> bool:
    """Return whether the metric is a constant or a point in time: a chart of it shows nothing."""
    if metric.kind is MetricKind.COUNTER:
        return False
    return metric.lane is Lane.STATIC or metric.name in CONSTANTS or metric.name.endswith(_TIME)


def _is_of_machine(metric: Metric) -> bool:
    return metric.subjects == (Subject.MACHINE,)


def _series(metric: Metric) -> str:
    return f"{PREFIX}{metric.name}{{{MACHINE if _is_of_machine(metric) else DEVICE}}}"


def _column(metric: Metric) -> PanelQuery:
    """Return a column of a table: the value, or the name of the state."""
    title, name = _title(metric), metric.name
    labels = ", ".join((MACHINE_LABELS if _is_of_machine(metric) else DEVICE_LABELS, *metric.dims))
    # Static readings that a hub or agent writes have one point in ten minutes.
    value = f"last_over_time({_series(metric)}[15m])"
    if metric.kind is MetricKind.STATE:
        named = f'label_replace({value} == 1, "{name}", "$1", "state", "(.*)")'
        return PanelQuery(f"max by ({labels}, {name}) ({named})", title, label=name)
    if name.endswith(_TIME):
        return PanelQuery(f"max by ({labels}) ({value}) * 1000", title, "dateTimeAsIso")
    return PanelQuery(f"max by ({labels}) ({value})", title, _UNITS[metric.unit])


def _table(title: str, description: str, queries: tuple[PanelQuery, ...]) -> Panel:
    return Panel(title=title, help=description, unit="none", queries=queries, type=PanelType.TABLE, width=24, height=10)


def _metric_panel(metric: Metric) -> Panel:
    series, of_machine = _series(metric), _is_of_machine(metric)
    legend = " ".join(
        ["{{node}}", "{{vm_name}}" if of_machine else "{{uuid}}", *(f"{{{{{name}}}}}" for name in metric.dims)]
    )
    expression, unit, panel_type = series, _UNITS[metric.unit], PanelType.SERIES
    low, high = (0.0, 1.0) if metric.unit == "ratio" and metric.high == 1 else (None, None)
    if metric.kind is MetricKind.COUNTER:
        expression, unit = f"rate({series}[$__rate_interval])", _RATES.get(metric.unit, _PER_SECOND)
    elif metric.kind is MetricKind.STATE:
        expression, unit, panel_type, legend = f"{series} == 1", "none", PanelType.STATES, f"{legend} {{{{state}}}}"
    return Panel(
        title=_title(metric),
        help=_help(metric),
        unit=unit,
        queries=(PanelQuery(expression, legend),),
        type=panel_type,
        low=low,
        high=high,
    )


def _help(metric: Metric) -> str:
    return f"{metric.help} ({PREFIX}{metric.name})"


def _title(metric: Metric) -> str:
    """Return a title from the metric's name, without the subject and unit, which the row and axis show."""
    name = metric.name.removeprefix("gpu_").removeprefix("host_").removesuffix("_total")
    name = name.removesuffix(f"_{metric.unit}").removesuffix("_timestamp") if metric.unit else name
    first, *others = (ACRONYMS.get(part, part) for part in name.split("_"))
    return " ".join([first if first in ACRONYMS.values() else first.capitalize(), *others])
