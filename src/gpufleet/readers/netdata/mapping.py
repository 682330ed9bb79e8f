"""Mapping of Netdata's charts to the catalogue: names and units.

There are two generations of GPU charts. Charts of python.d are named by index (`nvidia_smi.gpu0_temperature`), charts
of go.d by UUID (`nvidia_smi.gpu_gpu-<uuid>_temperature`). The first were seen on Netdata 1.37.1. The second are from
the collector's public source and were never seen running.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpufleet.fleet.board import drop_unproven_uses, unproven_uses, without_unproven_uses
from gpufleet.fleet.proc_files import FIXED_ZERO, has_slabs
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Metric
from gpufleet.model.errors import WireError
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.netdata.parse import Chart

MAX_GPUS, MAX_INTERFACES = 256, 512
"""Limits of one page; more than any host has."""

STALE_SECONDS = 30
"""Age relative to the newest chart of the page beyond which a chart is stale."""

_BY_INDEX = re.compile(r"nvidia_smi[^.]*\.gpu(\d{1,4})_([a-z0-9_]+)\Z")
_NAME = re.compile(r"gpu\d+ (.{1,200})\Z")
_BY_UUID = re.compile(r"nvidia_smi[^.]*\.gpu_(gpu-[0-9a-f-]{36})_([a-z0-9_]+)\Z")

Convert = Callable[[float], Value]


def _times(factor: int) -> Convert:
    return lambda value: round(value * factor)


def _mebibytes(value: float) -> Value:
    """Convert MiB to bytes. Netdata prints seven decimals; rounding to whole KiB restores the exact number."""
    return round(value * 1024) * 1024


def _percent(value: float) -> Value:
    return value / 100


def _same(value: float) -> Value:
    return value


class ChartRow(NamedTuple):
    """Row of the mapping: end of a chart's name, dimension and unit conversion of one metric."""

    metric: str
    chart: str
    dimension: str
    convert: Convert


PYTHON_D: tuple[ChartRow, ...] = (
    ChartRow("gpu_utilization_ratio", "gpu_utilization", "utilization", _percent),
    ChartRow("gpu_memory_activity_ratio", "mem_utilization", "utilization", _percent),
    ChartRow("gpu_encoder_utilization_ratio", "encoder_utilization", "encoder", _percent),
    ChartRow("gpu_decoder_utilization_ratio", "encoder_utilization", "decoder", _percent),
    ChartRow("gpu_memory_used_bytes", "mem_usage", "used", _mebibytes),
    ChartRow("gpu_memory_free_bytes", "mem_usage", "free", _mebibytes),
    ChartRow("gpu_bar1_used_bytes", "bar1_mem_usage", "used", _mebibytes),
    ChartRow("gpu_temperature_celsius", "temperature", "temp", _same),
    ChartRow("gpu_power_watts", "power", "power", _same),
    ChartRow("gpu_graphics_clock_hertz", "clocks", "graphics", _times(1_000_000)),
    ChartRow("gpu_sm_clock_hertz", "clocks", "sm", _times(1_000_000)),
    ChartRow("gpu_memory_clock_hertz", "clocks", "mem", _times(1_000_000)),
    ChartRow("gpu_video_clock_hertz", "clocks", "video", _times(1_000_000)),
)
GO_D: tuple[ChartRow, ...] = (
    ChartRow("gpu_utilization_ratio", "gpu_utilization", "gpu", _percent),
    ChartRow("gpu_memory_activity_ratio", "memory_utilization", "memory", _percent),
    ChartRow("gpu_encoder_utilization_ratio", "encoder_utilization", "encoder", _percent),
    ChartRow("gpu_decoder_utilization_ratio", "decoder_utilization", "decoder", _percent),
    ChartRow("gpu_memory_used_bytes", "frame_buffer_memory_usage", "used", _times(1)),
    ChartRow("gpu_memory_free_bytes", "frame_buffer_memory_usage", "free", _times(1)),
    ChartRow("gpu_memory_reserved_bytes", "frame_buffer_memory_usage", "reserved", _times(1)),
    ChartRow("gpu_bar1_used_bytes", "bar1_memory_usage", "used", _times(1)),
    ChartRow("gpu_temperature_celsius", "temperature", "temperature", _same),
    ChartRow("gpu_power_watts", "power_draw", "power_draw", _same),
    ChartRow("gpu_graphics_clock_hertz", "clock_freq", "graphics", _times(1_000_000)),
    ChartRow("gpu_sm_clock_hertz", "clock_freq", "sm", _times(1_000_000)),
    ChartRow("gpu_memory_clock_hertz", "clock_freq", "mem", _times(1_000_000)),
    ChartRow("gpu_video_clock_hertz", "clock_freq", "video", _times(1_000_000)),
)
_STATES = {"power_state", "performance_state"}
_FANS = {"fan_speed": "speed", "fan_speed_perc": "fan_speed"}
STATE, FAN = "gpu_performance_state", "gpu_fan_speed_ratio"

HOST: tuple[ChartRow, ...] = (
    ChartRow("host_load_1m", "system.load", "load1", _same),
    ChartRow("host_load_5m", "system.load", "load5", _same),
    ChartRow("host_load_15m", "system.load", "load15", _same),
    ChartRow("host_memory_available_bytes", "mem.available", "avail", _mebibytes),
    ChartRow("host_memory_free_bytes", "system.ram", "free", _mebibytes),
    ChartRow("host_memory_buffers_bytes", "system.ram", "buffers", _mebibytes),
    ChartRow("host_swap_free_bytes", "system.swap", "free", _mebibytes),
)
_NETWORK = ("net_operstate.", "net_speed.", "net.")
CPU, CPU_CHART = "host_cpu_utilization_ratio", "system.cpu"
UP, SPEED = "host_network_up", "host_network_speed_bytes_per_second"
BUFFERS, KERNEL_CHART = "host_memory_buffers_bytes", "mem.kernel"
NO_SPEED = Absent(Reason.NO_DATA, "Netdata shows 0 for a speed that the kernel does not know")
_IDLE = {"idle", "iowait"}
_COUNTED_TWICE = {"guest", "guest_nice"}
"""Modes that the kernel also counts in user and nice."""

_MAX_VALUE = 2.0**42
"""Largest value accepted, in Netdata's unit; times any factor here it fits in 63 bits."""

UNKNOWN_CLASS = "unknown"
"""Class of network interfaces, which Netdata's page does not have."""


class GpuCharts(NamedTuple):
    """Charts of one GPU.

    Attributes:
        name: `gpu0`, or the UUID as the driver writes it.
        uuid: whether `name` is a UUID.
        rows: mapping of the charts' generation.
        charts: charts by the end of their names.
    """

    name: str
    uuid: bool
    rows: tuple[ChartRow, ...]
    charts: dict[str, Chart]


class ChartReadings(NamedTuple):
    """Readings of the host or a GPU, and the oldest collection time of their charts (seconds), or None."""

    values: dict[str, Value | Absent]
    dims: tuple[DimValue, ...]
    updated: int | None


def group_gpus(charts: Mapping[str, Chart]) -> list[GpuCharts]:
    """Group the charts by GPU; if both generations run, only charts with UUIDs are returned.

    Raises:
        WireError: if there are more than `MAX_GPUS`.
    """
    groups: dict[str, GpuCharts] = {}
    for chart in charts.values():
        match = _BY_UUID.match(chart.id)
        if match:
            name, rows, uuid = "GPU-" + match[1].removeprefix("gpu-"), GO_D, True
        else:
            match = _BY_INDEX.match(chart.id)
            if not match:
                continue
            name, rows, uuid = f"gpu{int(match[1])}", PYTHON_D, False
        groups.setdefault(name, GpuCharts(name, uuid, rows, {})).charts[match[2]] = chart
    found = sorted(groups.values())
    by_uuid = [group for group in found if group.uuid]
    chosen = by_uuid or found
    if len(chosen) > MAX_GPUS:
        raise WireError("allmetrics", f"{len(chosen)} GPUs, at most {MAX_GPUS} are allowed")
    return chosen


def product_name(group: GpuCharts) -> str | Absent:
    """Return the product name, which python.d puts into the family of the charts."""
    match = _NAME.match(next(iter(group.charts.values())).family)
    return match[1] if match else Absent(Reason.NOT_REPORTED, "not in this generation of charts")


def map_gpu(group: GpuCharts, newest: int) -> ChartReadings:
    """Return a GPU's readings, limited to the metrics of its generation of charts."""
    used: list[int] = []
    values = {row.metric: _read(row, group.charts.get(row.chart), newest, used) for row in group.rows}
    values[STATE] = _performance_state(group, newest, used)
    (fan_chart,) = [name for name in _FANS if (name == "fan_speed_perc") == group.uuid]
    fan = _read(ChartRow(FAN, fan_chart, _FANS[fan_chart], _percent), group.charts.get(fan_chart), newest, used)
    unproven = unproven_uses(product_name(group))
    drop_unproven_uses(values, unproven)
    dims = without_unproven_uses([DimValue(FAN, ("0",), fan)], unproven)
    return ChartReadings(values, dims, min(used, default=None))


def map_host(charts: Mapping[str, Chart], newest: int) -> ChartReadings:
    """Return the host's readings on the fast lane."""
    used: list[int] = []
    values = {row.metric: _read(row, charts.get(row.chart), newest, used) for row in HOST}
    kernel = charts.get(KERNEL_CHART)
    slabs = kernel.values.get("Slab") if kernel is not None else None
    if values[BUFFERS] == 0 and slabs is not None and not has_slabs(slabs):
        values[BUFFERS] = FIXED_ZERO
    values[CPU] = _cpu(charts.get(CPU_CHART), newest, used)
    network = [chart for chart in charts.values() if chart.id.startswith(_NETWORK)][: len(_NETWORK) * MAX_INTERFACES]
    dims = [dim for chart in network for dim in _network(chart, charts, newest, used)]
    return ChartReadings(values, tuple(dims), min(used, default=None))


def _read(row: ChartRow, chart: Chart | None, newest: int, used: list[int]) -> Value | Absent:
    why = _unusable(chart, newest)
    if chart is None or why is not None:
        return why or Absent(Reason.NOT_REPORTED)
    value = chart.values.get(row.dimension)
    if value is None:
        return Absent(Reason.NO_DATA, f"{chart.id}: {row.dimension}")
    if abs(value) > _MAX_VALUE:
        return Absent(Reason.INVALID_VALUE, chart.id)
    return _checked(CATALOGUE[row.metric], row.convert(value), chart, used)


def _unusable(chart: Chart | None, newest: int) -> Absent | None:
    if chart is None:
        return Absent(Reason.NOT_REPORTED, "no such chart")
    if newest - chart.updated > STALE_SECONDS:
        return Absent(Reason.STALE, f"{chart.id}: Netdata no longer collects it")
    return None


def _checked(metric: Metric, value: Value, chart: Chart, used: list[int]) -> Value | Absent:
    assert not isinstance(value, str)
    if (metric.low is not None and value < metric.low) or (metric.high is not None and value > metric.high):
        return Absent(Reason.INVALID_VALUE, chart.id)
    used.append(chart.updated)
    return value


def _performance_state(group: GpuCharts, newest: int, used: list[int]) -> Value | Absent:
    """Read a chart with one dimension per state, 1 for the current state."""
    chart = next((group.charts[name] for name in sorted(_STATES) if name in group.charts), None)
    why = _unusable(chart, newest)
    if chart is None or why is not None:
        return why or Absent(Reason.NOT_REPORTED)
    active = [name for name, value in chart.values.items() if value == 1]
    if len(active) == 1 and re.fullmatch(r"P(\d|1[0-5])", active[0]):
        return _checked(CATALOGUE[STATE], int(active[0][1:]), chart, used)
    return Absent(Reason.NO_DATA, chart.id)


def _cpu(chart: Chart | None, newest: int, used: list[int]) -> Value | Absent:
    """Sum the modes: the chart has every mode except idle, in percent of all processors."""
    why = _unusable(chart, newest)
    if chart is None or why is not None:
        return why or Absent(Reason.NOT_REPORTED)
    busy = [value for mode, value in chart.values.items() if mode not in _IDLE | _COUNTED_TWICE]
    if not busy:
        return Absent(Reason.NO_DATA, chart.id)
    return _checked(CATALOGUE[CPU], min(sum(busy) / 100, 1.0), chart, used)  # rounding can pass 100 %


def _network(chart: Chart, charts: Mapping[str, Chart], newest: int, used: list[int]) -> list[DimValue]:
    kind, _, interface = chart.id.partition(".")
    found: dict[str, Value | Absent] = {}
    if kind == "net_operstate":
        found = {UP: _up(chart, charts.get(f"net_carrier.{interface}"), newest, used)}
    elif kind == "net_speed":
        found = {SPEED: _speed(chart, newest, used)}
    elif kind == "net":
        rates = {
            "received": "host_network_receive_bytes_per_second",
            "sent": "host_network_transmit_bytes_per_second",
        }
        found = {metric: _rate(chart, dimension, metric, newest, used) for dimension, metric in rates.items()}
    return [DimValue(metric, (interface, UNKNOWN_CLASS), value) for metric, value in found.items()]


def _up(chart: Chart, carrier: Chart | None, newest: int, used: list[int]) -> Value | Absent:
    """Read a chart with one dimension per operational state, 1 for the current state.

    Drivers without operational state report `unknown` (tun, bridges); the carrier then decides, as in the host reader.
    """
    if chart.values.get("unknown") != 1:
        return _read(ChartRow(UP, chart.id, "up", _times(1)), chart, newest, used)
    return _read(ChartRow(UP, "net_carrier", "up", _times(1)), carrier, newest, used)


def _speed(chart: Chart, newest: int, used: list[int]) -> Value | Absent:
    """Read a speed in kilobits per second; Netdata shows 0 if the kernel does not know it (seen on 1.37.1)."""
    if chart.values.get("speed") == 0 and _unusable(chart, newest) is None:
        return NO_SPEED
    return _read(ChartRow(SPEED, chart.id, "speed", _times(125)), chart, newest, used)


def _rate(chart: Chart, dimension: str, metric: str, newest: int, used: list[int]) -> Value | Absent:
    """Read a rate in kilobits per second; Netdata shows sent traffic as a negative number."""
    return _read(ChartRow(metric, chart.id, dimension, lambda value: abs(value) * 125), chart, newest, used)
