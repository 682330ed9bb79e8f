"""Machine lookup by name, id or allocation target, and conflicts between allocations. Blocks."""

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar

import msgspec

from gpufleet.fleet.attribution import bindings, passthrough, slices
from gpufleet.fleet.attribution.bindings import BoundInterval, bound_intervals
from gpufleet.fleet.attribution.claims import Claims, HeldDevices
from gpufleet.fleet.attribution.guests import MachineSamples
from gpufleet.fleet.attribution.holder_targets import holding_query, names_holder
from gpufleet.fleet.attribution.holding_intervals import (
    HeldInterval,
    bound_held_intervals,
    held_devices,
    held_intervals,
)
from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS, known_until, may_overlap
from gpufleet.fleet.devices import unlisted_keys
from gpufleet.fleet.usage.residence import MAX_CLOCK_SKEW_NS
from gpufleet.hub.query.holding_reads import HoldingReads, SharedReads
from gpufleet.hub.query.names import is_name, similar_names, suggestion_text
from gpufleet.model.allocation import (
    VM_KINDS,
    WORKLOAD_KINDS,
    Allocation,
    AllocationSpec,
    Binding,
    Target,
)
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.errors import ConflictError, NotFoundError
from gpufleet.model.holdings import Holding
from gpufleet.model.kubernetes import ClusterNode
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.holdings import HoldingQuery, StoredHolding, holding_place
from gpufleet.model.stored.ledger import SucceededMachine
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import LATEST, NANOS, to_ns
from gpufleet.model.view import ViewKind, normalise_uuid
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import HistoryStore, SampleStore

CLUSTERS_SEARCHED = 50
"""Maximum number of clusters searched for names similar to an unknown one."""

NAMES_SEARCHED = 500
"""Maximum number of names compared per cluster: those that follow the first half of the unknown name."""

PAST_HOLDINGS = 1000
"""Maximum number of past holdings that are read to find the newest end."""

_DAY = 86_400 * NANOS
_PAST_SPANS = (HOLDING_TTL_NS, _DAY, 30 * _DAY, LATEST)
"""Intervals before the present in which the newest end is searched, in this order."""


class TargetHoldings(msgspec.Struct, frozen=True):
    """Holdings of an allocation's target.

    Attributes:
        stored: as reported, with any verdict.
        intervals: the devices that they give the allocation.
        is_ambiguous: whether several SLURM clusters have jobs of the target's id. It has no intervals from the start of
            the second one on.
    """

    stored: tuple[StoredHolding, ...] = ()
    intervals: tuple[HeldInterval, ...] = ()
    is_ambiguous: bool = False


class AmbiguousError(ConflictError):
    """Ambiguous name; `candidates` are the matching ids."""

    def __init__(self, detail: str, candidates: Sequence[str]) -> None:
        self.candidates = tuple(candidates)
        super().__init__(detail)


class LookupStore(SampleStore, HistoryStore, Protocol):
    """The part of the store that names the machines of a target, now and before."""


class MachineLookup:
    """Finds the machines of a query or an allocation, and conflicting allocations."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: LookupStore,
        claims: Claims,
        clock: Clock,
        reads: HoldingReads | None = None,
    ) -> None:
        """Take its sources; `reads` reads holdings, from the store for each call by default."""
        self._registry = registry
        self._store = store
        self._claims = claims
        self._clock = clock
        self._reads = reads or HoldingReads(store, clock)

    def for_allocations(self, allocations: Sequence[Allocation], start: int, end: int) -> "dict[str, MachineLookup]":
        """Return a lookup by cluster, for a request about many allocations: it reads their holdings once.

        Args:
            allocations: of any kinds and clusters.
            start, end: nanoseconds since 1970, `end` excluded.
        """
        by_cluster: dict[str, list[Allocation]] = {}
        for one in allocations:
            by_cluster.setdefault(one.spec.target.cluster, []).append(one)
        found = {}
        for cluster, own in by_cluster.items():
            contested = [one for one in own if self._claims.has_workload_rivals(one, start, end)]
            bound = [interval for one in contested for interval in bound_intervals(one, start, end)]
            read = [one for one in own if one.spec.kind in WORKLOAD_KINDS or one in contested]
            found[cluster] = MachineLookup(
                registry=self._registry,
                store=self._store,
                claims=self._claims,
                clock=self._clock,
                reads=SharedReads(self._store, cluster, read, bound, start, end, self._clock),
            )
        return found

    def find(self, cluster: str | None, name_or_id: str) -> tuple[MachineRecord, ...]:
        """Return the machine with this id, or those with this name, of a cluster or of all."""
        clusters = [cluster] if cluster is not None else [one.id for one in self._registry.clusters()]
        return tuple(one for id_ in clusters for one in self._registry.find_machines(id_, name_or_id))

    def find_one(self, name_or_id: str) -> MachineRecord:
        """Return the machine with this id, or the only one with this name.

        Raises:
            NotFoundError: if there is no such machine.
            AmbiguousError: if several machines have the name.
        """
        found = self.find(None, name_or_id)
        if not found:
            similar = self._similar(name_or_id)
            raise NotFoundError(f"there is no machine {name_or_id!r}{suggestion_text(similar)}", similar)
        if len(found) > 1:
            ids = [one.id for one in found]
            raise AmbiguousError(f"{name_or_id!r} is the name of several machines: use one of {', '.join(ids)}", ids)
        return found[0]

    def _similar(self, name: str) -> tuple[str, ...]:
        """Return the machine names that are most similar, of those that start like the name."""
        names: list[str] = []
        for cluster in self._registry.clusters()[:CLUSTERS_SEARCHED] if is_name(name) else ():
            after = (cluster.id, name[: len(name) // 2], "")
            found = self._registry.machines(cluster.id, after=after, limit=NAMES_SEARCHED)
            names += [one.machine.name for one in found]
        return similar_names(name, names)

    def with_ids(self, cluster: str, ids: Iterable[str]) -> list[MachineRecord]:
        """Return the machines with these ids. The store may have ids that a registry restored from a backup lacks."""
        return [one for id_ in sorted(ids) for one in self.find(cluster, id_) if one.id == id_]

    def candidates(self, target: Target) -> tuple[MachineRecord, ...]:
        """Return every machine that matches the target, and all that share a name with them."""
        found = self.find(target.cluster, target.machine or "")
        for name in {one.machine.name for one in found}:
            found = (*found, *self.find(target.cluster, name))
        return tuple({one.id: one for one in found}.values())

    def machines_of(self, allocation: Allocation) -> tuple[MachineRecord, ...]:
        """Return the machines of an allocation: the bound ones, and those of its target if none is bound now."""
        bound = {one.machine for one in allocation.bindings}
        named = self.candidates(allocation.spec.target) if bindings.lacks_machine(allocation) else ()
        return (*named, *self.with_ids(allocation.spec.target.cluster, bound - {one.id for one in named}))

    def clusters(self) -> list[str]:
        """Return the ids of all clusters."""
        return [one.id for one in self._registry.clusters()]

    def of_node(self, cluster: str, node: ClusterNode) -> tuple[MachineRecord, ...]:
        """Return the machines that share any evidence of identity with a Kubernetes node."""
        evidence = Machine(
            name=node.name,
            machine_id=node.machine_id.lower() or None,
            system_uuid=node.system_uuid.lower() or None,
            k8s_node_uid=node.uid,
        )
        return self._registry.machines_sharing(cluster, evidence)

    def bind(self, spec: AllocationSpec) -> Binding | None:
        """Return the machine and devices that a bare-metal spec names now; None if no single machine fits."""
        machine = bindings.locate(spec, self.candidates(spec.target)).machine
        if machine is None:
            return None
        if spec.devices is None:
            return bindings.bind(spec, machine, ())
        found = self._with_samples(machine)
        own = [one for one in found.stored if bindings.is_of_host(one)]
        addresses = {bindings.pci_address(name) for name in spec.devices}
        occupants = {address: key for address, key in bindings.last_occupants(own).items() if address in addresses}
        vacated = self._vacated(machine, own, found.readers, occupants)
        return bindings.bind(spec, machine, found.stored, found.readers, vacated)

    def _vacated(
        self,
        machine: MachineRecord,
        own: Sequence[StoredSample],
        readers: Sequence[ReaderStatus],
        occupants: Mapping[str, str],
    ) -> set[str]:
        """Return the PCI addresses whose occupants another machine has reported since.

        Args:
            machine: the machine.
            own: its newest samples of itself and its devices.
            readers: of the machine.
            occupants: PCI address to the key of the GPU that was last read there.
        """
        unlisted = unlisted_keys(own, readers) if occupants else ()
        return {
            address
            for address, key in occupants.items()
            if self._has_left(machine, own, key, is_listed=key not in unlisted)
        }

    def _has_left(self, machine: MachineRecord, own: Sequence[StoredSample], key: str, *, is_listed: bool) -> bool:
        """Return whether another machine reported a GPU later than this one.

        While this one lists it, the other may be the same machine under another name, or have another clock.
        A guest counts if it is on another machine.

        Args:
            machine: the machine.
            own: its newest samples of itself and its devices.
            key: of the GPU.
            is_listed: whether the newest pass of a reader of the machine listed it.
        """
        last = _last_of(own, key) + (MAX_CLOCK_SKEW_NS if is_listed else 0)
        others = [id_ for id_ in self._store.reporters_of_view(machine.cluster, key) if id_ != machine.id]
        if not others:
            return False
        guests = {
            one.id for one in self.with_ids(machine.cluster, others) if one.hypervisor_id not in (None, machine.id)
        }
        return any(
            _last_of((one for one in found if id_ in guests or bindings.is_of_host(one)), key) > last
            for id_, found in self._store.latest_of(machine.cluster, others).items()
        )

    def named_since(self, name: str | None, id: str) -> int:  # noqa: A002 - the term of the domain
        """Return since when a machine has a host name, nanoseconds since 1970.

        0 if it is not known to have had another name, or does not have this one now.
        """
        names = self._registry.past_names(id, 0, LATEST)
        had_other = any(one.name not in (None, name) for one in names[:-1])
        return names[-1].start if had_other and names[-1].name == name else 0

    def succeeded_since(self, known: SucceededMachine) -> int:
        """Return since when the successor of a machine has the machine's name, as `named_since`."""
        names = self._registry.machine_names([known.machine])
        return self.named_since(names.get(known.machine), known.successor)

    def hosts(self, spec: AllocationSpec) -> list[MachineSamples]:
        """Return the nodes that report a vGPU instance which may belong to the target virtual machine.

        Nodes that reported it before count if none reports it now: a lost GPU does not show who has its instances.
        """
        cluster, wanted = spec.target.cluster, normalise_uuid(spec.target.vm_uuid or "")
        ids = set(self._store.reporters_of_text(cluster, slices.VM_ID, wanted) if wanted else ())
        if wanted and not ids:
            ids = {one.machine for one in self._store.texts_of_views(cluster, slices.VM_ID, wanted)}
        for name in spec.devices or ():
            ids.update(self._store.reporters_of_view(cluster, f"{ViewKind.VGPU}/{normalise_uuid(name) or name}"))
        nodes = [one for one in self.with_ids(cluster, ids) if one.machine.kind is MachineKind.NODE]
        return [self._with_samples(one) for one in nodes]

    def guests(self, target: Target) -> list[MachineSamples]:
        """Return the guests with the target's UUID."""
        wanted = normalise_uuid(target.vm_uuid or "")
        found = self._registry.machines_with_uuid(target.cluster, wanted) if wanted else ()
        return [self._with_samples(one) for one in found if one.machine.kind is MachineKind.GUEST]

    def holdings(self, allocation: Allocation, start: int, end: int) -> TargetHoldings:
        """Return the holdings of an allocation's target within an interval, and the devices that it has by them.

        Holdings that ended shortly before the interval are read, too: one of them can be the end of a holding whose
        own end was lost.

        Raises:
            TooManyHoldingsError: if there are too many.
        """
        cluster, earliest = allocation.spec.target.cluster, max(0, start - HOLDING_TTL_NS)
        own = self._reads.of_target(allocation.spec, earliest, end)
        stored = tuple([one for one in own if may_overlap(one, start, end)])
        if not stored:
            return TargetHoldings()
        ambiguous = self._reads.ambiguous_since(allocation)
        if ambiguous is not None and ambiguous <= start:
            return TargetHoldings(stored, is_ambiguous=True)
        now = self._clock.now_ns()
        ends = [LATEST if (until := known_until(one, now)) is None else until for one in own]
        machines, first = {one.machine for one in own}, max(earliest, min(one.holding.since for one in own))
        others = self._reads.of_machines(cluster, machines, first, min(end, max(ends)))
        every = {holding_place(one): one for one in (*own, *others)}.values()
        of_mig = {one.machine for one in every if one.holding.view.startswith(f"{ViewKind.MIG}/")}
        parents = self._reads.parents(cluster, of_mig)
        until = end if ambiguous is None else min(end, ambiguous)
        intervals = held_intervals(allocation, every, now, start, until, parents)
        return TargetHoldings(stored, intervals, is_ambiguous=until < end)

    def newest_holdings(self, allocation: Allocation, start: int, end: int) -> tuple[StoredHolding, ...]:
        """Return holdings of an allocation's target that overlap an interval, those with the newest ends among them.

        Newer ends can be missing if more than `PAST_HOLDINGS` are found.
        """
        for span in _PAST_SPANS:
            query = holding_query(allocation.spec, max(start, end - span), end, PAST_HOLDINGS)
            found = () if query is None else self._store.holdings(query)
            if found or end - span <= start:
                return found
        return ()

    def intervals_of(self, allocation: Allocation, start: int, end: int) -> tuple[BoundInterval, ...]:
        """Return the machines and devices of an allocation within an interval, in order of time.

        These are the bindings of a bare-metal allocation, and the certain holdings of a pod or job. A virtual machine
        has none: `GuestTurns` has its guests.
        """
        if allocation.spec.kind in WORKLOAD_KINDS:
            return bound_held_intervals(self.holdings(allocation, start, end).intervals)
        return bound_intervals(allocation, start, end)

    def has_holders(self, cluster: str) -> bool:
        """Return whether any machine of a cluster reports a holder now."""
        now = self._clock.now_ns()
        return bool(self._store.holdings(HoldingQuery(cluster=cluster, start=now, end=LATEST, limit=1)))

    def with_samples(self, cluster: str, ids: Iterable[str]) -> list[MachineSamples]:
        """Return the machines with these ids, with their newest samples and readers.

        GPUs that left an unread slot for another machine have no samples: the card in the slot is another one.
        """
        machines = self.with_ids(cluster, ids)
        known = [one.id for one in machines]
        stored, readers = self._store.latest_of(cluster, known), self._store.readers_of(cluster, known)
        return [
            self._without_departed(
                MachineSamples(machine=one, stored=stored.get(one.id, ()), readers=readers.get(one.id, ()))
            )
            for one in machines
        ]

    def samples_of(self, machine: MachineRecord, devices: Container[str] | None = None) -> MachineSamples:
        """Return a machine with its newest samples and readers, as `with_samples` does.

        Args:
            machine: the machine.
            devices: keys of the views that are used; None for all.
        """
        return self._without_departed(self._with_samples(machine), devices)

    def _without_departed(self, found: MachineSamples, devices: Container[str] | None = None) -> MachineSamples:
        """Return a machine without the samples of GPUs that left an unread slot for another machine."""
        own = [one for one in found.stored if bindings.is_of_host(one)]
        occupants = bindings.unread_occupants(own, devices)
        vacated = self._vacated(found.machine, own, found.readers, occupants)
        if not vacated:
            return found
        return msgspec.structs.replace(found, stored=bindings.without_occupants(found.stored, vacated))

    def _with_samples(self, machine: MachineRecord) -> MachineSamples:
        return MachineSamples(
            machine=machine,
            stored=self._store.latest(machine.cluster, machine.id),
            readers=self._store.readers(machine.cluster, machine.id),
        )

    def guest_views(self, host: MachineRecord, uuids: Iterable[str]) -> list[str]:
        """Return the ids under which guests of a host show GPUs with these UUIDs now."""
        cluster = host.cluster
        reporters = [
            (one, uuid)
            for uuid in sorted(uuids)
            for one in self.with_ids(cluster, self._store.reporters_of_view(cluster, f"{ViewKind.GPU}/{uuid}"))
        ]
        found = [
            passthrough.guest_view_id(host, one, self._store.latest(cluster, one.id), uuid) for one, uuid in reporters
        ]
        return [id_ for id_ in found if id_ is not None]

    def conflict_detail(self, allocation: Allocation, start: int, end: int, *, name: bool) -> str:
        """Return an explanation if another tenant has the same devices within an interval, else an empty text.

        An allocation that is not bound yet conflicts if the machine that its target names now is another tenant's at
        any time of the allocation: it stays unbound then, and nothing of that machine answers for it. An allocation
        that has ended is not bound any more.

        `name` adds the ids of the other allocations, which only an operator may see.
        """
        is_pending = bindings.lacks_machine(allocation) and not bindings.has_ended(allocation, self._clock.now_ns())
        if is_pending and (found := self.bind(allocation.spec)) is not None:
            complete = bindings.with_machine(allocation, found)
            allocation = msgspec.structs.replace(allocation, bindings=complete)
            since = 0 if complete[-1].since is None else to_ns(complete[-1].since)
            if since < end:
                start, end = min(start, since), LATEST
        rivals = self._claims.rivals(allocation, start, end, self._holders(allocation, start, end))
        if not rivals:
            return ""
        others = f" (with {', '.join(sorted(one.id for one in rivals))})" if name else ""
        subject = "machine" if allocation.spec.kind not in WORKLOAD_KINDS else "device"
        return f"the {subject} is allocated more than once at this time{others}: close the wrong allocation"

    def _holders(self, allocation: Allocation, start: int, end: int) -> tuple[HeldDevices, ...]:
        """Return the holders of an allocation's devices, as far as other tenants' allocations can name them."""
        spec, cluster, now = allocation.spec, allocation.spec.target.cluster, self._clock.now_ns()
        if spec.kind in WORKLOAD_KINDS:
            found = self.holdings(allocation, start, end)
            own = [one for one in found.stored if names_holder(spec, one.holding.holder)]
            held = bound_held_intervals(found.intervals)
            holders = held_devices(own, held, now)
            if not self._claims.rivals(allocation, start, end, map(_of_whole_machine, holders)):
                return holders
            return held_devices(own, held, now, self._reads.parents(cluster, {one.machine for one in held}))
        if not self._claims.has_workload_rivals(allocation, start, end):
            return ()
        if spec.kind in VM_KINDS:
            machines = self._host_ids(spec, start, end)
            intervals = tuple([BoundInterval(one, None, start, end) for one in machines])
        else:
            intervals = bound_intervals(allocation, start, end)
        if not intervals:
            return ()
        first, last = min(one.start for one in intervals), max(one.end for one in intervals)
        stored = self._reads.of_machines(cluster, {one.machine for one in intervals}, first, last)
        if spec.kind in VM_KINDS:
            stored = tuple([one for one in stored if _is_of_target(spec, one.holding)])
        listed = {one.machine for one in intervals if one.devices is not None} & {one.machine for one in stored}
        return held_devices(stored, intervals, now, self._reads.parents(cluster, listed))

    def _host_ids(self, spec: AllocationSpec, start: int, end: int) -> list[str]:
        """Return the machines that may hold devices for a virtual machine: its hypervisor, and others that name it."""
        ids = {one.machine for one in self._reads.of_target(spec, start, end)}
        ids |= {one.machine.id for one in self.hosts(spec)}
        ids |= {id_ for one in self.guests(spec.target) if (id_ := one.machine.hypervisor_id) is not None}
        return sorted(ids)


def _of_whole_machine(held: HeldDevices) -> HeldDevices:
    """Return a holder as that of every device of the machine."""
    return msgspec.structs.replace(held, interval=msgspec.structs.replace(held.interval, devices=None))


def _is_of_target(spec: AllocationSpec, holding: Holding) -> bool:
    """Return whether a holding is a virtual machine's, or its launcher pod's."""
    return any(one is not None and names_holder(spec, one) for one in (holding.holder, holding.parent))


T = TypeVar("T")


class QueryExecutor:
    """Runs blocking queries of store and registry on threads."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads

    async def run(self, query: Callable[[], T]) -> T:
        """Return the result of a query."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, query)


def _last_of(stored: Iterable[StoredSample], key: str) -> int:
    """Return when a view was last measured, nanoseconds since 1970; 0 if it never was."""
    views = ((one.sample.view, one.sample.measured_at) for one in stored)
    return max((at for view, at in views if view is not None and view.key == key), default=0)
