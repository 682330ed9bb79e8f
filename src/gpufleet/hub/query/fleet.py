"""Fleet queries: pages of machines, nodes and GPUs with their coverage, and the processes on a machine."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

import msgspec

from gpufleet.fleet.attribution import contract, passthrough
from gpufleet.fleet.attribution.reported import (
    HOLDING_TTL_NS,
    current_holdings,
    current_states,
    unresolved_counts,
    unresolved_names,
)
from gpufleet.fleet.readings import Freshness, known_views, probe_readings
from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.hub.query import processes
from gpufleet.hub.query.claim_holders import ClaimHolders
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.holder_records import NO_HOLDERS, MachineHolders, with_holders
from gpufleet.hub.query.kubernetes_records import kubernetes_node
from gpufleet.hub.query.names import MIN_PREFIX, is_name, view_prefixes
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.records import (
    NODE_METRICS,
    CoverageCounter,
    count_gpus,
    count_shown,
    gpu_records,
    machine_freshness,
    node_gpus,
    node_record,
    values_decide,
    with_age,
    with_metrics,
    with_numa_nodes,
)
from gpufleet.hub.query.targets import AmbiguousError, MachineLookup, QueryExecutor
from gpufleet.model.api.answer import (
    AnswerDevice,
    Coverage,
    GpuPage,
    GpuRecord,
    MachinePage,
    MachineRecord,
    NodeGpusPage,
    NodePage,
    NodeRecord,
    ProcessesAnswer,
)
from gpufleet.model.declarations import DECLARATION_TTL_NS
from gpufleet.model.errors import NotFoundError
from gpufleet.model.holdings import DeviceState
from gpufleet.model.liveness import Liveness
from gpufleet.model.machine import MachineKind
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.holdings import HoldingQuery, StoredHolderStates, StoredHolding
from gpufleet.model.stored.samples import ProcessQuery
from gpufleet.model.time import LATEST, NANOS
from gpufleet.model.view import Side, ViewKind, normalise_pci_address
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

T = TypeVar("T")

CANDIDATES_LISTED = 20
"""Maximum number of devices listed for an ambiguous name."""

DEVICES_PER_MACHINE = 8
"""Assumed devices per machine: a page of devices fetches as many machines as would fill it."""


class FleetPages:
    """Pages of machines, nodes and GPUs, with a constant number of store queries per page. Blocks."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        joins: ClusterJoins,
        claimed: ClaimHolders,
        clock: Clock,
        stale_after_seconds: float,
    ) -> None:
        self._registry = registry
        self._store = store
        self._joins = joins
        self._claimed = claimed
        self._coverage_counter = CoverageCounter(
            registry=registry, store=store, clock=clock, stale_after_seconds=stale_after_seconds
        )
        self._clock = clock
        self._stale_after = stale_after_seconds

    def machines(
        self, cluster: str | None, page: PageRequest, instant: LivenessSnapshot, *, probe: bool = False
    ) -> MachinePage:
        """Return a page of machines with their number of GPUs, and with their performance probe if required."""
        found, following = self._page(cluster, page, None)
        items = self.complete(found, instant)
        if probe:
            items = self.with_probes(items)
        return MachinePage(items=items, coverage=self._coverage(cluster), next=following)

    def with_probes(self, machines: Sequence[MachineRecord]) -> tuple[MachineRecord, ...]:
        """Add the readings of the performance probe to machines."""
        stored = _per_cluster(machines, self._store.latest_of)
        readers = _per_cluster(machines, self._store.readers_of)
        now = self._clock.now_ns()
        return tuple(
            msgspec.structs.replace(
                one,
                probe=probe_readings(
                    stored.get(one.id, ()), Freshness(now, self._stale_after, readers.get(one.id, ()))
                ),
            )
            for one in machines
        )

    def complete(self, machines: Sequence[MachineRecord], instant: LivenessSnapshot) -> tuple[MachineRecord, ...]:
        """Fill in age, liveness and number of GPUs of machines."""
        counts = self._counts(machines, _per_cluster(machines, self._store.readers_of), instant)
        return tuple(
            msgspec.structs.replace(one, gpus=counts[one.id][0], liveness=_with_gpus(one.liveness, counts[one.id]))
            for one in _with_liveness(self._expected(machines), instant)
        )

    def nodes(self, cluster: str | None, page: PageRequest, instant: LivenessSnapshot) -> NodePage:
        """Return a page of machines of kind node, with their state."""
        found, following = self._page(cluster, page, MachineKind.NODE)
        readers = _per_cluster(found, self._store.readers_of)
        counts = self._counts(found, readers, instant)
        states = _per_cluster(found, self._holder_states)
        nodes = self._joins.nodes(found)
        now = self._clock.now_ns()

        def record(machine: MachineRecord) -> NodeRecord:
            error = contract.last_error(readers.get(machine.id, ()))
            liveness = _with_gpus(machine.liveness, counts[machine.id])
            machine = msgspec.structs.replace(machine, liveness=liveness)
            reports = states.get(machine.id, ())
            unresolved, names = unresolved_counts(reports, now), unresolved_names(reports, now)
            one = node_record(machine, counts[machine.id], error, unresolved, names, self._stale_after)
            match, known_at = nodes[machine.id]
            node = kubernetes_node(match.node, known_at, now) if match.node is not None else None
            return msgspec.structs.replace(one, kubernetes_node=node, kubernetes_candidates=match.candidates)

        items = tuple(map(record, _with_liveness(self._expected(found), instant)))
        return NodePage(items=items, coverage=self._coverage(cluster), next=following)

    def node_gpus(self, cluster: str | None, page: PageRequest, instant: LivenessSnapshot) -> NodeGpusPage:
        """Return the GPUs of a page of nodes, one row per node."""
        found, following = self._page(cluster, page, MachineKind.NODE)
        holders = _per_cluster(found, self._holders)
        gpus: dict[str, list[GpuRecord]] = {one.id: [] for one in found}
        for record in self.gpus_of(found, instant, holders, NODE_METRICS):
            gpus[record.device.machine].append(record)
        items = tuple(node_gpus(one, gpus[one.id], holders[one.id].holdings) for one in _with_liveness(found, instant))
        return NodeGpusPage(items=items, next=following)

    def _holders(self, cluster: str, machines: Sequence[str]) -> dict[str, MachineHolders]:
        """Return machine id to its present holders."""
        now = self._clock.now_ns()
        states = {id_: current_states(own, now) for id_, own in self._holder_states(cluster, machines).items()}
        joined = self._joined(cluster, machines, states)
        found: dict[str, list[StoredHolding]] = {}
        for one in self._joins.complete([one for own in joined.values() for one in own]):
            found.setdefault(one.machine, []).append(one)
        return {
            machine: MachineHolders(current_holdings(found.get(machine, ()), now), states.get(machine, {}))
            for machine in machines
        }

    def joined_holdings(self, cluster: str, machines: Sequence[str]) -> dict[str, Sequence[StoredHolding]]:
        """Return machine id to its present holdings with those by ResourceClaims, as reported otherwise."""
        now = self._clock.now_ns()
        states = {id_: current_states(own, now) for id_, own in self._holder_states(cluster, machines).items()}
        return self._joined(cluster, machines, states)

    def _joined(
        self, cluster: str, machines: Sequence[str], states: Mapping[str, Mapping[str, DeviceState]]
    ) -> dict[str, Sequence[StoredHolding]]:
        now = self._clock.now_ns()
        found: dict[str, list[StoredHolding]] = {}
        for one in self._store.holdings(HoldingQuery(cluster=cluster, machines=tuple(machines), start=now, end=LATEST)):
            found.setdefault(one.machine, []).append(one)
        return self._claimed.complete(cluster, found, states, machines)

    def _holder_states(self, cluster: str, machines: Sequence[str]) -> Mapping[str, tuple[StoredHolderStates, ...]]:
        """Return machine id to the reports of holder states that can be present."""
        return self._store.holder_states(cluster, machines, self._clock.now_ns() - HOLDING_TTL_NS)

    def gpus(self, cluster: str | None, machine: str | None, page: PageRequest, instant: LivenessSnapshot) -> GpuPage:
        """Return a page of views. A machine's views are not split, so a page may exceed its limit by a few."""
        items: list[GpuRecord] = []
        after: str | None = None
        if machine is not None:
            items += self.gpus_of(self._find(cluster, machine), instant)
        else:
            place = page
            while len(items) < page.limit:
                group = max(1, -(-(page.limit - len(items)) // DEVICES_PER_MACHINE))
                found, after = self._page(cluster, msgspec.structs.replace(place, limit=group), None)
                items += self.gpus_of(found, instant)
                if after is None:
                    break
                last = found[-1]
                place = msgspec.structs.replace(page, after=(last.cluster, last.machine.name, last.id))
        return GpuPage(items=tuple(items), coverage=self._coverage(cluster), next=after)

    def gpus_of(
        self,
        machines: Sequence[MachineRecord],
        instant: LivenessSnapshot,
        holders: Mapping[str, MachineHolders] | None = None,
        metrics: Collection[str] | None = None,
    ) -> list[GpuRecord]:
        """Return every view of the machines, in their order, with its present holders.

        Args:
            machines: of any clusters.
            instant: liveness of senders.
            holders: the present holders of each machine if they are known already.
            metrics: the metrics to return, or all; see `with_metrics`.
        """
        stored = _per_cluster(machines, self._store.latest_of)
        readers = _per_cluster(machines, self._store.readers_of)
        holders = _per_cluster(machines, self._holders) if holders is None else holders
        slots = _per_cluster(machines, self._store.numa_nodes) if metrics is None else {}
        found: list[GpuRecord] = []
        for one in _with_liveness(machines, instant):
            freshness = self._freshness(readers.get(one.id, ()))
            samples = stored.get(one.id, ())
            samples = samples if metrics is None else with_metrics(samples, metrics)
            records = with_numa_nodes(gpu_records(one, samples, freshness, instant.behind), slots.get(one.id, {}))
            found += with_holders(records, holders.get(one.id, NO_HOLDERS), one.liveness, known_views(samples))
        return found

    def with_liveness(self, machines: Sequence[MachineRecord], instant: LivenessSnapshot) -> list[MachineRecord]:
        """Fill in age and liveness of machines."""
        return list(_with_liveness(machines, instant))

    def _expected(self, machines: Sequence[MachineRecord]) -> list[MachineRecord]:
        """Fill in the number of GPUs by PCI bus and by Kubernetes."""
        since = self._clock.now_ns() - DECLARATION_TTL_NS
        buses = _per_cluster(machines, self._store.pci_gpu_counts)
        declared = _per_cluster(machines, lambda cluster, ids: self._store.declared_resources(cluster, ids, since))
        return [
            msgspec.structs.replace(one, pci_gpus=buses.get(one.id), kubernetes=declared.get(one.id, ()))
            for one in machines
        ]

    def _counts(
        self,
        machines: Sequence[MachineRecord],
        readers: Mapping[str, tuple[ReaderStatus, ...]],
        instant: LivenessSnapshot,
    ) -> dict[str, tuple[int, int]]:
        """Return (GPUs, reporting GPUs) of each machine, consistent with `gpus_of`."""
        summaries = _per_cluster(machines, self._store.sample_summaries)
        of_machine = {one.id: [found.stored for found in summaries.get(one.id, ())] for one in machines}
        ambiguous = [one for one in machines if values_decide(of_machine[one.id])]
        stored = _per_cluster(ambiguous, self._store.latest_of)
        counts = {}
        for one in machines:
            freshness = self._freshness(readers.get(one.id, ()))
            if one.id in stored:
                counts[one.id] = count_shown(gpu_records(one, stored[one.id], freshness, instant.behind))
            else:
                counts[one.id] = count_gpus(summaries.get(one.id, ()), freshness)
        return counts

    def _find(self, cluster: str | None, name_or_id: str) -> list[MachineRecord]:
        clusters = [cluster] if cluster is not None else [one.id for one in self._registry.clusters()]
        return [one for id_ in clusters for one in self._registry.find_machines(id_, name_or_id)]

    def _page(
        self, cluster: str | None, page: PageRequest, kind: MachineKind | None
    ) -> tuple[Sequence[MachineRecord], str | None]:
        found = self._registry.machines(cluster, kind=kind, after=page.after, limit=page.limit + 1)
        if len(found) <= page.limit:
            return found, None
        last = found[page.limit - 1]
        return found[: page.limit], page.cursor((last.cluster, last.machine.name, last.id))

    def _coverage(self, cluster: str | None) -> tuple[Coverage, ...]:
        marks = self._registry.machine_freshness(cluster, siblings_of_retired=True)
        return self._coverage_counter.of(cluster, [one.id for one in marks if one.is_retired])

    def _freshness(self, readers: Sequence[ReaderStatus]) -> Freshness:
        return Freshness(self._clock.now_ns(), self._stale_after, readers)


def _with_liveness(machines: Sequence[MachineRecord], instant: LivenessSnapshot) -> Iterator[MachineRecord]:
    """Fill in age and liveness of each machine."""
    for one in machines:
        yield msgspec.structs.replace(with_age(one, instant.now), liveness=instant.machine(machine_freshness(one)))


def _with_gpus(liveness: Liveness | None, gpus: tuple[int, int]) -> Liveness | None:
    """Add the number of reporting GPUs to the liveness, unless all of them report."""
    known, reporting = gpus
    if liveness is None or reporting >= known:
        return liveness
    return msgspec.structs.replace(liveness, partial=(*liveness.partial, f"GPUs reporting: {reporting} of {known}"))


def _per_cluster(
    machines: Sequence[MachineRecord], query: Callable[[str, Sequence[str]], Mapping[str, T]]
) -> dict[str, T]:
    """Run a query per cluster and merge the results; machine ids are unique over all clusters."""
    found: dict[str, T] = {}
    for cluster, group in groupby(machines, key=lambda one: one.cluster):
        found.update(query(cluster, [one.id for one in group]))
    return found


class FleetQueries:
    """Queries for machines, nodes, GPUs and processes."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        lookup: MachineLookup,
        pages: FleetPages,
        executor: QueryExecutor,
        clock: Clock,
        stale_after_seconds: float,
        instant: Callable[[], LivenessSnapshot],
    ) -> None:
        self._registry = registry
        self._store = store
        self._lookup = lookup
        self._executor = executor
        self._clock = clock
        self._stale_after = stale_after_seconds
        self._instant = instant
        self._pages = pages

    async def machines(self, cluster: str | None, page: PageRequest, *, probe: bool = False) -> MachinePage:
        """Return a page of all machines, or of a cluster's, with their performance probe if required."""
        instant = self._instant()
        return await self._executor.run(lambda: self._pages.machines(cluster, page, instant, probe=probe))

    async def machine(self, id: str) -> MachineRecord:  # noqa: A002
        """Return a machine by id, or by its name, with its performance probe.

        Raises:
            NotFoundError: if there is no such machine.
            AmbiguousError: if several machines have the name.
        """
        instant = self._instant()
        return await self._executor.run(
            lambda: self._pages.with_probes(self._pages.complete([self._machine(id)], instant))[0]
        )

    async def retire_machine(self, id: str) -> MachineRecord:  # noqa: A002
        """Record that a machine is retired; a later report revives it. Raises as `machine`."""
        at, instant = self._clock.now_ns(), self._instant()
        return await self._executor.run(
            lambda: self._pages.complete([self._registry.retire_machine(self._machine(id).id, at)], instant)[0]
        )

    async def nodes(self, cluster: str | None, page: PageRequest) -> NodePage:
        """Return a page of the machines of kind node, with their state."""
        instant = self._instant()
        return await self._executor.run(lambda: self._pages.nodes(cluster, page, instant))

    async def node_gpus(self, cluster: str | None, page: PageRequest) -> NodeGpusPage:
        """Return a page of the GPUs of nodes, one row per node."""
        instant = self._instant()
        return await self._executor.run(lambda: self._pages.node_gpus(cluster, page, instant))

    async def gpus(self, cluster: str | None, machine: str | None, page: PageRequest) -> GpuPage:
        """Return a page of the views of all machines, or all views of a machine."""
        instant = self._instant()
        return await self._executor.run(lambda: self._pages.gpus(cluster, machine, page, instant))

    async def gpu(self, id: str) -> GpuRecord:  # noqa: A002
        """Return a view by id, UUID, prefix of a UUID, or machine and PCI address or index, with its passthrough.

        Raises:
            NotFoundError: if there is no such view.
            AmbiguousError: if it stands for several views; lists their ids.
        """
        instant = self._instant()
        return await self._executor.run(lambda: self._with_passthrough(self._gpu(id, instant), instant))

    async def processes(self, machine: str, view: str | None, at: int | None) -> ProcessesAnswer:
        """Return the processes on the devices of a machine, now or at an instant.

        Args:
            machine: id or name.
            view: only this view, by its key.
            at: nanoseconds since 1970; None for now.

        Raises:
            NotFoundError: if there is no such machine.
            AmbiguousError: if several machines have the name.
        """
        now = self._clock.now_ns() if at is None else at

        def fetch() -> ProcessesAnswer:
            one = self._lookup.find_one(machine)
            start = max(0, now - int(processes.LOOK_BACK_SECONDS * NANOS))
            query = ProcessQuery(cluster=one.cluster, machine=one.id, view=view, start=start, end=now + 1)
            stored = self._store.processes(query)
            return processes.answer(one, stored, now, stale_after_seconds=self._stale_after)

        return await self._executor.run(fetch)

    def _gpu(self, id: str, instant: LivenessSnapshot) -> GpuRecord:  # noqa: A002
        cluster, _, rest = id.partition("/")
        machine, _, view = rest.partition("/")
        if cluster in set(ViewKind) and rest and not view:  # the key of a view
            return self._gpu_by_uuid(rest, instant)
        if not rest:
            return self._gpu_by_uuid(id, instant)
        if not view:
            return self._gpu_by_place(cluster, rest, instant)
        machines = self._lookup.find(cluster, machine)
        found = [one for one in self._pages.gpus_of(machines, instant) if one.device.id == id]
        if not found:
            raise NotFoundError(f"there is no view {id!r}")
        return found[0]

    def _gpu_by_uuid(self, uuid: str, instant: LivenessSnapshot) -> GpuRecord:
        machines: list[MachineRecord] = []
        clusters = self._registry.clusters() if is_name(uuid) else ()
        for cluster in clusters:
            reporters = {
                id_ for kind in ViewKind for id_ in self._store.reporters_of_view(cluster.id, f"{kind}/{uuid}")
            }
            machines += self._lookup.with_ids(cluster.id, reporters)
        found = [one for one in self._pages.gpus_of(machines, instant) if one.device.uuid == uuid]
        if found:
            return _single(uuid, found)
        machines = []
        keys: set[str] = set()
        prefixes = view_prefixes(uuid)
        for cluster in clusters if prefixes else ():
            views = self._store.views_with_prefix(cluster.id, prefixes, CANDIDATES_LISTED + 1)
            keys.update(f"{cluster.id}/{machine}/{view}" for view, machine in views)
            machines += self._lookup.with_ids(cluster.id, {machine for _, machine in views})
        found = [one for one in self._pages.gpus_of(machines, instant) if one.device.id in keys]
        if not found:
            raise NotFoundError(
                f"no device has the UUID {uuid!r}: give a UUID or its prefix ({MIN_PREFIX} or more characters after "
                "`GPU-` or `MIG-`), MACHINE/PCI_ADDRESS, MACHINE/INDEX, or the id cluster/machine/kind/uuid"
            )
        return _single(uuid, found)

    def _gpu_by_place(self, machine: str, slot: str, instant: LivenessSnapshot) -> GpuRecord:
        """Return the GPU of a machine with this PCI address or index."""
        address = None
        with contextlib.suppress(ValueError):
            address = normalise_pci_address(slot)
        gpus = self._pages.gpus_of([self._machine(machine)], instant)
        gpus = [one for one in gpus if one.device.kind is ViewKind.GPU]
        found = [one for one in gpus if one.device.pci_address == address is not None]
        found = found or [one for one in gpus if str(one.index) == slot]
        if not found:
            raise NotFoundError(f"machine {machine!r} has no GPU with the PCI address or index {slot!r}")
        return _single(f"{machine}/{slot}", found)

    def _with_passthrough(self, record: GpuRecord, instant: LivenessSnapshot) -> GpuRecord:
        """Fill in the view of the same GPU on the other side of a passthrough: in a guest, or on its host."""
        device = record.device
        if device.kind is not ViewKind.GPU or device.side not in (Side.PCI_ONLY, Side.GUEST):
            return record
        machine = self._registry.machine(device.machine)
        if device.side is Side.PCI_ONLY:
            uuids = self._passed_through(machine, (device,)).get(device.id, ())
            state = passthrough.host_state(device, self._lookup.guest_views(machine, uuids), name=True)
        else:
            hosts = self._lookup.with_ids(machine.cluster, filter(None, [machine.hypervisor_id]))
            shown = [one.device for one in self._pages.gpus_of(hosts, instant)]
            passed = [self._passed_through(host, shown) for host in hosts]
            state = passthrough.guest_state(device.uuid, passed[0] if passed else {})
        return msgspec.structs.replace(record, device=msgspec.structs.replace(device, passthrough=state))

    def _passed_through(self, host: MachineRecord, devices: Sequence[AnswerDevice]) -> dict[str, frozenset[str]]:
        return passthrough.passed_through(devices, self._lookup.samples_of(host).stored)

    def _machine(self, name_or_id: str) -> MachineRecord:
        """Return the machine with this id, otherwise the only one with this name."""
        try:
            return self._registry.machine(name_or_id)
        except NotFoundError:
            return self._lookup.find_one(name_or_id)


def _single(name: str, found: Sequence[GpuRecord]) -> GpuRecord:
    if len(found) > 1:
        ids = [one.device.id for one in found[:CANDIDATES_LISTED]]
        more = " and others" if len(found) > len(ids) else ""
        raise AmbiguousError(f"{name} stands for several devices: use one of {', '.join(ids)}{more}", ids)
    return found[0]
