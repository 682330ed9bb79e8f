"""Joins of machines and holdings with the objects of their Kubernetes cluster. Blocks."""

from collections.abc import Iterable, Mapping, Sequence

from gpufleet.fleet.attribution.cluster_pods import complete_holding, identify_pod, node_names, pod_name, pod_uid
from gpufleet.fleet.cluster_nodes import NodeMatch, match_node, search_names
from gpufleet.fleet.cluster_objects import OBJECT_TTL_NS, are_in_conflict, is_present, judged_at
from gpufleet.hub.query.targets import MachineLookup
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.kubernetes import ClusterNode, ClusterPod, ClusterVmi
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.stored.kubernetes import ObjectKind, ObjectQuery, StoredObject
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import ClusterStore

CHUNK = 2_000
"""UIDs and names per query."""

MAX_NAMED = 2_000
"""Maximum number of pods without UID that are identified for an answer."""


class ClusterJoins:
    """Completes what machines report with what the collector of their cluster reports."""

    def __init__(self, *, store: ClusterStore, lookup: MachineLookup, clock: Clock) -> None:
        self._store = store
        self._lookup = lookup
        self._clock = clock

    def nodes(self, machines: Sequence[MachineRecord]) -> dict[str, tuple[NodeMatch, int]]:
        """Return machine id to its present Kubernetes node, and the time of the newest report of it."""
        now = self._clock.now_ns()
        by_cluster: dict[str, list[MachineRecord]] = {}
        for one in machines:
            by_cluster.setdefault(one.cluster, []).append(one)
        collectors = self._store.collectors(list(by_cluster))
        found = {}
        for cluster, own in by_cluster.items():
            reporters = collectors.get(cluster, ())
            at = judged_at(ObjectKind.NODE, reporters, now)
            stored = candidate_nodes(self._store, cluster, own, at - OBJECT_TTL_NS) if reporters else {}
            for one in own:
                present = {
                    node.record.uid: (node.record, node.known_at)
                    for node in stored.get(one.id, ())
                    if isinstance(node.record, ClusterNode) and is_present(node, at)
                }
                match = match_node(one.machine, [node for node, _ in present.values()])
                found[one.id] = match, present[match.node.uid][1] if match.node is not None else 0
        return found

    def complete(self, holdings: Sequence[StoredHolding]) -> tuple[StoredHolding, ...]:
        """Return holdings in the same order; those of pods with what the cluster knows about them."""
        by_cluster: dict[str, list[StoredHolding]] = {}
        for one in holdings:
            if pod_uid(one.holding.holder) is not None or pod_name(one.holding.holder) is not None:
                by_cluster.setdefault(one.cluster, []).append(one)
        found: dict[int, StoredHolding] = {}
        for cluster, own in by_cluster.items():
            found |= self._complete(cluster, own)
        return tuple([found.get(id(one), one) for one in holdings])

    def _complete(self, cluster: str, holdings: Sequence[StoredHolding]) -> dict[int, StoredHolding]:
        """Return the completed holdings by the identity of the given record."""
        now = self._clock.now_ns()
        collectors = self._store.collectors([cluster]).get(cluster, ())
        uids = {uid for one in holdings if (uid := pod_uid(one.holding.holder)) is not None}
        stored = _read(self._store, cluster, ObjectKind.POD, uids, ())
        pods = {one.record.uid: one.record for one in stored if isinstance(one.record, ClusterPod)}
        # A node name is no identity while two Kubernetes clusters report as one.
        by_name = {} if are_in_conflict(collectors, now) else self._named(cluster, holdings)
        known = [one for one in holdings if one.holding.holder.id in pods or one.holding.holder.id in by_name]
        names = self._node_names(cluster, known, judged_at(ObjectKind.NODE, collectors, now), now)
        at = judged_at(ObjectKind.POD, collectors, now)
        of_holding: dict[int, ClusterPod] = {}
        for one in known:
            nodes, pod = names.get(id(one), frozenset()), pods.get(one.holding.holder.id)
            if pod is not None:
                is_elsewhere = pod.node and nodes and pod.node not in nodes
            else:
                is_elsewhere = len(nodes) != 1
                if not is_elsewhere:
                    pod = identify_pod(one, by_name[one.holding.holder.id], next(iter(nodes)), now=now, at=at)
            if pod is not None and not is_elsewhere:
                of_holding[id(one)] = pod
        machines = {pod.vmi for pod in of_holding.values() if pod.vmi}
        read = _read(self._store, cluster, ObjectKind.VMI, machines, ())
        vmis = {one.record.uid: one.record for one in read if isinstance(one.record, ClusterVmi)}
        return {
            id(one): complete_holding(one, pod, vmis.get(pod.vmi))
            for one in known
            if (pod := of_holding.get(id(one))) is not None
        }

    def _named(self, cluster: str, holdings: Sequence[StoredHolding]) -> dict[str, list[StoredObject]]:
        """Return `namespace/name` of pods without UID to every pod of the name; none if they are too many."""
        names = {name for one in holdings if (name := pod_name(one.holding.holder)) is not None}
        if not names or len(names) > MAX_NAMED:
            return {}
        by_name: dict[str, list[StoredObject]] = {}
        for stored in _read(self._store, cluster, ObjectKind.POD, (), names):
            if isinstance(stored.record, ClusterPod):
                by_name.setdefault(f"{stored.record.namespace}/{stored.record.name}", []).append(stored)
        return by_name

    def _node_names(
        self, cluster: str, holdings: Sequence[StoredHolding], at: int, now: int
    ) -> dict[int, frozenset[str]]:
        """Return the names of the nodes that had a holding, by the identity of the given record."""
        if not holdings:
            return {}
        machines = {one.id: one for one in self._lookup.with_ids(cluster, {one.machine for one in holdings})}
        nodes = candidate_nodes(self._store, cluster, list(machines.values()), 0)
        return {
            id(one): node_names(one, machines[one.machine].machine, nodes[one.machine], now=now, at=at)
            for one in holdings
            if one.machine in machines
        }


def candidate_nodes(
    store: ClusterStore, cluster: str, machines: Sequence[MachineRecord], since: int
) -> dict[str, list[StoredObject]]:
    """Return machine id to the Kubernetes nodes that share a UID, name, machine id or system UUID with it.

    Nodes that ended before `since` are left out, nanoseconds since 1970.
    """
    uids = {one.machine.k8s_node_uid for one in machines if one.machine.k8s_node_uid is not None}
    names = {name for one in machines for name in search_names(one.machine)}
    index = _nodes_by_evidence(_read(store, cluster, ObjectKind.NODE, uids, names, since))
    found = {}
    for one in machines:
        evidence = (one.machine.k8s_node_uid, *search_names(one.machine))
        nodes = {node.record.uid: node for text in evidence if text for node in index.get(text, ())}
        found[one.id] = list(nodes.values())
    return found


def _read(
    store: ClusterStore, cluster: str, kind: ObjectKind, uids: Iterable[str], names: Iterable[str], since: int = 0
) -> list[StoredObject]:
    """Return the objects with one of the UIDs or names, each once."""
    requested = [("uids", uid) for uid in sorted(set(uids))] + [("names", name) for name in sorted(set(names))]
    found: dict[str, StoredObject] = {}
    for at in range(0, len(requested), CHUNK):
        chunk = requested[at : at + CHUNK]
        query = ObjectQuery(
            cluster=cluster,
            kind=kind,
            uids=tuple([text for field, text in chunk if field == "uids"]),
            names=tuple([text for field, text in chunk if field == "names"]),
            since=max(0, since),
        )
        found.update({one.record.uid: one for one in store.cluster_objects(query)})
    return list(found.values())


def _nodes_by_evidence(nodes: Iterable[StoredObject]) -> Mapping[str, Sequence[StoredObject]]:
    """Return UID, name, machine id and system UUID to the nodes that have it."""
    found: dict[str, list[StoredObject]] = {}
    for stored in nodes:
        node = stored.record
        if isinstance(node, ClusterNode):
            for text in {node.uid, node.name, node.machine_id.lower(), node.system_uuid.lower()} - {""}:
                found.setdefault(text, []).append(stored)
    return found
