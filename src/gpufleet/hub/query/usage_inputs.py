"""Inputs that both kinds of usage have in common: limits of a query, and the usage of devices. Blocks."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from gpufleet.fleet.usage.placements import MachinePlacement, Texts, placements_of
from gpufleet.fleet.usage.product_names import names_of, without_later_claims
from gpufleet.fleet.usage.residence import Interval
from gpufleet.fleet.usage.segments import UnitInterval, UnitKey
from gpufleet.fleet.usage.totals import MeasuredSegment
from gpufleet.fleet.usage.units import (
    SIZES,
    WHOLE,
    MigView,
    PhysicalUnit,
    Place,
    UnitPart,
    mig_ratio,
    ratio_changes,
    size_keys,
)
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.usage import DeviceInterval, DeviceUsage
from gpufleet.model.machine import MachineKind
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.stored.readings import StoredText
from gpufleet.model.time import NANOS
from gpufleet.ports.store import HistoryStore, Store

_DAY_NS = 86_400 * NANOS

MAX_SPAN_NS = 1100 * _DAY_NS
"""Maximum interval of a query."""


def place_units(
    units: Iterable[PhysicalUnit],
    machines: Mapping[str, MachineRecord],
    store: HistoryStore,
    joins: ClusterJoins,
    stays: Mapping[Place, Sequence[Interval]],
) -> None:
    """Set the placements of units: as their machines reported them, else by the labels of their Kubernetes nodes.

    Labels have no past: they count from the creation of the node on, while the machine itself reports nothing.

    Args:
        units: units of a cluster.
        machines: machines of the cluster by id.
        store: has the texts.
        joins: finds the Kubernetes nodes.
        stays: as in `placements_of`.
    """
    if not machines:
        return
    cluster = next(iter(machines.values())).cluster
    nodes = joins.nodes(list(machines.values()))
    found: dict[str, list[Texts]] = {id_: [] for id_ in machines}
    for metric, label in (("host_instance_type", "instance_type"), ("host_cloud_region", "region")):
        texts: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for one in store.texts_of_machines(cluster, sorted(machines), metric):
            texts[one.machine].append((one.at, one.text))
        for id_, fields in found.items():
            node = nodes[id_][0].node if id_ in nodes else None
            created = None if node is None else node.created
            labelled = [(created, text)] if created is not None and (text := getattr(node, label)) else []
            fields.append(texts.get(id_) or labelled)
    places = {
        id_: MachinePlacement(machines[id_].machine.kind is MachineKind.GUEST, types, regions)
        for id_, (types, regions) in found.items()
    }
    units = list(units)
    first = _first_names([one for one in units if one.claims], store, cluster)
    for unit in units:
        unit.placements = placements_of(unit.views, places, stays, first)


def _first_names(units: Iterable[PhysicalUnit], store: HistoryStore, cluster: str) -> dict[Place, int]:
    """Return when each view of units was first reported with a name, nanoseconds since 1970."""
    views = {place for unit in units for place in unit.views}
    found: dict[Place, int] = {}
    machines = sorted({machine for machine, _ in views})
    for one in store.texts_of_machines(cluster, machines, "gpu_name") if machines else ():
        if (one.machine, one.view) in views:
            found.setdefault((one.machine, one.view), one.at)
    return found


def name_units(
    units: Iterable[PhysicalUnit],
    machines: Iterable[MachineRecord],
    store: HistoryStore,
    cluster: str,
    stays: Mapping[Place, Sequence[Interval]],
) -> None:
    """Set the names that units of a cluster had over time, given their machines, and their stays as for `names_of`."""
    guests = {one.id for one in machines if one.machine.kind is MachineKind.GUEST}
    by_place = {place: unit for unit in units for place in unit.views}
    reporters = sorted({machine for machine, _ in by_place})
    texts: dict[str, list[StoredText]] = defaultdict(list)
    for one in store.texts_of_machines(cluster, reporters, "gpu_name") if reporters else ():
        if (one.machine, one.view) in by_place:
            texts[by_place[one.machine, one.view].id].append(one)
    for unit in by_place.values():
        unit.models = names_of(without_later_claims(texts[unit.id], unit.claims), guests, stays)


def complete_ratios(
    store: HistoryStore, cluster: str, units: Mapping[str, PhysicalUnit], held: Iterable[tuple[str, str]], now: int
) -> None:
    """Set the shares of MIG devices that newest samples do not give: missing ones, and those of earlier times.

    A GPU reports no size after MIG mode was switched off, and while it is lost: earlier samples and their rollups have
    it. The profiles that a device had show whether its share changed. A share that was never reported stays unknown.

    Args:
        store: has the samples.
        cluster: the cluster.
        units: its units by id.
        held: (unit, part) of the query; a whole unit needs the shares of all of its parts.
        now: nanoseconds since 1970 by the hub's clock.
    """
    lacking: dict[tuple[str, Provenance], list[tuple[UnitPart, MigView]]] = defaultdict(list)
    by_view: dict[Place, UnitPart] = {}
    for id_, name in set(held):
        parts = units[id_].parts
        for part in parts.values() if name == WHOLE else [parts[name]]:
            by_view |= {(view.machine, view.key): part for view in part.reported}
            if part.ratio is None:
                for view in part.reported:
                    lacking[view.machine, view.provenance].append((part, view))
    end = (now // _DAY_NS + 1) * _DAY_NS
    for (machine, provenance), own in sorted(lacking.items(), key=lambda item: item[0]):
        views = {key for _, view in own for key in (view.key, view.gpu)}
        found = store.series(cluster, machine, SIZES, end - MAX_SPAN_NS, end, _DAY_NS, provenance, views)
        for part, view in own:
            sizes = [_last_size(found.points.get(place, ())) for place in size_keys(view.key, view.gpu)]
            part.ratio = part.ratio or mig_ratio(*sizes)
            part.most = part.most or sizes[-1]
    profiles: dict[Place, list[tuple[int, str]]] = defaultdict(list)
    machines = sorted({machine for machine, _ in by_view})
    for one in store.texts_of_machines(cluster, machines, "mig_profile") if machines else ():
        profiles[one.machine, one.view].append((one.at, one.text))
    for place, part in by_view.items():
        if part.most and place in profiles:
            part.changes = part.changes or ratio_changes(part.most, profiles[place])


def _last_size(points: Sequence[tuple[int, Value]]) -> float | None:
    """Return the newest size. A mean that is no whole number is of a day with other sizes, or with none."""
    sizes = [float(value) for _, value in points if isinstance(value, int | float) and value > 0]
    return next((size for size in reversed(sizes) if size.is_integer()), None)


def check_interval(start: int, end: int) -> None:
    """Raise InvalidQueryError if an interval is empty or too long."""
    if end <= start:
        raise InvalidQueryError("end", "must be after start, by a microsecond at least")
    if end - start > MAX_SPAN_NS:
        raise InvalidQueryError("start", "is more than 1100 days before the end: shorten the interval")


Measurable = TypeVar("Measurable", bound=UnitInterval)


def measured(
    store: Store,
    segments: Sequence[Measurable],
    units: Mapping[UnitKey, PhysicalUnit],
    devices: Callable[[Measurable, PhysicalUnit], Iterable[tuple[str, DeviceInterval]]],
) -> list[MeasuredSegment[Measurable]]:
    """Return segments with the usage of their devices: (part, interval) of each device."""
    intervals: list[DeviceInterval] = []
    places: list[tuple[int, str]] = []
    for number, segment in enumerate(segments):
        for name, interval in devices(segment, units[segment.unit]):
            places.append((number, name))
            intervals.append(interval)
    usage: dict[int, dict[str, DeviceUsage]] = defaultdict(dict)
    for (number, name), one in zip(places, store.device_usage(intervals), strict=True):
        usage[number][name] = one
    return [
        MeasuredSegment(segment, units[segment.unit], usage.get(number, {})) for number, segment in enumerate(segments)
    ]
