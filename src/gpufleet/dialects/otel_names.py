"""What a row of a table of OpenTelemetry names is.

OpenTelemetry's conventions for hardware (`hw.*`), as far as they have a name for what the catalogue has.

Read in open-telemetry/semantic-conventions, `model/hardware`, v1.44.0: all of it is `development` there. How this
table is used is said in `otel.py`. What they have no name for (activity of the chip's parts, clocks and why they are
held down, NVLink, remapped rows, XIDs, MIG and vGPU) goes under our own names.

Not used: `hw.gpu.memory.utilization` is the quotient of usage and limit and left unread; `hw.fan.speed_ratio` and
`hw.fan.speed` are of components of their own (`hw.type` `fan`), which our readings of a GPU's fans are not.

OpenTelemetry's conventions for hosts (`system.*`), as far as they mean what the catalogue means.

Read in open-telemetry/semantic-conventions, `model/system`, at 0108c1b; `development` there. `system.cpu.utilization`
is by processor and mode and ours is neither; their packets are by device, ours by interface.
"""

import enum

import msgspec

from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind

OWN = "gpufleet."
"""Before names and attributes that no convention has."""


class Instrument(enum.StrEnum):
    """How OTLP carries a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"  # a monotonic cumulative sum
    UP_DOWN_COUNTER = "up_down_counter"  # a cumulative sum that is not monotonic


class OtelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of the catalogue, or a part of it, and the name it has there.

    Attributes:
        metric: ours.
        name: theirs.
        unit: UCUM, as the convention writes it.
        instrument: how it is sent.
        fixed: attributes, and the values that tell this row from others of the same name.
        labels: our dimensions where this row is one combination of them; empty for all.
        dims: attributes of our dimensions, in our order; none where `labels` or no dimensions.
        words: values of dimensions that are called otherwise there: ours, theirs.
        states: for a state, the names for which its value is 1; the row is 0 for the others.
        unsaid: states of which this row says nothing: no point is made.
        times, over: theirs `* times / over` is ours; the conventions' units are the catalogue's own.
        plain: whether a point without the fixed attributes, where a sender leaves them out, is this row.
        unread: why theirs is not believed, or empty. Ours is written under this name all the same.
    """

    metric: str
    name: str
    unit: str
    instrument: Instrument = Instrument.GAUGE
    fixed: tuple[tuple[str, str], ...] = ()
    labels: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    states: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    times: int = 1
    over: int = 1
    plain: bool = False
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
"""The catalogue's units in UCUM. Counts have none of their own: `1`."""


def own_row(metric: Metric) -> OtelRow:
    """Return the row of a metric under our own name; a state has an attribute `state`, and a point for each."""
    counter = metric.kind is MetricKind.COUNTER
    return OtelRow(
        metric=metric.name,
        name=OWN + metric.name,
        unit=UNITS[metric.unit],
        instrument=Instrument.COUNTER if counter else Instrument.GAUGE,
        dims=tuple(OWN + name for name in metric.dims),
    )


OWN_ROWS = {metric.name: own_row(metric) for metric in CATALOGUE.values() if metric.kind is not MetricKind.INFO}
"""Metric to its row under our own name. Texts have none: they are attributes, or not sent."""


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
    """A reader that cannot read says nothing of the device's status: such a state makes no point."""
    return OtelRow(
        metric="gpu_state",
        name="hw.status",
        unit="1",
        instrument=UP_DOWN,
        fixed=(("hw.state", state),),
        states=ours,
        unsaid=("unreadable",),
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
    _status("failed", "lost", "hung", "reset_required"),
)

UNREAD = {
    "hw.gpu.memory.utilization": "a quotient of usage and limit, which stand beside it",
}

TYPE, TYPE_GPU = "hw.type", "gpu"
ID, PARENT = "hw.id", "hw.parent"

TEXTS = (
    ("hw.model", "gpu_name"),
    ("hw.serial_number", "gpu_serial"),
    ("hw.driver_version", "nvidia_driver_version"),
    ("hw.firmware_version", "gpu_vbios_version"),
)
"""Attributes of a device, and the texts that they show; the driver's version is the machine's."""

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
        words=(("irq", "interrupt"),),
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
