"""Usage by holder: the time of all GPUs of a cluster or of all clusters, by what their holders are. Blocks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gpufleet.fleet.attribution.cluster_pods import without_repeated_names
from gpufleet.fleet.attribution.reported import known_until
from gpufleet.fleet.readings import known_views
from gpufleet.fleet.usage.holders import HolderSegment, PlacedShares, cut_holder_segments, holder_history, holder_rows
from gpufleet.fleet.usage.presence import present_intervals, reported_spans
from gpufleet.fleet.usage.residence import UNBOUNDED, Interval, last_reported
from gpufleet.fleet.usage.segments import UnitInterval, UnitKey, part_intervals
from gpufleet.fleet.usage.shares import by_place, share_intervals
from gpufleet.fleet.usage.stays import bounded_stays, is_left
from gpufleet.fleet.usage.units import SIZES, WHOLE, PhysicalUnit, PhysicalUnits, Place
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.gpu_stays import complete_stays
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.holding_reads import MAX_HOLDINGS, check_holdings
from gpufleet.hub.query.prices import CurrentPrices
from gpufleet.hub.query.usage_inputs import (
    check_interval,
    complete_ratios,
    measured,
    name_units,
    place_units,
)
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.inventory import StoredSlot
from gpufleet.model.api.usage import DeviceInterval, UsageAnswer, UsageDimension, UsageRow
from gpufleet.model.holdings import HolderKind
from gpufleet.model.machine import MachineKind
from gpufleet.model.stored.holdings import HoldingQuery, StoredHolding
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import Side, View, ViewKind, normalise_uuid
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

MAX_MACHINES = 5_000
"""Maximum number of machines per query."""

MAX_ROWS = 20_000
"""Maximum number of rows of an answer."""

MACHINES_PER_READ = 100
"""Machines whose newest samples are in memory at once."""

_NEEDED = frozenset({"gpu_name", *SIZES})
"""Metrics that describe physical GPUs."""


class _Inventory(msgspec.Struct, frozen=True):
    """GPUs of the machines of a cluster.

    Attributes:
        units: the GPUs.
        stays: those of GPUs that were not always in their machine.
        presence: the time in which each is known to exist.
    """

    units: PhysicalUnits
    stays: Mapping[Place, Sequence[Interval]]
    presence: tuple[UnitInterval, ...]


class HolderUsageCalculator:
    """Computes usage by holder from holdings and the inventory."""

    def __init__(
        self, *, registry: Registry, store: Store, joins: ClusterJoins, prices: CurrentPrices, clock: Clock
    ) -> None:
        self._registry = registry
        self._store = store
        self._joins = joins
        self._prices = prices
        self._clock = clock

    def compute(self, start: int, end: int, by: Sequence[UsageDimension], cluster: str | None = None) -> UsageAnswer:
        """Return the usage of all GPUs (of a cluster) within an interval, by holder.

        Args:
            start, end: nanoseconds since 1970, `end` excluded.
            by: dimensions of holders, `cluster` and `model`.
            cluster: only this cluster.

        Raises:
            InvalidQueryError: if the interval is empty or too long, or if there are too many machines, holdings or
                groups.
        """
        check_interval(start, end)
        prices = self._prices.table()
        stored: list[StoredHolding] = []
        units: dict[UnitKey, PhysicalUnit] = {}
        presence: list[UnitInterval] = []
        placed: list[PlacedShares] = []
        machines = self._machines(cluster)
        now = self._clock.now_ns()
        for name, records in machines.items():
            limit = MAX_HOLDINGS + 1 - len(stored)
            read = self._store.holdings(HoldingQuery(cluster=name, start=start, end=end, limit=limit))
            check_holdings(len(stored) + len(read))
            held = without_repeated_names(self._joins.complete(read), now)
            stored += held
            found = self._inventory(name, records, held, start, end, now)
            if prices.needs_placement:
                by_id = {one.id: one for one in records}
                place_units(found.units.by_id.values(), by_id, self._store, self._joins, found.stays)
            if prices or UsageDimension.MODEL in by:
                name_units(found.units.by_id.values(), records, self._store, name, found.stays)
            presence += found.presence
            for place, own in by_place(held).items():
                id_, part = found.units.held_at(place)
                placed += [PlacedShares((name, id_), part, one) for one in share_intervals(own, now, start, end)]
            whole = [(one.unit[1], WHOLE) for one in found.presence]
            parts = [(one.unit[1], one.part) for one in placed if one.unit[0] == name]
            complete_ratios(self._store, name, found.units.by_id, [*whole, *parts], now)
            units |= {(name, id_): unit for id_, unit in found.units.by_id.items()}
        holders = holder_history(stored)
        segments = cut_holder_segments(presence, placed, units, holders, prices.boundaries)
        known = measured(self._store, segments, units, _devices)
        rows, total = holder_rows(known, holders, by, prices)
        if len(rows) > MAX_ROWS:
            detail = f"gives {len(rows)} groups, at most {MAX_ROWS}: use fewer dimensions or a shorter interval"
            raise InvalidQueryError("group_by", detail)
        return UsageAnswer(
            start=to_datetime(start),
            end=to_datetime(end),
            group_by=tuple(by),
            currency=prices.currency,
            rows=rows,
            total=total,
            unresolved=(),
            summary=_summary(total),
        )

    def _machines(self, cluster: str | None) -> dict[str, list[MachineRecord]]:
        """Return the machines by cluster."""
        found: dict[str, list[MachineRecord]] = {}
        for number, one in enumerate(self._registry.machines(cluster, limit=MAX_MACHINES + 1)):
            if number == MAX_MACHINES:
                raise InvalidQueryError("cluster", f"has more than {MAX_MACHINES} machines: select a smaller cluster")
            found.setdefault(one.cluster, []).append(one)
        return found

    def _inventory(
        self,
        cluster: str,
        records: Sequence[MachineRecord],
        held: Iterable[StoredHolding],
        start: int,
        end: int,
        now: int,
    ) -> _Inventory:
        by_id = {one.id: one for one in records}
        stored: dict[str, tuple[StoredSample, ...]] = {}
        reported: dict[Side, dict[Place, int]] = {Side.HOST: {}, Side.GUEST: {}}
        last: dict[Place, int] = {}
        for at in range(0, len(records), MACHINES_PER_READ):
            read = self._store.latest_of(cluster, sorted(one.id for one in records[at : at + MACHINES_PER_READ]))
            for side in reported:
                reported[side] |= last_reported(read, side)
            for machine, samples in read.items():
                for one in samples:
                    if one.sample.view is not None:
                        place = machine, one.sample.view.key
                        last[place] = max(last.get(place, 0), one.received_at)
                stored[machine] = tuple(_described(samples))
        slots = self._store.slots(cluster, sorted(by_id))
        bounded = {place: one for own in reported.values() for place, one in bounded_stays(slots, own).items()}
        bounded = complete_stays(self._store, cluster, stored, bounded)
        views = {(machine, key): view for machine in stored for key, view in known_views(stored[machine]).items()}
        left = [place for place, stays in bounded.items() if is_left(stays)]
        left += [place for place, view in views.items() if view.kind is ViewKind.VGPU]
        guests: dict[str, list[str]] = {}
        for record in records:
            if record.hypervisor_id is not None:
                guests.setdefault(record.hypervisor_id, []).append(record.id)
        units = PhysicalUnits(cluster, stored, left, guests)
        first = self._first_reports(cluster, slots, views)
        for place in last:
            of_gpu = first.get((place[0], views[place].parent or ""), to_ns(by_id[place[0]].first_seen))
            first.setdefault(place, of_gpu)
        nodes = {one.id for one in records if one.machine.kind is MachineKind.NODE}
        of_guests = {
            id_: host for host, inside in guests.items() if host in nodes for id_ in inside if id_ not in nodes
        }
        found = present_intervals(
            views, reported_spans(first, last, now), bounded, of_guests, _hosted_intervals(records, held, now)
        )
        presence = [
            UnitInterval((cluster, id_), max(since, start), min(until, end, now))
            for place, intervals in found.items()
            for id_, part in units.at([place])
            if part == WHOLE
            for since, until in intervals
            if max(since, start) < min(until, end, now)
        ]
        return _Inventory(units, bounded, tuple(presence))

    def _first_reports(
        self, cluster: str, slots: Iterable[StoredSlot], views: Mapping[Place, View]
    ) -> dict[Place, int]:
        """Return the first report of GPUs in slots, and of vGPUs with a type, nanoseconds since 1970."""
        found: dict[Place, int] = {}
        for slot in slots:
            found[slot.machine, slot.view] = min(slot.first, found.get((slot.machine, slot.view), slot.first))
        machines = sorted({machine for (machine, _), view in views.items() if view.kind is ViewKind.VGPU})
        for one in self._store.texts_of_machines(cluster, machines, "vgpu_type") if machines else ():
            found.setdefault((one.machine, one.view), one.at)
        return {place: at for place, at in found.items() if place in views}


def _hosted_intervals(
    records: Iterable[MachineRecord], held: Iterable[StoredHolding], now: int
) -> dict[str, list[Interval]]:
    """Return the intervals in which hosts reported that the virtual machines of guests have devices, by guest."""
    guests: dict[str, list[str]] = {}
    for record in records:
        if record.machine.kind is MachineKind.GUEST and record.machine.system_uuid:
            guests.setdefault(record.machine.system_uuid, []).append(record.id)
    found: dict[str, list[Interval]] = {}
    for one in held:
        for holder in (one.holding.holder, one.holding.parent):
            if holder is not None and holder.kind is HolderKind.VM:
                until = known_until(one, now)
                for guest in guests.get(normalise_uuid(holder.id) or "", ()):
                    if guest != one.machine:
                        interval = one.holding.since, UNBOUNDED if until is None else until
                        found.setdefault(guest, []).append(interval)
    return found


def _described(samples: Iterable[StoredSample]) -> Iterator[StoredSample]:
    """Yield samples of devices with only the values that describe physical GPUs."""
    for one in samples:
        if one.sample.view is not None:
            values = {name: value for name, value in one.sample.values.items() if name in _NEEDED}
            sample = msgspec.structs.replace(one.sample, values=values, dims=(), processes=None)
            yield msgspec.structs.replace(one, sample=sample)


def _devices(segment: HolderSegment, unit: PhysicalUnit) -> list[tuple[str, DeviceInterval]]:
    return part_intervals(unit, {WHOLE}, segment.start, segment.end)


def _summary(total: UsageRow) -> str:
    held = total.held_gpu_hours
    return (
        f"the holder is known for {held - total.unattributed_gpu_hours:.2f} of {held:.2f} GPU-hours, "
        f"the activity for {held - total.unknown_gpu_hours:.2f}"
    )
