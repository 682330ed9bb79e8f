"""Clusters at an instant: their senders and machines, and the newest scan of each machine."""

from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.fleet.rules.logic import Column
from gpufleet.hub.findings.deleted_nodes import DeletionTimes, NodeDeletions
from gpufleet.hub.findings.failures import CLUSTERS, DELETED, MACHINES, SCAN, PartFailures
from gpufleet.hub.findings.instant import HubInstant
from gpufleet.hub.findings.machine_inputs import Scanned
from gpufleet.hub.findings.reports import (
    MachineColumns,
    SenderColumns,
    machine_columns,
    retired_senders,
    sender_columns,
)
from gpufleet.hub.findings.scan import MachineScan
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.cluster import Cluster, ClusterSpec
from gpufleet.ports.registry import Registry

MACHINES_PER_PAGE = 2000
"""Machines that are listed at once: the registry cannot register machines meanwhile."""


class ClusterState(msgspec.Struct, frozen=True):
    """State of a cluster.

    Attributes:
        id: its id.
        spec: its registration; None if it is only named in the configuration.
        is_retired: whether the hub no longer serves it.
        senders, machines: its senders and machines.
        retired_senders: whether each sender is retired.
        scanned: newest scan of each machine, None if there is none.
        deleted: deletions of the Kubernetes nodes of retired machines; None if they are unknown.
        machines_ratio: use of the nearest limit on its machines; None if that is unknown.
    """

    id: str
    spec: ClusterSpec | None
    is_retired: bool
    senders: SenderColumns
    machines: MachineColumns
    retired_senders: Column
    scanned: Scanned
    deleted: DeletionTimes | None = None
    machines_ratio: float | None = None


class ClusterStates:
    """Reads the state of all clusters."""

    def __init__(self, registry: Registry, scan: MachineScan, deletions: NodeDeletions) -> None:
        self._registry = registry
        self._scan = scan
        self._deletions = deletions
        self._clusters: Sequence[Cluster] = ()

    def read(self, instant: HubInstant, failures: PartFailures) -> Sequence[ClusterState]:
        """Return the state of all clusters; without the registry, of the clusters that are known."""
        if instant.registry_error:
            failures.reasons[CLUSTERS] = instant.registry_error
        else:
            with failures.part(CLUSTERS):
                self._clusters = self._registry.clusters()
        records: Mapping[str, Sequence[MachineRecord]] = {one.id: () for one in self._clusters}
        with failures.part(MACHINES):
            records = {one.id: self._list_machines(one.id) for one in self._clusters}
        ratios: Mapping[str, float] = {}
        with failures.part(MACHINES):
            counts = self._registry.machine_counts()
            ratios = {one.id: counts.ratios.get(one.id, 0.0) for one in self._clusters}
        senders = {one: sender_columns(instant.liveness, one) for one in records}
        machines = {one: machine_columns(instant.liveness, own, senders[one]) for one, own in records.items()}
        if instant.has_store:
            with failures.part(SCAN):
                self._scan.take_turn({one: own.select(retired=False) for one, own in machines.items()})
        deleted: Mapping[str, DeletionTimes] = {}
        if instant.has_store and not instant.registry_error:
            with failures.part(DELETED):
                deleted = self._deletions.take_turn(machines)
        specs = {one.id: one.spec for one in self._clusters}
        return [
            ClusterState(
                id=id_,
                spec=specs[id_],
                is_retired=id_ not in instant.served,
                senders=senders[id_],
                machines=machines[id_],
                retired_senders=retired_senders(senders[id_], machines[id_]),
                scanned=[self._scan.find(one.id) for one in records[id_]],
                deleted=deleted.get(id_),
                machines_ratio=ratios.get(id_),
            )
            for id_ in records
        ]

    def _list_machines(self, cluster: str) -> Sequence[MachineRecord]:
        """Return the machines of a cluster, each once: it can be renamed between two pages."""
        found: dict[str, MachineRecord] = {}
        after = None
        while page := self._registry.machines(cluster, after=after, limit=MACHINES_PER_PAGE):
            found.update({one.id: one for one in page})
            after = (page[-1].cluster, page[-1].machine.name, page[-1].id)
            if len(page) < MACHINES_PER_PAGE:
                break
        return list(found.values())
