"""Tables of OpenTelemetry names for catalogue metrics, from the conventions for hardware and hosts.

Hardware (`hw.*`): open-telemetry/semantic-conventions, `model/hardware`, v1.44.0, with status `development`. Metrics
without a name there (activity of chip units, clocks and reasons for reduced clocks, NVLink, remapped rows, XIDs, MIG
and vGPU) have our own names. Not used: `hw.gpu.memory.utilization`, a quotient of usage and limit;
`hw.fan.speed_ratio` and `hw.fan.speed`, which are for components of `hw.type` `fan` and not for fans of a GPU.

Hosts (`system.*`): `model/system` at 0108c1b, with status `development`, where the meaning is that of the catalogue.
Not used: `system.cpu.utilization`, which is by processor and mode, ours by neither; packets, which are by device, ours
by interface.
"""

import enum

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind
from gpufleet.model.view import ViewKind

OWN = "gpufleet."
"""Prefix of names and attributes outside the conventions."""


class Instrument(enum.StrEnum):
    """OTLP instrument of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"  # a monotonic cumulative sum
    UP_DOWN_COUNTER = "up_down_counter"  # a cumulative sum that is not monotonic


class OtelRow(msgspec.Struct, frozen=True, kw_only=True):
    """Mapping of a catalogue metric, or a part of it, to an OpenTelemetry name.

    Attributes:
        metric: catalogue name.
        name: OpenTelemetry name.
        unit: UCUM unit as in the convention.
        instrument: OTLP instrument.
        fixed: attributes with fixed values that distinguish this row from others of the same name.
        labels: values of our dimensions, if the row is one fixed combination of them; empty for all.
        dims: attributes for our dimensions, in our order; empty with `labels` or without dimensions.
        renamed: dimension values with another name there, as (ours, theirs).
        states: for a state metric, the names for which the value is 1; it is 0 for the others.
        unreported: states for which no point is exported.
        times, over: foreign value `* times / over` is our value; the conventions use the catalogue's units.
        plain: whether a point without the fixed attributes matches this row.
        zero: reason of absence for the value 0 of another project, if it is not a measurement.
        unread: reason for not importing the row, or empty. It is exported all the same.
    """

    metric: str
    name: str
    unit: str
    instrument: Instrument = Instrument.GAUGE
    fixed: tuple[tuple[str, str], ...] = ()
    labels: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    states: tuple[str, ...] = ()
    unreported: tuple[str, ...] = ()
    times: int = 1
    over: int = 1
    plain: bool = False
    zero: Reason | None = None
    unread: str = ""


UNITS = {
    "ratio": "1",
    "bytes": "By",
    "bytes_per_second": "By/s",
    "watts": "W",
    "joules": "J",
    "celsius": "Cel",
    "hertz": "Hz",
    "seconds": "s",
    "rpm": "{revolution}/min",
    "": "1",
}
"""The catalogue's units in UCUM. Counts have the unit `1`."""


def own_row(metric: Metric) -> OtelRow:
    """Return the row of a metric under our own name; a state metric has a point per state, with attribute `state`."""
    counter = metric.kind is MetricKind.COUNTER
    return OtelRow(
        metric=metric.name,
        name=OWN + metric.name,
        unit=UNITS[metric.unit],
        instrument=Instrument.COUNTER if counter else Instrument.GAUGE,
        dims=tuple(OWN + name for name in metric.dims),
    )


OWN_ROWS = {metric.name: own_row(metric) for metric in CATALOGUE.values() if metric.kind is not MetricKind.INFO}
"""Metric to its row under our own name. Texts are attributes or not exported."""


COUNTER, UP_DOWN = Instrument.COUNTER, Instrument.UP_DOWN_COUNTER


def _utilization(metric: str, task: str) -> OtelRow:
    fixed = (("hw.gpu.task", task),)
    return OtelRow(metric=metric, name="hw.gpu.utilization", unit="1", fixed=fixed, plain=task == "general")


def _io(metric: str, direction: str) -> OtelRow:
    fixed = (("network.io.direction", direction),)
    return OtelRow(metric=metric, name="hw.gpu.io", unit="By", instrument=COUNTER, fixed=fixed)


def _errors(metric: str, error: str) -> OtelRow:
    return OtelRow(metric=metric, name="hw.errors", unit="{error}", instrument=COUNTER, fixed=(("error.type", error),))


def _temperature(metric: str, where: str) -> OtelRow:
    fixed = (("hw.sensor_location", where),)
    return OtelRow(metric=metric, name="hw.temperature", unit="Cel", fixed=fixed, plain=where == "gpu")


def _limit(threshold: str, kind: str, where: str) -> OtelRow:
    return OtelRow(
        metric="gpu_temperature_threshold_celsius",
        name="hw.temperature.limit",
        unit="Cel",
        fixed=(("hw.limit_type", kind), ("hw.sensor_location", where)),
        labels=(threshold,),
    )


def _status(state: str, *ours: str) -> OtelRow:
    """Return a row of `hw.status`; an unreadable device yields no point, because its status is unknown."""
    return OtelRow(
        metric="gpu_state",
        name="hw.status",
        unit="1",
        instrument=UP_DOWN,
        fixed=(("hw.state", state),),
        states=ours,
        unreported=("unreadable",),
    )


HW: tuple[OtelRow, ...] = (
    _utilization("gpu_utilization_ratio", "general"),
    _utilization("gpu_encoder_utilization_ratio", "encoder"),
    _utilization("gpu_decoder_utilization_ratio", "decoder"),
    OtelRow(metric="gpu_memory_total_bytes", name="hw.gpu.memory.limit", unit="By", instrument=UP_DOWN),
    OtelRow(metric="gpu_memory_used_bytes", name="hw.gpu.memory.usage", unit="By", instrument=UP_DOWN),
    _io("gpu_pcie_transmit_bytes_total", "transmit"),
    _io("gpu_pcie_receive_bytes_total", "receive"),
    OtelRow(metric="gpu_power_watts", name="hw.power", unit="W"),
    OtelRow(metric="gpu_energy_joules_total", name="hw.energy", unit="J", instrument=COUNTER),
    _temperature("gpu_temperature_celsius", "gpu"),
    _temperature("gpu_memory_temperature_celsius", "memory"),
    _limit("slowdown", "throttled", "gpu"),
    _limit("shutdown", "high.critical", "gpu"),
    _limit("gpu_max", "max", "gpu"),
    _limit("memory_max", "max", "memory"),
    _errors("gpu_ecc_corrected_errors_total", "corrected"),
    _errors("gpu_ecc_uncorrected_errors_total", "uncorrected"),
    _status("ok", "ok"),
    _status("degraded", "error"),
    _status("failed", "lost", "hung", "reset_required"),
)

UNREAD = {
    "hw.gpu.memory.utilization": "a quotient of usage and limit, which are imported",
}

TYPE, TYPE_GPU = "hw.type", "gpu"
ID, PARENT = "hw.id", "hw.parent"

MODEL = "hw.model"
MODEL_METRICS = {ViewKind.GPU: "gpu_name", ViewKind.MIG: "gpu_name", ViewKind.VGPU: "vgpu_type"}
"""Kind of a device to the info metric of its `hw.model`."""

TEXTS = (
    ("hw.serial_number", "gpu_serial"),
    ("hw.driver_version", "nvidia_driver_version"),
    ("hw.firmware_version", "gpu_vbios_version"),
)
"""Further attributes of a device to info metrics; the driver version is that of the machine."""

VENDOR = ("hw.vendor", "NVIDIA")


_INTERFACE = ("network.interface.name", OWN + "class")


def _network(metric: str, name: str, unit: str, direction: str) -> OtelRow:
    fixed = (("network.io.direction", direction),)
    return OtelRow(metric=metric, name=name, unit=unit, instrument=COUNTER, fixed=fixed, dims=_INTERFACE)


SYSTEM: tuple[OtelRow, ...] = (
    OtelRow(
        metric="host_cpu_seconds_total",
        name="system.cpu.time",
        unit="s",
        instrument=COUNTER,
        dims=("cpu.logical_number", "cpu.mode"),
        renamed=(("irq", "interrupt"),),
    ),
    OtelRow(metric="host_cpus", name="system.cpu.logical.count", unit="{cpu}", instrument=UP_DOWN),
    OtelRow(metric="host_memory_total_bytes", name="system.memory.limit", unit="By", instrument=UP_DOWN),
    OtelRow(
        metric="host_filesystem_size_bytes",
        name="system.filesystem.limit",
        unit="By",
        instrument=UP_DOWN,
        dims=("system.filesystem.mountpoint", "system.device", "system.filesystem.type"),
    ),
    _network("host_network_receive_bytes_total", "system.network.io", "By", "receive"),
    _network("host_network_transmit_bytes_total", "system.network.io", "By", "transmit"),
    _network("host_network_receive_errors_total", "system.network.errors", "{error}", "receive"),
    _network("host_network_transmit_errors_total", "system.network.errors", "{error}", "transmit"),
    _network("host_network_receive_drops_total", "system.network.packet.dropped", "{packet}", "receive"),
    _network("host_network_transmit_drops_total", "system.network.packet.dropped", "{packet}", "transmit"),
)
