"""Scan of machines: holders, Kubernetes, PCI buses and errors of readers, with queries for some machines at a time.

A judgement reads machines for a bounded time, the least recently read first. A hub with some thousand machines reads
all of them each time.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from gpufleet.fleet.allocated_devices import AllocatedDevices
from gpufleet.fleet.attribution.contract import last_error
from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS, current_states, unresolved_counts, unresolved_total
from gpufleet.fleet.cluster_nodes import match_node, pool_labels
from gpufleet.fleet.cluster_objects import OBJECT_TTL_NS, is_current, is_present, is_synced, judged_at
from gpufleet.fleet.facts.holders import GPU_PREFIX, GpuHolders, machine_holdings, views_of
from gpufleet.fleet.facts.kubernetes import whole_gpus
from gpufleet.fleet.readings import known_views
from gpufleet.hub.query.claim_holders import ClaimHolders
from gpufleet.hub.query.cluster_joins import candidate_nodes
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.declarations import DECLARATION_TTL_NS, DeclaredResource
from gpufleet.model.holdings import Method
from gpufleet.model.kubernetes import ClusterClaim, ClusterNode, ClusterPod
from gpufleet.model.machine import MachineKind
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.holdings import HoldingQuery, StoredHolderStates, StoredHolding
from gpufleet.model.stored.kubernetes import ObjectKind, ObjectQuery, StoredCollector
from gpufleet.model.time import LATEST
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import ClusterStore, SampleStore

CHUNK = 500
"""Machines per query."""

MAX_SECONDS = 3.0
"""Time after which no further machines are read in a judgement."""

VALID_SECONDS = 900.0
"""Age at which results expire."""

PODS_SECONDS = 240.0
"""Age at which the pods of a cluster are read again."""

MAX_PARENTS_READ = 50
"""Machines per chunk whose devices are read to learn which GPU a new MIG device or vGPU instance is a part of."""


class ScanStore(SampleStore, ClusterStore, Protocol):
    """The part of the store that the scan needs."""


class ScannedNode(msgspec.Struct, frozen=True):
    """Placement of a Kubernetes node, and whether a label names its pool. Empty texts are unknown."""

    region: str
    zone: str
    instance_type: str
    has_pool: bool


class ScannedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the queries about a machine. None for an unknown number.

    Attributes:
        second: when, by the hub's monotonic clock.
        pci_gpus, kubernetes_gpus, allocatable_gpus, allocated_gpus, unresolved_devices, last_error: inputs of the
            scope machine.
        is_expected: whether a source declares GPUs of the machine.
        holders: holders of its GPUs.
        attributed: devices that pods are known to have.
        jobs: devices that SLURM declares for jobs.
        unresolved_jobs: device names of SLURM that identify no device.
        node: its Kubernetes node.
    """

    second: float
    pci_gpus: int | None = None
    kubernetes_gpus: int | None = None
    allocatable_gpus: int | None = None
    allocated_gpus: int | None = None
    unresolved_devices: int | None = None
    last_error: str | None = None
    holders: tuple[GpuHolders, ...] = ()
    attributed: int = 0
    jobs: int = 0
    unresolved_jobs: int | None = None
    node: ScannedNode | None = None


class _Pods(msgspec.Struct, frozen=True):
    """Allocated devices of a cluster, and the time for which the presence of its nodes is judged.

    Both are None without a collector. `second` is when they were read.
    """

    second: float
    devices: AllocatedDevices | None
    nodes_at: int | None


class _Chunk(msgspec.Struct, frozen=True):
    """Query results for some machines of a cluster, by machine id."""

    buses: Mapping[str, int]
    declared: Mapping[str, tuple[DeclaredResource, ...]]
    readers: Mapping[str, tuple[ReaderStatus, ...]]
    states: Mapping[str, tuple[StoredHolderStates, ...]]
    holdings: Mapping[str, Sequence[StoredHolding]]
    nodes: Mapping[str, ScannedNode]


class MachineScan:
    """Newest results about all machines."""

    def __init__(
        self,
        store: ScanStore,
        clock: Clock,
        *,
        claimed: ClaimHolders | None = None,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        """Take its sources; `claimed` adds holders by ResourceClaims to those that machines report."""
        self._claimed = claimed
        self._store = store
        self._clock = clock
        self._max_seconds = max_seconds
        self._known: dict[str, ScannedMachine] = {}
        self._pods: dict[str, _Pods] = {}
        self._parents: dict[str, dict[str, str]] = {}

    def find(self, machine: str) -> ScannedMachine | None:
        """Return the results for a machine; None if there are none, or they expired."""
        known = self._known.get(machine)
        if known is None or self._clock.monotonic() - known.second >= VALID_SECONDS:
            return None
        return known

    def take_turn(self, machines: Mapping[str, Sequence[MachineRecord]]) -> None:
        """Read some machines.

        Args:
            machines: all expected machines by cluster.

        Raises:
            StoreError: if a query fails; earlier results stay valid.
        """
        self._drop_gone(machines)
        began = self._clock.monotonic()
        for cluster, chunk in self._chunks(machines):
            self._read(cluster, chunk)
            if self._clock.monotonic() - began >= self._max_seconds:
                return

    def _drop_gone(self, machines: Mapping[str, Sequence[MachineRecord]]) -> None:
        present = {one.id for own in machines.values() for one in own}
        self._known = {id_: one for id_, one in self._known.items() if id_ in present}
        self._parents = {id_: one for id_, one in self._parents.items() if id_ in present}
        self._pods = {cluster: one for cluster, one in self._pods.items() if cluster in machines}

    def _chunks(self, machines: Mapping[str, Sequence[MachineRecord]]) -> list[tuple[str, Sequence[MachineRecord]]]:
        """Return all machines in chunks of a cluster, the least recently read first."""
        chunks = []
        for cluster, own in machines.items():
            ordered = sorted(own, key=self._read_at)
            chunks += [(cluster, ordered[at : at + CHUNK]) for at in range(0, len(ordered), CHUNK)]
        return sorted(chunks, key=lambda one: self._read_at(one[1][0]))

    def _read_at(self, machine: MachineRecord) -> float:
        known = self._known.get(machine.id)
        return -1.0 if known is None else known.second

    def _read(self, cluster: str, machines: Sequence[MachineRecord]) -> None:
        now, ids = self._clock.now_ns(), [one.id for one in machines]
        pods = self._pods_of(cluster)
        holdings: dict[str, list[StoredHolding]] = {}
        query = HoldingQuery(cluster=cluster, machines=tuple(ids), start=now, end=LATEST)
        for one in self._store.holdings(query):
            holdings.setdefault(one.machine, []).append(one)
        states = self._store.holder_states(cluster, ids, now - HOLDING_TTL_NS)
        present = {id_: current_states(own, now) for id_, own in states.items()}
        completed = holdings if self._claimed is None else self._claimed.complete(cluster, holdings, present, ids)
        found = _Chunk(
            buses=self._store.pci_gpu_counts(cluster, ids),
            declared=self._store.declared_resources(cluster, ids, now - DECLARATION_TTL_NS),
            readers=self._store.readers_of(cluster, ids),
            states=states,
            holdings=completed,
            nodes={} if pods.nodes_at is None else self._nodes(cluster, machines, pods.nodes_at),
        )
        self._learn_parents(cluster, found)
        second = self._clock.monotonic()
        self._known.update({one.id: self._scanned(one, found, pods.devices, now, second) for one in machines})

    def _scanned(
        self, machine: MachineRecord, found: _Chunk, pods: AllocatedDevices | None, now: int, second: float
    ) -> ScannedMachine:
        id_ = machine.id
        states, holdings = found.states.get(id_, ()), found.holdings.get(id_, ())
        held = machine_holdings(holdings, states, self._parents.get(id_, {}), now)
        unresolved = unresolved_counts(states, now)
        capacity, allocatable = whole_gpus(found.declared.get(id_, ()), found.buses.get(id_))
        node = machine.machine.k8s_node_name or machine.machine.name
        return ScannedMachine(
            second=second,
            pci_gpus=found.buses.get(id_),
            kubernetes_gpus=capacity,
            allocatable_gpus=allocatable,
            allocated_gpus=None if pods is None else pods.total_on(node),
            unresolved_devices=unresolved_total(unresolved),
            last_error=last_error(found.readers.get(id_, ())),
            holders=held.gpus,
            attributed=held.pods,
            jobs=held.jobs,
            unresolved_jobs=unresolved.get(Method.SCHEDULER),
            node=found.nodes.get(id_),
        )

    def _nodes(self, cluster: str, machines: Sequence[MachineRecord], at: int) -> dict[str, ScannedNode]:
        """Return the Kubernetes nodes of machines by machine id; `at` as in `judged_at`."""
        candidates = candidate_nodes(self._store, cluster, machines, at - OBJECT_TTL_NS)
        found = {}
        for one in machines:
            present = [
                stored.record
                for stored in candidates[one.id]
                if isinstance(stored.record, ClusterNode) and is_present(stored, at)
            ]
            node = match_node(one.machine, present).node
            if node is not None and one.machine.kind is MachineKind.NODE:
                found[one.id] = ScannedNode(node.region, node.zone, node.instance_type, bool(pool_labels(node)))
        return found

    def _pods_of(self, cluster: str) -> _Pods:
        """Return the devices that Kubernetes allocates in a cluster."""
        known, second = self._pods.get(cluster), self._clock.monotonic()
        if known is not None and second - known.second < PODS_SECONDS:
            return known
        now = self._clock.now_ns()
        collectors = [one for one in self._store.collectors([cluster]).get(cluster, ()) if is_current(one, now)]
        devices = nodes_at = None
        if collectors:
            at = judged_at(ObjectKind.POD, collectors, now)
            stored = self._store.cluster_objects(ObjectQuery(cluster=cluster, kind=ObjectKind.POD))
            present = [one.record for one in stored if isinstance(one.record, ClusterPod) and is_present(one, at)]
            devices = AllocatedDevices(present, self._claims(cluster, collectors, now))
            nodes_at = judged_at(ObjectKind.NODE, collectors, now)
        found = self._pods[cluster] = _Pods(second, devices, nodes_at)
        return found

    def _claims(self, cluster: str, collectors: Sequence[StoredCollector], now: int) -> list[ClusterClaim] | None:
        """Return the present ResourceClaims; None without a current copy of them."""
        if not is_synced(ObjectKind.CLAIM, collectors, now):
            return None
        stored = self._store.cluster_objects(ObjectQuery(cluster=cluster, kind=ObjectKind.CLAIM))
        return [one.record for one in stored if isinstance(one.record, ClusterClaim) and is_present(one, now)]

    def _learn_parents(self, cluster: str, found: _Chunk) -> None:
        """Record the GPU of each MIG device and vGPU instance in the reports."""
        unknown = []
        for id_ in {*found.states, *found.holdings}:
            views = views_of(found.holdings.get(id_, ()), found.states.get(id_, ()))
            if not _parts(views) <= self._parents.get(id_, {}).keys():
                unknown.append(id_)
        read = sorted(unknown)[:MAX_PARENTS_READ]
        for id_, samples in (self._store.latest_of(cluster, read) if read else {}).items():
            known = known_views(samples)
            self._parents[id_] = {key: view.parent for key, view in known.items() if view.parent is not None}


def _parts(views: Collection[str]) -> set[str]:
    return {view for view in views if not view.startswith(GPU_PREFIX)}
