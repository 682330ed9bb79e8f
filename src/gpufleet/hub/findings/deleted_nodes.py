"""Machines whose Kubernetes node was deleted: they are retired once they no longer report.

A deletion is certain only if a collector reported it, and a current copy of the nodes has no node that can be the
machine. A collector that restarts or loses the API server reports no deletion. An allocated machine is expected: it is
not retired before its allocation ends.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from gpufleet.fleet.cluster_nodes import NodeDeletion, node_deletion
from gpufleet.fleet.cluster_objects import are_in_conflict, is_synced, judged_at
from gpufleet.hub.findings.reports import MachineColumns
from gpufleet.hub.query.cluster_joins import candidate_nodes
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.machine import MachineKind
from gpufleet.model.stored.kubernetes import ObjectKind, StoredCollector
from gpufleet.model.time import NANOS, to_ns
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import MachineRegistry
from gpufleet.ports.store import ClusterStore

AFTER_SECONDS = 3600.0
"""Time after the deletion of its node from which on a report shows that the machine is used without Kubernetes."""

RECENT_SECONDS = 25 * 3600.0
"""Age from which on deletions are not read."""

MAX_MACHINES = 500
"""Maximum number of machines of a cluster that are read per judgement; of more, each judgement reads others."""

DeletionTimes = Mapping[str, int | None]
"""Retired machine to the deletion of its Kubernetes node; None if another cause retired it. Unknown ones are left out.
"""


class NodeDeletions:
    """Reads deletions, and retires the machines. Use it from one thread."""

    def __init__(
        self,
        registry: MachineRegistry,
        store: ClusterStore,
        clock: Clock,
        allocated: Callable[[], Collection[str]],
    ) -> None:
        """Take the sources; `allocated` returns the ids of machines with an allocation in force."""
        self._registry = registry
        self._allocated = allocated
        self._store = store
        self._clock = clock
        self._known: dict[str, int | None] = {}
        self._turn = 0

    def take_turn(self, machines: Mapping[str, MachineColumns]) -> dict[str, DeletionTimes]:
        """Retire the machines of each cluster whose node was deleted, and return the deletions of retired ones.

        A machine is returned from the judgement after its retirement on.

        Raises:
            StoreError, RegistryError: if a query fails.
        """
        now = self._clock.now_ns()
        chosen = {cluster: self._next(_late_nodes(own)) for cluster, own in machines.items()}
        expired = {cluster: _expired(own) for cluster, own in machines.items()}
        for cluster, own in expired.items():
            chosen[cluster] = [*chosen[cluster], *self._next(own)]
        chosen = {cluster: own for cluster, own in chosen.items() if own}
        kept = {one.id for own in expired.values() for one in own}
        self._known = {id_: at for id_, at in self._known.items() if id_ in kept}
        self._turn += 1
        collectors = self._store.collectors(list(chosen)) if chosen else {}
        for cluster, own in chosen.items():
            found = self._read(cluster, own, collectors.get(cluster, ()), now)
            self._apply(machines[cluster], found)
        return {
            cluster: {one.id: self._known[one.id] for one in own if one.id in self._known}
            for cluster, own in expired.items()
        }

    def _next(self, machines: Sequence[MachineRecord]) -> list[MachineRecord]:
        most = MAX_MACHINES // 2
        start = self._turn * most % len(machines) if len(machines) > most else 0
        return [*machines[start:], *machines[:start]][:most]

    def _read(
        self, cluster: str, machines: Sequence[MachineRecord], collectors: Sequence[StoredCollector], now: int
    ) -> dict[str, tuple[MachineRecord, NodeDeletion | None]]:
        """Return machines with the deletion of their nodes; those with an unknown one are left out."""
        if not collectors:
            return {one.id: (one, None) for one in machines}
        if not is_synced(ObjectKind.NODE, collectors, now) or are_in_conflict(collectors, now):
            return {}
        at = judged_at(ObjectKind.NODE, collectors, now)
        nodes = candidate_nodes(self._store, cluster, machines, now - int(RECENT_SECONDS * NANOS))
        return {one.id: (one, node_deletion(one.machine, nodes[one.id], at)) for one in machines}

    def _apply(self, columns: MachineColumns, found: Mapping[str, tuple[MachineRecord, NodeDeletion | None]]) -> None:
        """Retire machines, and withdraw the retirement of expected ones."""
        deleted, expected = set(), self._with_hosts(columns)
        for id_, (machine, deletion) in found.items():
            self._known[id_] = None
            if deletion is None or to_ns(machine.last_seen) > deletion.at + int(AFTER_SECONDS * NANOS):
                continue
            if deletion.is_recreated or id_ in expected:
                self._registry.revive_expired(id_)
            else:
                deleted.add(id_)
                self._known[id_] = deletion.at
        for id_ in deleted | {one.id for one in _late_guests(columns, deleted)}:
            self._registry.expire_machine(id_)

    def _with_hosts(self, columns: MachineColumns) -> set[str]:
        """Return the allocated machines, and the hosts of allocated guests."""
        allocated = set(self._allocated())
        hosts = [one.hypervisor_id for one in columns.records if one.id in allocated]
        return allocated | {one for one in hosts if one is not None}


def _late_nodes(machines: MachineColumns) -> list[MachineRecord]:
    """Return the nodes that reported before, and do not report now."""
    is_late = (machines.is_late & ~machines.retired).tolist()
    return [one for one, late in zip(machines.records, is_late, strict=True) if late and _is_node(one)]


def _late_guests(machines: MachineColumns, nodes: Iterable[str]) -> list[MachineRecord]:
    """Return the guests of nodes that do not report now: their reports came through the node."""
    hosts, is_late = set(nodes), (machines.is_late & ~machines.retired).tolist()
    return [
        one
        for one, late in zip(machines.records, is_late, strict=True)
        if late and one.machine.kind is MachineKind.GUEST and one.hypervisor_id in hosts
    ]


def _expired(machines: MachineColumns) -> list[MachineRecord]:
    """Return the nodes that were retired, but not by an operator."""
    return [one for one in machines.select(retired=True) if _is_node(one) and one.retired_at == one.last_seen]


def _is_node(machine: MachineRecord) -> bool:
    return machine.machine.kind is MachineKind.NODE and not machine.named_only
