"""OTLP metric requests of an agent, under the names of the configured dialects.

Each measurement is exported once, with its own time. A reading without a value has no point, and no value is exported
again with a newer time. A point has the attributes of the device's holder if the device has exactly one, which had it
when the value was measured. Counters are cumulative sums. Their start time is the driver load or device reset; for host
counters it is the boot. A counter that outlives these has no start time.
"""

import bisect
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from gpufleet import __version__
from gpufleet.codecs.otlp.encode import encode_metrics
from gpufleet.codecs.otlp.records import Attributes, Kind, OtlpMetric, OtlpPoint, ResourceMetrics
from gpufleet.delivery.export import AgentStats, Draft
from gpufleet.dialects import otel
from gpufleet.dialects.otel_names import OWN, Instrument
from gpufleet.exporters.holders import only_holder
from gpufleet.exporters.otlp_dialects import OTLP_DIALECTS, OtlpDialect
from gpufleet.exporters.otlp_resource import SCOPE, compress_body, guest_resource, info_texts, node_resource
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.catalogue.events import LOG_LOST, XID_ALL, XID_ERRORS, XID_SINCE
from gpufleet.model.event import Event, EventKind, EventReport
from gpufleet.model.reading import Provenance
from gpufleet.model.snapshot import Device, Host, Snapshot
from gpufleet.model.time import NANOS, to_ns

BOOT = "host_boot_timestamp_seconds"

_LOADS = frozenset({EventKind.DRIVER_LOADED, EventKind.DRIVER_RELOADED})
_SAME_BOOT = 60 * NANOS
"""Nanoseconds. The kernel derives the boot time from two clocks; it shifts a little when either is set."""


class CounterStarts:
    """Boots, driver loads and resets of one machine, collected from its snapshots. A recorded time is kept."""

    def __init__(self) -> None:
        self._boot = 0
        self._agent = 0
        self._loads: list[int] = []
        self._resets: dict[str, list[int]] = {}
        self._watched: dict[str, int] = {}

    def update(self, host: Host, devices: Iterable[Device], events: Iterable[EventReport], agent_started: int) -> None:
        """Record boot, driver loads and resets; `agent_started` is in nanoseconds since 1970."""
        self._agent = agent_started
        boot = host.readings.get(BOOT)
        if boot is not None and isinstance(boot.value, (int, float)):
            at = int(boot.value * NANOS)
            if abs(at - self._boot) > _SAME_BOOT:
                self._boot = at
        for event in events:
            if event.kind in _LOADS:
                _insert(self._loads, to_ns(event.at))
            elif event.kind == EventKind.GPU_RESET and event.device is not None:
                _insert(self._resets.setdefault(event.device, []), to_ns(event.at))
        for device in devices:
            since = device.readings.get(XID_SINCE)
            if since is not None and isinstance(since.value, (int, float)):
                self._watched[device.key] = int(since.value * NANOS)

    def start_of(self, metric: str, device: str, at: int) -> int:
        """Return the start time of a counter, in nanoseconds since 1970, or 0 if unknown.

        Args:
            metric: catalogue name.
            device: key of the view, or empty for the machine.
            at: instant of the value, nanoseconds since 1970.
        """
        if "_lifetime_" in metric:  # counted by the board, not by this driver
            return 0
        if metric in (XID_ERRORS, XID_ALL):
            began = self._watched.get(device, 0)
        elif metric == LOG_LOST:
            began = self._agent
        elif device:
            began = max(_latest_before(self._loads, at), _latest_before(self._resets.get(device, []), at), self._boot)
        else:
            began = self._boot
        return began if began <= at else 0


def _insert(instants: list[int], at: int) -> None:
    place = bisect.bisect_left(instants, at)
    if instants[place : place + 1] != [at]:
        instants.insert(place, at)


def _latest_before(instants: list[int], at: int) -> int:
    place = bisect.bisect_right(instants, at)
    return instants[place - 1] if place else 0


K = TypeVar("K", bound=Hashable)

MAX_AHEAD_NS = 60 * 10**9
"""Nanoseconds. A newest instant further in the future came from a wrong clock: the series starts again."""


class NewestInstants(Generic[K]):
    """Newest exported instant by series; holds the series of the newest round only."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Create an empty record; `now_ns` returns nanoseconds since 1970."""
        self._now_ns = now_ns
        self._latest = 0
        self._previous: dict[K, int] = {}
        self._current: dict[K, int] = {}

    def begin_round(self) -> None:
        """Begin a round. Series that were absent from the previous round are dropped."""
        self._previous, self._current = self._current, {}
        self._latest = self._now_ns() + MAX_AHEAD_NS

    def is_new(self, series: K, at: int) -> bool:
        """Return whether an instant is newer than all exported measurements of the series, and record it."""
        before = self._previous.get(series)
        if before is not None and at <= before <= self._latest:
            self._current[series] = before
            return False
        self._current[series] = at
        return True


PROVENANCE, OWN_PROBE = OWN + "provenance", Provenance.HOST_LOCAL_PROBE
"""Attribute of points from a guest or another exporter. Points of this host's own readers omit it."""

_KINDS = {
    Instrument.GAUGE: Kind.GAUGE,
    Instrument.COUNTER: Kind.COUNTER,
    Instrument.UP_DOWN_COUNTER: Kind.SUM,
}


class _MachineExport(msgspec.Struct):
    """Resource attributes of a machine, and the start times of its counters."""

    attributes: dict[str, str]
    starts: CounterStarts


class _PendingPoint(msgspec.Struct, frozen=True):
    """A point to be sent. Its start time is computed on sending, because driver load events arrive a little later."""

    export: _MachineExport
    point: otel.OtelPoint
    device: str
    at: int
    attributes: Attributes


class _SubjectAttributes(NamedTuple):
    """Attributes of a device: its own, and with those of its holder, which has it since an instant in nanoseconds."""

    own: Mapping[str, str] = {}
    held: Mapping[str, str] = {}
    since: int = 0

    def at(self, instant: int) -> Mapping[str, str]:
        """Return the attributes of a value measured at an instant."""
        return self.held if instant >= self.since else self.own


class OtlpMetrics:
    """Collector of measurements for metric requests: one resource for the node and one per guest."""

    def __init__(
        self,
        cluster: str,
        attributes: Mapping[str, str],
        now_ns: Callable[[], int],
        dialects: Iterable[str] = ("otel",),
    ) -> None:
        """Create an empty collector.

        Args:
            cluster: id of the cluster.
            attributes: additional resource attributes; they override the known ones.
            now_ns: clock, nanoseconds since 1970.
            dialects: names to export under, any of `OTLP_DIALECTS`.
        """
        self._cluster = cluster
        self._dialects = [OTLP_DIALECTS[name] for name in dict.fromkeys(dialects)]
        self._more: dict[str, str] = {}
        for dialect in self._dialects:
            self._more |= dialect.resource_attributes(cluster)
        if len(self._dialects) == 1:
            self._more |= self._dialects[0].service_attributes()
        self._more |= attributes
        self._fresh: NewestInstants[tuple[str, str, str, tuple[str, ...]]] = NewestInstants(now_ns)
        self._pending: list[_PendingPoint] = []
        self._machines: dict[str, _MachineExport] = {}

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Collect the new measurements of a snapshot, one device per step."""
        self._fresh.begin_round()
        before, self._machines = self._machines, {}
        export = _MachineExport(node_resource(snapshot.node, self._cluster, self._more), _counter_starts(before, ""))
        export.starts.update(snapshot.host, snapshot.devices, snapshot.events, stats.started_at)
        yield from self._machine("", export, snapshot.host, snapshot.devices)
        for guest in snapshot.guests:
            key = guest.vm_uuid or f"{guest.namespace}/{guest.name}"
            attributes = guest_resource(guest, snapshot.node, self._cluster, self._more)
            export = _MachineExport(attributes, _counter_starts(before, key))
            export.starts.update(guest.host, guest.devices, (), stats.started_at)
            yield from self._machine(key, export, guest.host, guest.devices)

    def add_events(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Ignore events: they are exported as logs."""

    def take(self) -> Draft | None:
        """Return all collected points as one request, or None if there are none."""
        pending, self._pending = self._pending, []
        resources: dict[int, ResourceMetrics] = {}
        metrics: dict[tuple[int, str, str, Instrument], OtlpMetric] = {}
        for one in pending:
            point, machine = one.point, id(one.export.starts)
            metric = metrics.get((machine, point.name, point.unit, point.instrument))
            if metric is None:
                metric = OtlpMetric(point.name, _KINDS[point.instrument], [], point.unit, CATALOGUE[point.metric].help)
                metrics[machine, point.name, point.unit, point.instrument] = metric
                of_machine = resources.setdefault(
                    machine, ResourceMetrics(one.export.attributes, [], SCOPE, __version__)
                )
                of_machine.metrics.append(metric)
            start = (
                0
                if point.instrument is Instrument.GAUGE
                else one.export.starts.start_of(point.metric, one.device, one.at)
            )
            metric.points.append(OtlpPoint(point.value, one.at, start, one.attributes))
        requests = list(resources.values())
        return Draft(len(pending), lambda: compress_body(encode_metrics(requests))) if pending else None

    def _machine(
        self, machine: str, export: _MachineExport, host: Host, devices: Iterable[Device]
    ) -> Generator[None, None, None]:
        self._machines[machine] = export
        of_machine = info_texts(host.readings)
        for dialect in self._dialects:
            self._gather(dialect, machine, export, "", _SubjectAttributes(), host)
        for device in devices:
            yield
            holding = only_holder(device.holders)
            for dialect in self._dialects:
                own = dialect.device_attributes(device, of_machine, export.attributes)
                if own is None:
                    continue
                attributes = _SubjectAttributes(own, own, 0)
                if holding is not None:
                    attributes = _SubjectAttributes(own, {**dialect.holder_attributes(holding), **own}, holding.since)
                self._gather(dialect, machine, export, device.key, attributes, device)

    def _gather(
        self,
        dialect: OtlpDialect,
        machine: str,
        export: _MachineExport,
        key: str,
        attributes: _SubjectAttributes,
        of: Device | Host,
    ) -> None:
        others = {
            source.reader: {PROVENANCE: str(source.provenance)}
            for source in of.sources
            if source.provenance is not OWN_PROBE
        }

        def add(points: Iterable[otel.OtelPoint], at: int, reader: str) -> None:
            mine = {**attributes.at(at), **others.get(reader, {})}
            self._pending += [_PendingPoint(export, point, key, at, {**mine, **point.attributes}) for point in points]

        for name, reading in of.readings.items():
            if reading.value is None or reading.measured_at is None:
                continue
            at = to_ns(reading.measured_at)
            if self._fresh.is_new((machine, key, name, ()), at):
                add(dialect.points_of(name, (), reading.value), at, reading.reader)
        for dim in of.dimensions:
            if dim.value is None or dim.measured_at is None:
                continue
            labels, at = tuple(dim.labels.values()), to_ns(dim.measured_at)
            if self._fresh.is_new((machine, key, dim.metric, labels), at):
                add(dialect.points_of(dim.metric, labels, dim.value), at, dim.reader)
        for point, instant, reader in dialect.derived_points(of):
            at = to_ns(instant)
            if self._fresh.is_new((machine, key, point.name, ()), at):
                add((point,), at, reader)


def _counter_starts(before: Mapping[str, _MachineExport], machine: str) -> CounterStarts:
    return before[machine].starts if machine in before else CounterStarts()
