"""Usage queries: GPU-hours, energy and cost of allocations. Fetches the inputs of `fleet.usage`; blocks."""

from collections import ChainMap, defaultdict
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

import msgspec

from gpufleet.fleet.attribution import contract, guests, slices, workloads
from gpufleet.fleet.attribution.bindings import BoundInterval, bound_intervals, locate_unbound, validity
from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS, may_overlap
from gpufleet.fleet.identity import MachineIds
from gpufleet.fleet.usage.allocated import AllocatedUnit, AllocatedUnits, missing_devices
from gpufleet.fleet.usage.instances import LastReport, guest_stays, instance_intervals
from gpufleet.fleet.usage.residence import (
    UNBOUNDED,
    Interval,
    gaps,
)
from gpufleet.fleet.usage.segments import (
    HeldPart,
    Segment,
    UnitHolding,
    UnitKey,
    cut_segments,
    device_intervals,
)
from gpufleet.fleet.usage.shares import TargetIndex, WorkloadShare, workload_shares
from gpufleet.fleet.usage.stays import clipped, is_left
from gpufleet.fleet.usage.totals import usage_rows
from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit, PhysicalUnits, Place
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.events import is_active_within
from gpufleet.hub.query.executors import BoundedExecutor
from gpufleet.hub.query.gpu_stays import PastReports, stays_of
from gpufleet.hub.query.guest_turns import AMBIGUOUS, GuestTurns
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.holder_usage import HolderUsageCalculator
from gpufleet.hub.query.holding_reads import ambiguous_jobs, machine_queries, read_holdings, target_queries
from gpufleet.hub.query.names import without_machine_ids
from gpufleet.hub.query.prices import CurrentPrices
from gpufleet.hub.query.targets import MachineLookup
from gpufleet.hub.query.usage_inputs import (
    check_interval,
    complete_ratios,
    measured,
    name_units,
    place_units,
)
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import VM_KINDS, WORKLOAD_KINDS, Allocation
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.usage import (
    DeviceInterval,
    UnresolvedAllocation,
    UsageAnswer,
    UsageDimension,
)
from gpufleet.model.machine import MachineKind
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.stored.readings import StoredText
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import Side, ViewKind, normalise_uuid
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

MAX_ALLOCATIONS = 10_000
"""Maximum number of allocations per query."""

MAX_PENDING = 6
"""Maximum number of usage queries that are running or queued; further ones are rejected."""

MAX_OF_TENANT = 2
"""Maximum number of those of a tenant; all tenants together leave as many for operators and admins."""

RUNNING_OF_TENANTS = 1
"""Maximum number of running queries of all tenants; the hub has two threads for usage queries."""

SHORT = "fewer devices are known than expected"
NONE_KNOWN = "no GPU of the allocation is known, and it declares no expected number of GPUs"
CONTRADICTED = "another holder of the same device is reported at the same time: that time is in no total"
UNCONFIRMED = "the source of the holding does not confirm it now: the activity of that time is unknown"
EXCLUDED = "no source confirms its holding, or another holder is certain: that time is in no total"


class _WorkloadHoldings(NamedTuple):
    """Shares and holdings of pods and jobs by allocation, and the machines that report them.

    `ambiguous` has the allocations whose job ids are those of several SLURM clusters: they have no shares from the
    start of the second one on.
    """

    shares: Mapping[str, Sequence[WorkloadShare]]
    stored: Mapping[str, Sequence[StoredHolding]]
    machines: frozenset[str]
    ambiguous: frozenset[str] = frozenset()


class _VmMachines(NamedTuple):
    """Guests of a virtual machine, nodes with its vGPU instances, and their ids of virtual machines over time.

    `kinds` has the kinds of these ids if the allocation lists its devices.
    """

    inside: Sequence[MachineRecord]
    nodes: Sequence[MachineRecord]
    ids: Sequence[StoredText]
    kinds: Sequence[StoredText] = ()


class UsageCalculator:
    """Computes usage from the registry and the store."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        lookup: MachineLookup,
        joins: ClusterJoins,
        turns: GuestTurns,
        prices: CurrentPrices,
        clock: Clock,
    ) -> None:
        self._turns = turns
        self._joins = joins
        self._registry = registry
        self._store = store
        self._lookup = lookup
        self._prices = prices
        self._clock = clock

    def compute(
        self,
        start: int,
        end: int,
        by: Sequence[UsageDimension],
        tenant: str | None = None,
        cluster: str | None = None,
    ) -> UsageAnswer:
        """Return the usage within an interval, of all allocations, or of those of a tenant or a cluster.

        Args:
            start, end: nanoseconds since 1970, `end` excluded.
            by: dimensions of allocations.
            tenant, cluster: only these allocations.

        Raises:
            InvalidQueryError: if the interval is empty or too long, or if there are too many allocations or holdings.
        """
        check_interval(start, end)
        prices = self._prices.table()
        every = {
            one.id: one
            for one in self._registry.allocations()
            if is_active_within(one, start, end) and cluster in (None, one.spec.target.cluster)
        }
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
            names_units = bool(prices) or UsageDimension.MODEL in by
            found, placed = self._place(
                cluster, mine, shown, start, end, places_units=prices.needs_placement, names_units=names_units
            )
            units.update({(cluster, id_): unit for id_, unit in found.items()})
            for one in mine:
                span = max(start, _ns(one, start)), min(end, _end(one, end))
                had = placed[one.id]
                for unit_list, is_counted in ((had.units, True), (had.possible, False)):
                    holdings += [
                        UnitHolding((cluster, unit.id), unit.part, one.id, unit.start, unit.end, is_counted)
                        for unit in unit_list
                    ]
                short, stand_ins = missing_devices(one, had.units, units, span, had.ambiguous)
                for unit, since, until in stand_ins:
                    units[cluster, unit.id] = unit
                    holdings.append(UnitHolding((cluster, unit.id), HeldPart(WHOLE), one.id, since, until))
                if one.id in shown and any(_has_no_ratio(found[unit.id], unit.part) for unit in had.units):
                    detail = "its MIG device does not report its share of the GPU: it is in no total"
                    unresolved.append(
                        UnresolvedAllocation(allocation=one.id, devices=0, reason=Reason.NOT_REPORTED, detail=detail)
                    )
                elif one.id in shown and (short or had.ambiguous or not had.units or had.uncertain is not None):
                    detail = had.detail or (SHORT if short else NONE_KNOWN)
                    missing = max(short, had.uncertain or 0) or None
                    if tenant is not None:
                        detail = without_machine_ids(detail)
                    unresolved.append(
                        UnresolvedAllocation(allocation=one.id, devices=missing, reason=had.reason, detail=detail)
                    )
        segments = cut_segments(holdings, every, prices.boundaries, units)
        relevant = [one for one in segments if not shown.isdisjoint(one.parts)]
        known = measured(self._store, relevant, units, _devices)
        groups, total = usage_rows(known, every, shown, by, prices)
        return UsageAnswer(
            start=to_datetime(start),
            end=to_datetime(end),
            group_by=tuple(by),
            currency=prices.currency,
            rows=groups,
            total=total,
            unresolved=tuple(sorted(unresolved, key=lambda one: one.allocation)),
            summary=_summary(total.held_gpu_hours, total.unknown_gpu_hours, unresolved),
        )

    def _place(
        self,
        cluster: str,
        mine: Sequence[Allocation],
        shown: Container[str],
        start: int,
        end: int,
        *,
        places_units: bool,
        names_units: bool,
    ) -> tuple[dict[str, PhysicalUnit], dict[str, AllocatedUnits]]:
        """Find the devices of the allocations of a cluster in an interval; each machine is queried once.

        Those of a pod or job that is not `shown` are found only on machines with devices of the shown allocations.
        With `places_units`, the devices have the instance type and region of their machines. With `names_units`, they
        have their names over time.
        """
        machines: dict[str, MachineRecord] = {}
        bound: dict[str, tuple[BoundInterval, ...]] = {}
        inside: dict[str, _VmMachines] = {}
        for one in mine:
            if one.spec.kind in VM_KINDS:
                inside[one.id] = self._of_vm(one)
                machines.update({host.id: host for hosts in inside[one.id][:2] for host in hosts})
                continue
            bound[one.id] = bound_intervals(one, start, end)
            for interval in bound[one.id]:
                machines.update({item.id: item for item in self._registry.find_machines(cluster, interval.machine)})
        held = self._held(cluster, mine, shown, machines, start, end)
        machines.update({one.id: one for one in self._lookup.with_ids(cluster, held.machines - set(machines))})
        stored = {id_: tuple(samples) for id_, samples in self._store.latest_of(cluster, sorted(machines)).items()}
        of_hosts, now = PastReports(self._store, cluster, Side.HOST), self._clock.now_ns()
        ids = MachineIds(self._registry.succeeded_machines())
        stays = stays_of(self._store, cluster, stored, ids, (start, end), now)
        instances = {
            one.id: _instances(one, inside[one.id], stored, now, of_hosts.last_within)
            for one in mine
            if one.id in inside
        }
        left = [place for place, own in stays.items() if is_left(own)]
        left += {place for own in instances.values() for place in own}
        units = PhysicalUnits(cluster, stored, left, _guests(machines.values()))
        if places_units:
            place_units(units.by_id.values(), machines, self._store, self._joins, stays)
        if names_units:
            name_units(units.by_id.values(), machines.values(), self._store, cluster, stays)
        placed = {}
        for one in mine:
            if one.spec.kind in WORKLOAD_KINDS:
                placed[one.id] = self._of_workload(one, held, units)
            elif one.id in inside:
                placed[one.id] = self._in_vm(one, inside[one.id], instances[one.id], stored, units, stays, start, end)
            elif bound[one.id]:
                placed[one.id] = AllocatedUnits(
                    tuple(unit for interval in bound[one.id] for unit in _allocated(interval, units, stays))
                )
            else:
                placed[one.id] = self._unresolved(one)
        every = (unit for own in placed.values() for unit in (*own.units, *own.possible))
        held_parts = [(unit.id, unit.part.name) for unit in every]
        complete_ratios(self._store, cluster, units.by_id, held_parts, now)
        return units.by_id, placed

    def _held(
        self,
        cluster: str,
        mine: Sequence[Allocation],
        shown: Container[str],
        machines: Collection[str],
        start: int,
        end: int,
    ) -> _WorkloadHoldings:
        """Return the shares of pods and jobs in the devices of the shown allocations.

        Args:
            cluster: the cluster.
            mine: its allocations.
            shown: ids of allocations.
            machines: of allocations of other kinds; a pod or job on them can be another tenant's.
            start, end: nanoseconds since 1970, `end` excluded.
        """
        own = [one for one in mine if one.spec.kind in WORKLOAD_KINDS]
        if not own:
            return _WorkloadHoldings({}, {}, frozenset())
        now = self._clock.now_ns()
        requested = [one for one in own if one.id in shown]
        named = read_holdings(self._store, target_queries(cluster, requested, start, end), now)
        of_shown = tuple(sorted({one.machine for one in named} | set(machines)))
        others = [one for one in own if one.id not in shown] if of_shown else []
        rivals = read_holdings(self._store, target_queries(cluster, others, start, end, of_shown), now)
        places = {one.machine for one in (*named, *rivals)}
        earliest = max(0, start - HOLDING_TTL_NS)  # the next holder ends a holding whose end was lost
        every = read_holdings(self._store, machine_queries(cluster, places, earliest, end), now)
        index = TargetIndex(own)
        by_id: dict[str, list[StoredHolding]] = defaultdict(list)
        for one in every:
            for allocation in index.naming(one.holding.holder):
                by_id[allocation.id].append(one)
        ambiguous = ambiguous_jobs(self._store, cluster, own)
        counted = [_ending(one, ambiguous[one.id]) if one.id in ambiguous else one for one in own]
        shares = workload_shares(counted, every, now, start, end)
        reporters = frozenset(one.machine for own in by_id.values() for one in own)
        return _WorkloadHoldings(shares, by_id, reporters, frozenset(id_ for id_, at in ambiguous.items() if at < end))

    def _of_workload(self, allocation: Allocation, held: _WorkloadHoldings, units: PhysicalUnits) -> AllocatedUnits:
        """Return the units of a pod or job."""
        own: list[AllocatedUnit] = []
        possible: list[AllocatedUnit] = []
        uncertain: dict[Place, Reason] = {}
        unconfirmed: set[Place] = set()
        for one in held.shares.get(allocation.id, ()):
            id_, part = units.held_at(one.place)
            holder = one.holder[0].value, one.holder[1]
            if one.share is None:
                uncertain[one.place] = one.absent or Reason.NOT_ATTRIBUTED
                possible.append(AllocatedUnit(id_, HeldPart(part, holder), one.start, one.end))
                continue
            if not one.is_confirmed:
                unconfirmed.add(one.place)
            own.append(AllocatedUnit(id_, HeldPart(part, holder, *one.share, one.is_confirmed), one.start, one.end))
        if uncertain:
            reason = min(uncertain.values())
            detail = CONTRADICTED if reason is Reason.AMBIGUOUS_TARGET else EXCLUDED
            return AllocatedUnits(tuple(own), reason, detail, uncertain=len(unconfirmed), possible=tuple(possible))
        if unconfirmed:
            return AllocatedUnits(tuple(own), Reason.NOT_ATTRIBUTED, UNCONFIRMED, uncertain=len(unconfirmed))
        if own and allocation.id in held.ambiguous:
            return AllocatedUnits(tuple(own), Reason.AMBIGUOUS_TARGET, workloads.AMBIGUOUS_JOB, uncertain=0)
        if own:
            return AllocatedUnits(tuple(own))
        stored = [one for one in held.stored.get(allocation.id, ()) if may_overlap(one, *validity(allocation))]
        any_holder = bool(stored) or self._lookup.has_holders(allocation.spec.target.cluster)
        ambiguous = allocation.id in held.ambiguous
        why = workloads.not_held_reason(
            allocation, stored, self._clock.now_ns(), any_holder=any_holder, is_ambiguous=ambiguous
        )
        return AllocatedUnits((), *why)

    def _unresolved(self, allocation: Allocation) -> AllocatedUnits:
        """Return why a bare-metal allocation is bound to no machine in the interval."""
        target = allocation.spec.target
        machines = self._registry.find_machines(target.cluster, target.machine or "")
        located = locate_unbound(allocation, machines, self._clock.now_ns())
        return AllocatedUnits((), located.reason or Reason.TARGET_UNKNOWN, located.detail)

    def _of_vm(self, allocation: Allocation) -> _VmMachines:
        """Return the guests with the target's UUID, and the nodes that reported vGPU instances of it."""
        cluster, uuid = allocation.spec.target.cluster, normalise_uuid(allocation.spec.target.vm_uuid or "")
        found = self._registry.machines_with_uuid(cluster, uuid) if uuid else ()
        ids = self._store.texts_of_views(cluster, slices.VM_ID, uuid) if uuid else ()
        reporters = {one.machine for one in ids}
        for name in allocation.spec.devices or ():
            reporters.update(self._store.reporters_of_view(cluster, f"{ViewKind.VGPU}/{normalise_uuid(name) or name}"))
        nodes = [one for id_ in sorted(reporters) for one in self._registry.find_machines(cluster, id_)]
        inside = [one for one in found if one.machine.kind is MachineKind.GUEST]
        nodes = [one for one in nodes if one.machine.kind is MachineKind.NODE]
        if allocation.spec.devices is None or not nodes:
            return _VmMachines(inside, nodes, ids)
        of_nodes = [one.id for one in nodes]
        ids, kinds = (
            self._store.texts_of_machines(cluster, of_nodes, metric) for metric in (slices.VM_ID, slices.VM_ID_KIND)
        )
        return _VmMachines(inside, nodes, ids, kinds)

    def _in_vm(
        self,
        allocation: Allocation,
        vm: _VmMachines,
        had: Mapping[Place, Sequence[Interval]],
        stored: dict[str, tuple[StoredSample, ...]],
        units: PhysicalUnits,
        stays: dict[Place, tuple[Interval, ...]],
        start: int,
        end: int,
    ) -> AllocatedUnits:
        guest_samples = [
            guests.MachineSamples(machine=one, stored=stored.get(one.id, ()), readers=()) for one in vm.inside
        ]
        places = {one: own for one, own in had.items() if slices.is_listed(allocation.spec, one[1].partition("/")[2])}
        reason, detail = contract.NO_ANSWERER[allocation.spec.kind]
        first, last = validity(allocation)
        first, last = max(first, start), min(last, end)
        found = self._turns.of(allocation, guest_samples).within(first, last)
        of_hosts: dict[Place, list[Interval]] = defaultdict(list)
        for place, intervals in had.items():
            for id_, _ in units.at([place]):
                for view in units.by_id[id_].views:
                    of_hosts[view] += intervals
        of_vgpus = {view: guest_stays(one, stays.get(view, [(0, UNBOUNDED)])) for view, one in of_hosts.items()}
        own_stays = ChainMap(of_vgpus, stays)
        own: list[AllocatedUnit] = []
        for id_, intervals in found.turns.items():
            for since, until in intervals:
                turn = BoundInterval(id_, None, since, until)
                own += [unit for unit in _allocated(turn, units, own_stays) if unit.start < unit.end]
        seen = {(unit.id, unit.part.name) for unit in own}
        instances = [
            (id_, HeldPart(part), max(since, first), min(until, last))
            for place, intervals in places.items()
            for id_, part in units.at([place])
            if (id_, part) not in seen
            for since, until in intervals
            if max(since, first) < min(until, last)
        ]
        if not found.ambiguous:
            own += [AllocatedUnit(*one) for one in instances]
            return AllocatedUnits(tuple(own), reason, detail)
        gpus = max((len(units.whole(guest.id)) for guest in vm.inside), default=0)
        own += [
            AllocatedUnit(id_, part, since, until)
            for id_, part, begin, end in instances
            for since, until in gaps(found.ambiguous, begin, end)
        ]
        ambiguous = tuple((since, until, gpus) for since, until in found.ambiguous)
        return AllocatedUnits(tuple(own), Reason.AMBIGUOUS_TARGET, AMBIGUOUS, ambiguous)


def _instances(
    allocation: Allocation,
    vm: _VmMachines,
    stored: Mapping[str, Sequence[StoredSample]],
    now: int,
    last_within: LastReport,
) -> dict[Place, tuple[Interval, ...]]:
    """Return the intervals in which a virtual machine had each vGPU instance."""
    of_nodes = {node.id: stored.get(node.id, ()) for node in vm.nodes}
    is_listing = allocation.spec.devices is not None
    ids = slices.texts_of_listed(allocation.spec, vm.ids, vm.kinds, of_nodes) if is_listing else vm.ids
    uuid = normalise_uuid(allocation.spec.target.vm_uuid or "") or ""
    return instance_intervals(uuid, ids, of_nodes, now, last_within)


def _allocated(
    interval: BoundInterval, units: PhysicalUnits, stays: Mapping[Place, Sequence[Interval]]
) -> Iterator[AllocatedUnit]:
    """Yield the units of a machine in an interval; a GPU that came or left in it counts only while it was there."""
    devices = interval.devices
    places = [] if devices is None else [(interval.machine, key) for key in sorted(devices)]
    for id_, part in units.whole(interval.machine) if devices is None else units.at(places):
        own = _stays_in(units.by_id[id_], interval.machine, stays)
        parts = [(interval.start, interval.end)] if own is None else clipped(own, interval.start, interval.end)
        for start, end in parts:
            yield AllocatedUnit(id_, HeldPart(part), start, end)


def _guests(machines: Iterable[MachineRecord]) -> dict[str, list[str]]:
    """Return the guests of each host among machines of a cluster."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in machines:
        if one.hypervisor_id is not None:
            found[one.hypervisor_id].append(one.id)
    return found


def _devices(segment: Segment, unit: PhysicalUnit) -> list[tuple[str, DeviceInterval]]:
    return [] if segment.contested else device_intervals(segment, unit)


def _has_no_ratio(unit: PhysicalUnit, part: HeldPart) -> bool:
    return part.name != WHOLE and unit.parts[part.name].ratio is None


def _stays_in(unit: PhysicalUnit, machine: str, stays: Mapping[Place, Sequence[Interval]]) -> Sequence[Interval] | None:
    """Return the stays of a GPU in a machine, or None if it was always there."""
    return next((stays[place] for place in unit.views if place[0] == machine and place in stays), None)


def _ns(allocation: Allocation, start: int) -> int:
    return to_ns(allocation.spec.valid_from) if allocation.spec.valid_from is not None else start


def _ending(allocation: Allocation, at: int) -> Allocation:
    """Return an allocation that is valid until a time, which is within its validity."""
    return msgspec.structs.replace(allocation, spec=msgspec.structs.replace(allocation.spec, valid_to=to_datetime(at)))


def _end(allocation: Allocation, end: int) -> int:
    return min([end, *(to_ns(at) for at in (allocation.spec.valid_to, allocation.closed_at) if at is not None)])


def _summary(held: float, unknown: float, unresolved: Sequence[UnresolvedAllocation]) -> str:
    text = f"use is known for {held - unknown:.2f} of {held:.2f} GPU-hours held"
    uncounted = sum(not one.devices for one in unresolved)
    return f"{text}; allocations with unknown devices, not in the total: {uncounted}" if uncounted else text


class UsageQueries:
    """Queries for GPU-hours, energy and cost, of all allocations or of a tenant's."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        lookup: MachineLookup,
        joins: ClusterJoins,
        turns: GuestTurns,
        threads: Executor,
        prices: CurrentPrices,
        clock: Clock,
        bind_pending: Callable[[], Awaitable[None]],
    ) -> None:
        self._calculator = UsageCalculator(
            registry=registry, store=store, lookup=lookup, joins=joins, turns=turns, prices=prices, clock=clock
        )
        self._by_holder = HolderUsageCalculator(registry=registry, store=store, joins=joins, prices=prices, clock=clock)
        self._bind_pending = bind_pending
        self._executor = BoundedExecutor(
            threads,
            limit=MAX_PENDING,
            kind="usage queries",
            tenant_limit=MAX_OF_TENANT,
            tenant_threads=RUNNING_OF_TENANTS,
        )

    async def of(
        self, start: int, end: int, by: Sequence[UsageDimension], tenant: str | None, cluster: str | None = None
    ) -> UsageAnswer:
        """Return the usage within an interval, nanoseconds since 1970, `end` excluded.

        Raises:
            InvalidQueryError: as `UsageCalculator.compute`.
            BusyError: if too many usage queries are running or queued, of the tenant or of all clients.
        """
        await self._bind_pending()
        return await self._executor.run(lambda: self._calculator.compute(start, end, by, tenant, cluster), tenant)

    async def by_holder(
        self, start: int, end: int, by: Sequence[UsageDimension], cluster: str | None = None
    ) -> UsageAnswer:
        """Return the usage of all GPUs by holder.

        Raises:
            InvalidQueryError: as `HolderUsageCalculator.compute`.
            BusyError: if too many usage queries are running or queued.
        """
        return await self._executor.run(lambda: self._by_holder.compute(start, end, by, cluster))
