"""Usage queries: GPU-hours, energy and cost of allocations. Fetches the inputs of `fleet.usage`; blocks."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from gpufleet.fleet.attribution import contract, guests, slices
from gpufleet.fleet.attribution.bindings import BoundInterval, bound_intervals, locate, validity
from gpufleet.fleet.usage.residence import (
    UNBOUNDED,
    Residence,
    bounded_residences,
    last_reported,
    possibly_moved,
    possibly_replaced,
    succession,
)
from gpufleet.fleet.usage.segments import Segment, UnitHolding, UnitKey, cut_segments, device_intervals
from gpufleet.fleet.usage.totals import MeasuredSegment, Prices, usage_rows
from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit, PhysicalUnits, Place
from gpufleet.hub.query.events import is_active_within
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.targets import QueryExecutor
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import VM_KINDS, Allocation, AllocationKind
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.usage import DeviceInterval, UnresolvedAllocation, UsageAnswer, UsageDimension
from gpufleet.model.machine import MachineKind
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import Side, ViewKind, normalise_uuid
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

MAX_ALLOCATIONS = 10_000
"""Maximum number of allocations per query."""

MAX_SPAN_NS = 1100 * 86_400 * 10**9
"""Maximum interval of a query."""

SHORT = "fewer devices are known than expected"
NONE_KNOWN = "no GPU of it is known, and it declares no expected number"


class _AllocatedUnit(NamedTuple):
    """Unit of an allocation: its id in a cluster, the allocated part, and the interval in which it has the unit."""

    id: str
    part: str
    start: int
    end: int


class _AllocatedUnits(msgspec.Struct, frozen=True):
    """Units of an allocation, and why there are not more."""

    units: tuple[_AllocatedUnit, ...]
    reason: Reason = Reason.NOT_COLLECTED
    detail: str = ""


class UsageCalculator:
    """Computes usage from the registry and the store."""

    def __init__(self, *, registry: Registry, store: Store, prices: Prices) -> None:
        self._registry = registry
        self._store = store
        self._prices = prices

    def compute(self, start: int, end: int, by: Sequence[UsageDimension], tenant: str | None = None) -> UsageAnswer:
        """Return the usage within an interval, nanoseconds since 1970, `end` excluded; of a single tenant if given.

        Raises:
            InvalidQueryError: if the interval is empty or too long, or if there are too many allocations.
        """
        if end <= start:
            raise InvalidQueryError("end", "must be after start, by a microsecond at least")
        if end - start > MAX_SPAN_NS:
            raise InvalidQueryError("start", "is more than 1100 days before the end: shorten the interval")
        every = {one.id: one for one in self._registry.allocations() if is_active_within(one, start, end)}
        shown = frozenset(id_ for id_, one in every.items() if tenant is None or one.spec.tenant == tenant)
        if len(shown) > MAX_ALLOCATIONS:
            detail = f"matches {len(shown)} allocations, at most {MAX_ALLOCATIONS}: shorten the interval"
            raise InvalidQueryError("start", detail)
        clusters = {every[id_].spec.target.cluster for id_ in shown}
        units: dict[UnitKey, PhysicalUnit] = {}
        holdings: list[UnitHolding] = []
        unresolved: list[UnresolvedAllocation] = []
        for cluster in sorted(clusters):
            mine = [one for one in every.values() if one.spec.target.cluster == cluster]
            found, placed = self._place(cluster, mine, start, end)
            units.update({(cluster, id_): unit for id_, unit in found.items()})
            for one in mine:
                span = max(start, _ns(one, start)), min(end, _end(one, end))
                had = placed[one.id]
                holdings += [UnitHolding((cluster, unit.id), unit.part, one.id, *unit[2:]) for unit in had.units]
                short, stand_ins = missing_devices(one, had.units, units, span)
                for unit, since, until in stand_ins:
                    units[cluster, unit.id] = unit
                    holdings.append(UnitHolding((cluster, unit.id), WHOLE, one.id, since, until))
                if one.id in shown and any(_has_no_ratio(found[unit.id], unit.part) for unit in had.units):
                    detail = "its MIG device does not report its share of the GPU: it is in no total"
                    unresolved.append(
                        UnresolvedAllocation(allocation=one.id, devices=0, reason=Reason.NOT_REPORTED, detail=detail)
                    )
                elif one.id in shown and (short or not had.units):
                    detail = had.detail or (SHORT if short else NONE_KNOWN)
                    unresolved.append(
                        UnresolvedAllocation(allocation=one.id, devices=short, reason=had.reason, detail=detail)
                    )
        prices = self._prices.prices
        cuts = [to_ns(price.valid_from) for price in prices]
        relevant = [one for one in cut_segments(holdings, every, cuts) if not shown.isdisjoint(one.parts)]
        groups, total = usage_rows(self._measured(relevant, units), every, shown, by, prices)
        return UsageAnswer(
            start=to_datetime(start),
            end=to_datetime(end),
            group_by=tuple(by),
            currency=self._prices.currency if prices else None,
            rows=groups,
            total=total,
            unresolved=tuple(sorted(unresolved, key=lambda one: one.allocation)),
            summary=_summary(total.held_gpu_hours, total.unknown_gpu_hours, unresolved),
        )

    def _measured(self, relevant: Sequence[Segment], units: dict[UnitKey, PhysicalUnit]) -> list[MeasuredSegment]:
        intervals: list[DeviceInterval] = []
        places: list[tuple[int, str]] = []
        for number, segment in enumerate(relevant):
            if segment.contested:
                continue
            for name, interval in device_intervals(segment, units[segment.unit]):
                places.append((number, name))
                intervals.append(interval)
        usage: dict[int, dict[str, object]] = defaultdict(dict)
        for (number, name), one in zip(places, self._store.device_usage(intervals), strict=True):
            usage[number][name] = one
        return [
            MeasuredSegment(segment, units[segment.unit], usage.get(number, {}))  # type: ignore[arg-type]
            for number, segment in enumerate(relevant)
        ]

    def _place(
        self, cluster: str, mine: Sequence[Allocation], start: int, end: int
    ) -> tuple[dict[str, PhysicalUnit], dict[str, _AllocatedUnits]]:
        """Find the devices of the allocations of a cluster in an interval; each machine is queried once."""
        machines: dict[str, MachineRecord] = {}
        bound: dict[str, tuple[BoundInterval, ...]] = {}
        inside: dict[str, tuple[list[MachineRecord], list[MachineRecord]]] = {}
        for one in mine:
            if one.spec.kind in VM_KINDS:
                inside[one.id] = self._of_vm(one)
                machines.update({host.id: host for hosts in inside[one.id] for host in hosts})
                continue
            bound[one.id] = bound_intervals(one, start, end)
            for interval in bound[one.id]:
                machines.update({item.id: item for item in self._registry.find_machines(cluster, interval.machine)})
        stored = {id_: tuple(samples) for id_, samples in self._store.latest_of(cluster, sorted(machines)).items()}
        several = {guest.id for found, _ in inside.values() if len(found) > 1 for guest in found}
        residences: dict[Place, Residence] = {}
        first: dict[str, int] = {}
        for side in (Side.HOST, Side.GUEST):
            reported = last_reported(stored, side)
            changed = {*possibly_moved(reported), *possibly_replaced(stored, reported)}
            changed |= several if side is Side.GUEST else set()
            slots = self._store.slots(cluster, sorted(changed)) if changed else ()
            residences |= bounded_residences(slots, reported)
            for slot in slots:
                first[slot.machine] = min(first.get(slot.machine, slot.first), slot.first)
        left = [place for place, residence in residences.items() if residence.end < UNBOUNDED]
        units = PhysicalUnits(cluster, stored, left, _guests(machines.values()))
        placed = {}
        for one in mine:
            if one.id in inside:
                known = _reports(inside[one.id][0], stored, first)
                placed[one.id] = self._in_vm(one, *inside[one.id], stored, units, residences, known, start, end)
            elif bound[one.id]:
                placed[one.id] = _AllocatedUnits(
                    tuple(unit for interval in bound[one.id] for unit in _allocated(interval, units, residences))
                )
            else:
                placed[one.id] = self._unresolved(one)
        return units.by_id, placed

    def _unresolved(self, allocation: Allocation) -> _AllocatedUnits:
        """Return why an allocation is bound to no machine in the interval."""
        if allocation.spec.kind is not AllocationKind.BARE_METAL:
            return _AllocatedUnits((), *contract.NO_ANSWERER[allocation.spec.kind])
        target = allocation.spec.target
        machines = self._registry.find_machines(target.cluster, target.machine or "")
        located = locate(allocation.spec, machines)
        return _AllocatedUnits((), located.reason or Reason.TARGET_UNKNOWN, located.detail)

    def _of_vm(self, allocation: Allocation) -> tuple[list[MachineRecord], list[MachineRecord]]:
        """Return the guests with the target's UUID, and the nodes that may report its vGPU instances."""
        cluster, uuid = allocation.spec.target.cluster, normalise_uuid(allocation.spec.target.vm_uuid or "")
        found = self._registry.machines_with_uuid(cluster, uuid) if uuid else ()
        reporters = set(self._store.reporters_of_text(cluster, slices.VM_ID, uuid) if uuid else ())
        for name in allocation.spec.devices or ():
            reporters.update(self._store.reporters_of_view(cluster, f"{ViewKind.VGPU}/{normalise_uuid(name) or name}"))
        nodes = [one for id_ in sorted(reporters) for one in self._registry.find_machines(cluster, id_)]
        return (
            [one for one in found if one.machine.kind is MachineKind.GUEST],
            [one for one in nodes if one.machine.kind is MachineKind.NODE],
        )

    def _in_vm(
        self,
        allocation: Allocation,
        inside: Sequence[MachineRecord],
        nodes: Sequence[MachineRecord],
        stored: dict[str, tuple[StoredSample, ...]],
        units: PhysicalUnits,
        residences: Mapping[Place, Residence],
        reported: Mapping[str, tuple[int, int]],
        start: int,
        end: int,
    ) -> _AllocatedUnits:
        guest_samples = [
            guests.MachineSamples(machine=one, stored=stored.get(one.id, ()), readers=()) for one in inside
        ]
        places: list[Place] = [
            (node.id, sample.sample.view.key)
            for node in nodes
            for sample in slices.instances_of(
                allocation.spec, guests.MachineSamples(machine=node, stored=stored.get(node.id, ()), readers=())
            )
            if sample.sample.view is not None
        ]
        reason, detail = contract.NO_ANSWERER[allocation.spec.kind]
        first, last = validity(allocation)
        first, last = max(first, start), min(last, end)
        read = {guest.id: reported[guest.id] for guest in guests.guest_machines(allocation, guest_samples)}
        own: list[_AllocatedUnit] = []
        for id_, intervals in succession(read).items():
            for since, until in intervals:
                turn = BoundInterval(id_, None, max(since, first), min(until, last))
                if turn.start < turn.end:
                    own += [unit for unit in _allocated(turn, units, residences) if unit.start < unit.end]
        seen = {(unit.id, unit.part) for unit in own}
        own += [_AllocatedUnit(*one, first, last) for one in units.at(places) if one not in seen]
        return _AllocatedUnits(tuple(own), reason, detail)


def _allocated(
    interval: BoundInterval, units: PhysicalUnits, residences: Mapping[Place, Residence]
) -> Iterator[_AllocatedUnit]:
    """Yield the units of a machine in an interval; a GPU that came or left in it counts only while it was there."""
    devices = interval.devices
    places = [] if devices is None else [(interval.machine, key) for key in sorted(devices)]
    for id_, part in units.whole(interval.machine) if devices is None else units.at(places):
        residence = _residence(units.by_id[id_], interval.machine, residences) or Residence()
        yield _AllocatedUnit(id_, part, *residence.within(interval.start, interval.end))


def _reports(
    inside: Iterable[MachineRecord], stored: Mapping[str, Sequence[StoredSample]], first: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """Return the first and the last report of guests: by their own clock, if known, else by the hub's."""
    found = {}
    for guest in inside:
        newest = max((one.sample.measured_at for one in stored.get(guest.id, ())), default=to_ns(guest.last_seen))
        oldest = first.get(guest.id, to_ns(guest.first_seen))
        found[guest.id] = min(oldest, newest), newest
    return found


def _guests(machines: Iterable[MachineRecord]) -> dict[str, list[str]]:
    """Return the guests of each host among machines of a cluster."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in machines:
        if one.hypervisor_id is not None:
            found[one.hypervisor_id].append(one.id)
    return found


def _has_no_ratio(unit: PhysicalUnit, part: str) -> bool:
    return part != WHOLE and unit.parts[part].ratio is None


def _residence(unit: PhysicalUnit, machine: str, residences: Mapping[Place, Residence]) -> Residence | None:
    """Return the bounded residence of a GPU in a machine, if there is one."""
    return next((residences[place] for place in unit.views if place[0] == machine and place in residences), None)


def missing_devices(
    allocation: Allocation,
    had: Sequence[_AllocatedUnit],
    units: dict[UnitKey, PhysicalUnit],
    span: tuple[int, int],
) -> tuple[int, list[tuple[PhysicalUnit, int, int]]]:
    """Return the largest number of devices that an allocation lacks within an interval, and their stand-ins.

    A stand-in is a unit with the interval in which it represents a missing device: a GPU that moved away is missing
    from then on, until another one is present.
    """
    spec = allocation.spec
    listed = [name for name in spec.devices or () if not name.startswith("MIG-")]
    if any(unit.part != WHOLE for unit in had) and not listed:
        return 0, []  # it has shares of GPUs, and its expected GPUs cannot be compared with them
    wanted = max(len(listed), sum(spec.expected.values()))
    cluster = spec.target.cluster
    known = [unit for unit in had if (cluster, unit.id) in units]
    there = [(unit.start, unit.end) for unit in known if unit.part == WHOLE]
    model = _model_of(spec.expected, {units[cluster, unit.id].model for unit in known})
    most, stand_ins = 0, []
    for start, end in pairwise(sorted({*span, *(at for interval in there for at in interval)})):
        lacking = wanted - sum(first <= start and end <= last for first, last in there)
        most = max(most, lacking)
        names = (f"missing/{allocation.id}/{number}" for number in range(lacking))
        stand_ins += [(PhysicalUnit(cluster, name, (), model, {}), start, end) for name in names]
    return most, stand_ins


def _model_of(expected: Collection[str], others: Iterable[str | None]) -> str | None:
    """Return the model of a missing GPU: the driver's name of the other GPUs of its class, if they have a single name.

    Classes are short names such as `H200`; groups and prices use the driver's `NVIDIA H200`.
    """
    if len(expected) != 1:
        return None
    (kind,) = expected
    alike = {name for name in others if name is not None and kind.casefold() in name.casefold()}
    return alike.pop() if len(alike) == 1 else kind


def _ns(allocation: Allocation, start: int) -> int:
    return to_ns(allocation.spec.valid_from) if allocation.spec.valid_from is not None else start


def _end(allocation: Allocation, end: int) -> int:
    return min([end, *(to_ns(at) for at in (allocation.spec.valid_to, allocation.closed_at) if at is not None)])


def _summary(held: float, unknown: float, unresolved: Sequence[UnresolvedAllocation]) -> str:
    text = f"{held - unknown:.2f} of {held:.2f} GPU-hours held are known"
    uncounted = sum(one.devices == 0 for one in unresolved)
    return f"{text}; allocations of unknown devices that are in no total: {uncounted}" if uncounted else text


class UsageQueries:
    """Queries for GPU-hours, energy and cost, of all allocations or of a tenant's."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        executor: QueryExecutor,
        prices: Prices,
        bind_pending: Callable[[], Awaitable[None]],
    ) -> None:
        self._calculator = UsageCalculator(registry=registry, store=store, prices=prices)
        self._bind_pending = bind_pending
        self._executor = executor

    async def of(self, start: int, end: int, by: Sequence[UsageDimension], tenant: str | None) -> UsageAnswer:
        """Return the usage within an interval, nanoseconds since 1970, `end` excluded.

        Raises:
            InvalidQueryError: as `UsageCalculator.compute`.
        """
        await self._bind_pending()
        return await self._executor.run(lambda: self._calculator.compute(start, end, by, tenant))
