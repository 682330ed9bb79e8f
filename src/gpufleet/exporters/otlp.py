"""What an agent knows, as requests of OTLP: each measurement once, at its own time, under the names of some dialects.

A reading without a value has no point: nothing is told again with a newer time. Counters are cumulative sums that
begin with the driver's load (or the device's reset), the host's with its boot; where a counter outlives those its
beginning is not known, and not told.

Which measurements were told before: none is told twice, and none after a newer one.
"""

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from gpufleet import __version__
from gpufleet.codecs.otlp.encode import encode_metrics
from gpufleet.codecs.otlp.records import Attributes, Kind, OtlpMetric, Point, ResourceMetrics
from gpufleet.delivery.export import AgentStats, Draft
from gpufleet.dialects import otel
from gpufleet.dialects.otel_names import OWN, Instrument
from gpufleet.exporters.otlp_names import NAMES, Names
from gpufleet.exporters.otlp_resource import SCOPE, guest_resource, packed, resource, texts
from gpufleet.exporters.starts import Starts
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.event import Event
from gpufleet.model.reading import Provenance
from gpufleet.model.snapshot import Device, Host, Snapshot
from gpufleet.model.time import to_ns

K = TypeVar("K", bound=Hashable)

AHEAD = 60 * 10**9
"""A series that was told of so far in the future was told by a wrong clock: it begins anew."""


class Fresh(Generic[K]):
    """The newest instant of each series that the newest look has."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """Take the clock: nanoseconds since 1970."""
        self._now_ns = now_ns
        self._latest = 0
        self._before: dict[K, int] = {}
        self._told: dict[K, int] = {}

    def look(self) -> None:
        """Begin another look; what the one before did not have is forgotten."""
        self._before, self._told = self._told, {}
        self._latest = self._now_ns() + AHEAD

    def is_new(self, series: K, at: int) -> bool:
        """Tell whether a measurement of this instant is newer than all that were told of the series."""
        before = self._before.get(series)
        if before is not None and at <= before <= self._latest:
            self._told[series] = before
            return False
        self._told[series] = at
        return True


PROVENANCE, OWN_PROBE = OWN + "provenance", Provenance.HOST_LOCAL_PROBE
"""Attribute of points that somebody else measured, or a guest; those of this host's own readers are without."""

_KINDS = {
    Instrument.GAUGE: Kind.GAUGE,
    Instrument.COUNTER: Kind.COUNTER,
    Instrument.UP_DOWN_COUNTER: Kind.SUM,
}


class _Whose(msgspec.Struct):
    """A machine: the attributes of its resource, and since when its counters count."""

    attributes: dict[str, str]
    starts: Starts


class _Waiting(msgspec.Struct, frozen=True):
    """A point that is not sent yet. Where its sum begins is found when it is: events tell of loads a little later."""

    whose: _Whose
    point: otel.Point
    device: str
    at: int
    attributes: Attributes


class OtlpMetrics:
    """Gathers measurements for requests of metrics: one resource for the node, and one for each guest."""

    def __init__(
        self,
        cluster: str,
        attributes: Mapping[str, str],
        now_ns: Callable[[], int],
        dialects: Iterable[str] = ("otel",),
    ) -> None:
        """Take whose measurements they are, and how they are told.

        Args:
            cluster: its id.
            attributes: of the resource, beside those that are known.
            now_ns: the clock.
            dialects: under whose names, any of `NAMES`.
        """
        self._cluster = cluster
        self._names = [NAMES[name] for name in dict.fromkeys(dialects)]
        self._more: dict[str, str] = {}
        for names in self._names:
            self._more |= names.resource(cluster)
        self._more |= attributes
        self._fresh: Fresh[tuple[str, str, str, tuple[str, ...]]] = Fresh(now_ns)
        self._waiting: list[_Waiting] = []
        self._machines: dict[str, _Whose] = {}

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Take what is new in a snapshot, a device at each step."""
        self._fresh.look()
        before, self._machines = self._machines, {}
        whose = _Whose(resource(snapshot.node, self._cluster, self._more), _starts(before, ""))
        whose.starts.see(snapshot.host, snapshot.devices, snapshot.events, stats.started_at)
        yield from self._machine("", whose, snapshot.host, snapshot.devices)
        for guest in snapshot.guests:
            key = guest.vm_uuid or f"{guest.namespace}/{guest.name}"
            attributes = guest_resource(guest, snapshot.node, self._cluster, self._more)
            whose = _Whose(attributes, _starts(before, key))
            whose.starts.see(guest.host, guest.devices, (), stats.started_at)
            yield from self._machine(key, whose, guest.host, guest.devices)

    def tell(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Pass over events: they are logs."""

    def take(self) -> Draft | None:
        """Return everything gathered as one request, or None."""
        waiting, self._waiting = self._waiting, []
        resources: dict[int, ResourceMetrics] = {}
        metrics: dict[tuple[int, str, str, Instrument], OtlpMetric] = {}
        for one in waiting:
            point, whose = one.point, id(one.whose.starts)
            metric = metrics.get((whose, point.name, point.unit, point.instrument))
            if metric is None:
                metric = OtlpMetric(point.name, _KINDS[point.instrument], [], point.unit, CATALOGUE[point.metric].help)
                metrics[whose, point.name, point.unit, point.instrument] = metric
                of_machine = resources.setdefault(whose, ResourceMetrics(one.whose.attributes, [], SCOPE, __version__))
                of_machine.metrics.append(metric)
            start = 0 if point.instrument is Instrument.GAUGE else one.whose.starts.of(point.metric, one.device, one.at)
            metric.points.append(Point(point.value, one.at, start, one.attributes))
        told = list(resources.values())
        return Draft(len(waiting), lambda: packed(encode_metrics(told))) if waiting else None

    def _machine(
        self, machine: str, whose: _Whose, host: Host, devices: Iterable[Device]
    ) -> Generator[None, None, None]:
        self._machines[machine] = whose
        of_machine = texts(host.readings)
        for names in self._names:
            self._gather(names, machine, whose, "", {}, host)
        for device in devices:
            yield
            for names in self._names:
                attributes = names.about(device, of_machine, whose.attributes)
                if attributes is not None:
                    self._gather(names, machine, whose, device.key, attributes, device)

    def _gather(
        self, names: Names, machine: str, whose: _Whose, key: str, attributes: Mapping[str, str], of: Device | Host
    ) -> None:
        others = {
            source.reader: {PROVENANCE: str(source.provenance)}
            for source in of.sources
            if source.provenance is not OWN_PROBE
        }

        def add(points: Iterable[otel.Point], at: int, reader: str) -> None:
            mine = {**attributes, **others.get(reader, {})}
            self._waiting += [_Waiting(whose, point, key, at, {**mine, **point.attributes}) for point in points]

        for name, reading in of.readings.items():
            if reading.value is None or reading.measured_at is None:
                continue
            at = to_ns(reading.measured_at)
            if self._fresh.is_new((machine, key, name, ()), at):
                add(names.points_of(name, (), reading.value), at, reading.reader)
        for dim in of.dimensions:
            if dim.value is None or dim.measured_at is None:
                continue
            labels, at = tuple(dim.labels.values()), to_ns(dim.measured_at)
            if self._fresh.is_new((machine, key, dim.metric, labels), at):
                add(names.points_of(dim.metric, labels, dim.value), at, dim.reader)
        for point, instant, reader in names.computed(of):
            at = to_ns(instant)
            if self._fresh.is_new((machine, key, point.name, ()), at):
                add((point,), at, reader)


def _starts(before: Mapping[str, _Whose], machine: str) -> Starts:
    return before[machine].starts if machine in before else Starts()
