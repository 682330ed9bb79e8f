"""What an agent knows, as requests of OTLP: each measurement once, at its own time. Names are those of `dialects/otel`.

A reading without a value has no point: nothing is told again with a newer time. Counters are cumulative sums that
begin with the driver's load (or the device's reset), the host's with its boot; where a counter outlives those its
beginning is not known, and not told. Events are log records.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

import msgspec

from gpufleet import __version__
from gpufleet.agent.stats import AgentStats
from gpufleet.codecs.otlp.encode import encode_logs, encode_metrics
from gpufleet.codecs.otlp.records import Attributes, Kind, LogRecord, OtlpMetric, Point, ResourceLogs, ResourceMetrics
from gpufleet.dialects import otel
from gpufleet.dialects.otel_row import OWN, Instrument
from gpufleet.exporters.fresh import Fresh
from gpufleet.exporters.severity import severity
from gpufleet.exporters.starts import Starts
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Device, Snapshot
from gpufleet.model.time import to_ns
from gpufleet.model.view import View
from gpufleet.sending.outlet import Parcel

SCOPE = "gpufleet"

_KINDS = {
    Instrument.GAUGE: Kind.GAUGE,
    Instrument.COUNTER: Kind.COUNTER,
    Instrument.UP_DOWN_COUNTER: Kind.SUM,
}


def resource(machine: Machine, cluster: str, more: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of the resource: host and node, as far as they are known.

    Args:
        machine: as the agent knows it.
        cluster: id of its cluster.
        more: what the configuration adds, or says better.
    """
    known = {
        "service.name": "gpufleet-agent",
        "service.version": __version__,
        "service.instance.id": machine.name,
        "host.name": machine.name,
        "host.id": machine.instance_id or machine.machine_id,
        "k8s.node.uid": machine.k8s_node_uid,
        "k8s.node.name": machine.name if machine.k8s_node_uid else None,
        "gpufleet.cluster": cluster,
    }
    return {name: value for name, value in {**known, **more}.items() if value}


class _Waiting(msgspec.Struct, frozen=True):
    """A point that is not sent yet. Where its sum begins is found when it is: events tell of loads a little later."""

    point: otel.Point
    device: str
    at: int
    attributes: Attributes


class OtlpMetrics:
    """Gathers measurements for requests of metrics."""

    def __init__(self, cluster: str, attributes: Mapping[str, str], now_ns: Callable[[], int]) -> None:
        """Take the cluster's id, attributes of the resource beside those that are known, and the clock."""
        self._cluster = cluster
        self._more = attributes
        self._fresh: Fresh[tuple[str, str, tuple[str, ...]]] = Fresh(now_ns)
        self._waiting: list[_Waiting] = []
        self._starts = Starts()
        self._machine: Machine | None = None

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Take what is new in a snapshot, a device at each step."""
        self._machine = snapshot.node
        self._fresh.look()
        self._starts.see(snapshot, stats.started_at)
        of_machine = _texts(snapshot.host.readings)
        self._gather("", {}, snapshot.host.readings, snapshot)
        for device in snapshot.devices:
            yield
            attributes = otel.device_attributes(_view(device), {**of_machine, **_texts(device.readings)})
            self._gather(device.key, attributes, device.readings, device)

    def tell(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Pass over events: they are logs."""

    def take(self) -> Parcel | None:
        """Return everything gathered as one request, or None."""
        waiting, self._waiting = self._waiting, []
        if not waiting or self._machine is None:
            return None
        metrics: dict[tuple[str, str, Instrument], OtlpMetric] = {}
        for one in waiting:
            point = one.point
            metric = metrics.get((point.name, point.unit, point.instrument))
            if metric is None:
                metric = OtlpMetric(point.name, _KINDS[point.instrument], [], point.unit, CATALOGUE[point.metric].help)
                metrics[point.name, point.unit, point.instrument] = metric
            start = 0 if point.instrument is Instrument.GAUGE else self._starts.of(point.metric, one.device, one.at)
            metric.points.append(Point(point.value, one.at, start, one.attributes))
        told = ResourceMetrics(
            resource(self._machine, self._cluster, self._more), list(metrics.values()), SCOPE, __version__
        )
        return Parcel(encode_metrics([told]), len(waiting))

    def _gather(
        self, key: str, attributes: Mapping[str, str], readings: Mapping[str, Reading], of: "Device | Snapshot"
    ) -> None:
        dimensions = of.dimensions if isinstance(of, Device) else of.host.dimensions
        for name, reading in readings.items():
            if reading.value is None or reading.measured_at is None:
                continue
            at = to_ns(reading.measured_at)
            if self._fresh.is_new((key, name, ()), at):
                self._add(key, attributes, otel.points_of(name, (), reading.value), at)
        for dim in dimensions:
            if dim.value is None or dim.measured_at is None:
                continue
            labels, at = tuple(dim.labels.values()), to_ns(dim.measured_at)
            if self._fresh.is_new((key, dim.metric, labels), at):
                self._add(key, attributes, otel.points_of(dim.metric, labels, dim.value), at)

    def _add(self, key: str, attributes: Mapping[str, str], points: Iterable[otel.Point], at: int) -> None:
        self._waiting += [_Waiting(point, key, at, {**attributes, **point.attributes}) for point in points]


class OtlpLogs:
    """Gathers events for requests of logs."""

    def __init__(self, cluster: str, attributes: Mapping[str, str]) -> None:
        """Take the same as `OtlpMetrics`, but for the clock."""
        self._cluster = cluster
        self._more = attributes
        self._machine: Machine | None = None
        self._records: list[LogRecord] = []

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Take whose events they are."""
        self._machine = snapshot.node
        yield

    def tell(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Take events."""
        of_machine = _texts(snapshot.host.readings)
        devices = {device.key: device for device in snapshot.devices}
        for event in events:
            attributes: dict[str, str | bool | int | float] = {}
            if event.view is not None:
                known = devices.get(event.view.key)
                texts = _texts(known.readings) if known else {}
                attributes |= otel.device_attributes(event.view, {**of_machine, **texts})
            attributes |= {OWN + name: text for name, text in event.attributes.items()}
            if event.code:
                attributes[OWN + "code"] = event.code
            number, words = severity(event)
            self._records.append(LogRecord(event.at, event.at, number, f"{OWN}{event.kind}", words, attributes))

    def take(self) -> Parcel | None:
        """Return everything gathered as one request, or None."""
        if not self._records or self._machine is None:
            return None
        records, self._records = self._records, []
        told = ResourceLogs(resource(self._machine, self._cluster, self._more), records, SCOPE, __version__)
        return Parcel(encode_logs([told]), len(records))


def _view(device: Device) -> View:
    return View(
        kind=device.kind,
        side=device.side,
        uuid=device.uuid,
        pci_address=device.pci_address,
        instance=device.instance,
        parent=device.parent,
        index=device.index,
    )


def _texts(readings: Mapping[str, Reading]) -> dict[str, str]:
    return {
        name: str(reading.value)
        for name, reading in readings.items()
        if reading.value is not None and CATALOGUE[name].kind is MetricKind.INFO
    }
