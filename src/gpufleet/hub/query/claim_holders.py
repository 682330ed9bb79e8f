"""Holders by ResourceClaims (DRA) of the machines of a cluster, from what its collector reports. Blocks."""

from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.fleet.attribution.reported import known_until
from gpufleet.fleet.attribution.resource_claims import claim_holdings, device_views, reserved_devices, with_claims
from gpufleet.fleet.cluster_objects import are_in_conflict, is_current, is_present, is_synced
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.targets import MachineLookup
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.holdings import DeviceState
from gpufleet.model.kubernetes import ClusterClaim, ClusterNode, ClusterPod, ClusterSlice
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.stored.kubernetes import ObjectKind, ObjectQuery, StoredCollector, StoredObject
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import ClusterStore

VALID_SECONDS = 5.0
"""Age at which the claims of a cluster are read again."""

_KINDS = (ObjectKind.CLAIM, ObjectKind.SLICE, ObjectKind.POD)

OfMachines = Mapping[str, Sequence[StoredHolding]]
"""Machine id to its holdings."""


class _Known(msgspec.Struct, frozen=True):
    """Holdings by claims of a cluster's machines; `second` is when they were read."""

    second: float
    holdings: OfMachines


class ClaimHolders:
    """Holders that ResourceClaims declare. Results are kept for `VALID_SECONDS`. Used from several threads."""

    def __init__(self, *, store: ClusterStore, lookup: MachineLookup, joins: ClusterJoins, clock: Clock) -> None:
        self._store = store
        self._lookup = lookup
        self._joins = joins
        self._clock = clock
        self._known: dict[str, _Known] = {}

    def of_clusters(self, clusters: Sequence[str]) -> dict[str, OfMachines]:
        """Return cluster to its present holdings by claims; none if its collectors report different clusters."""
        second = self._clock.monotonic()
        known = {one: self._known.get(one) for one in clusters}
        expired = [id_ for id_, one in known.items() if one is None or second - one.second >= VALID_SECONDS]
        collectors = self._store.collectors(expired) if expired else {}
        for id_ in expired:
            self._known[id_] = known[id_] = _Known(second, self._read(id_, collectors.get(id_, ())))
        return {id_: one.holdings for id_, one in known.items() if one is not None and one.holdings}

    def of_cluster(self, cluster: str) -> OfMachines:
        """Return the present holdings by claims of a cluster; see `of_clusters`."""
        return self.of_clusters([cluster]).get(cluster, {})

    def complete(
        self,
        cluster: str,
        holdings: Mapping[str, Sequence[StoredHolding]],
        states: Mapping[str, Mapping[str, DeviceState]],
        machines: Sequence[str],
    ) -> dict[str, Sequence[StoredHolding]]:
        """Return machine id to its present holdings with those by claims.

        Args:
            cluster: of the machines.
            holdings: every present holding of each machine, as it reports them.
            states: present holder states of each machine.
            machines: ids of the machines to complete. Others are returned unchanged.
        """
        claimed, now = self.of_cluster(cluster), self._clock.now_ns()
        found = dict(holdings)
        for machine in claimed.keys() & set(machines):
            present = [one for one in holdings.get(machine, ()) if known_until(one, now) is None]
            found[machine] = with_claims(present, claimed[machine], states.get(machine, {}), now)
        return found

    def _read(self, cluster: str, reported: Sequence[StoredCollector]) -> OfMachines:
        now = self._clock.now_ns()
        collectors = [one for one in reported if is_current(one, now)]
        if not _have_claims(collectors) or are_in_conflict(collectors, now):
            return {}
        read = {kind: self._present(cluster, kind, now) for kind in _KINDS}
        claims = [(one.record, one.known_at) for one in read[ObjectKind.CLAIM] if isinstance(one.record, ClusterClaim)]
        pods = [one.record for one in read[ObjectKind.POD] if isinstance(one.record, ClusterPod)]
        slices = [one.record for one in read[ObjectKind.SLICE] if isinstance(one.record, ClusterSlice)]
        of_nodes = claim_holdings(
            reserved_devices(claims, pods),
            device_views(slices),
            is_current=all(is_synced(kind, collectors, now) for kind in _KINDS),
        )
        machines = self._machines(cluster, sorted(of_nodes), now)
        return {
            machines[node]: [
                StoredHolding(cluster=cluster, machine=machines[node], holding=holding, reported_at=known_at)
                for holding, known_at in own
            ]
            for node, own in of_nodes.items()
            if node in machines
        }

    def _present(self, cluster: str, kind: ObjectKind, now: int) -> list[StoredObject]:
        stored = self._store.cluster_objects(ObjectQuery(cluster=cluster, kind=kind))
        return [one for one in stored if is_present(one, now)]

    def _machines(self, cluster: str, nodes: Sequence[str], now: int) -> dict[str, str]:
        """Return name of a node to the id of its machine; a node with none or several machines is left out."""
        if not nodes:
            return {}
        query = ObjectQuery(cluster=cluster, kind=ObjectKind.NODE, names=tuple(nodes))
        found: dict[str, set[str]] = {}
        candidates: dict[str, MachineRecord] = {}
        for stored in self._store.cluster_objects(query):
            node = stored.record
            if isinstance(node, ClusterNode) and node.name in nodes and is_present(stored, now):
                candidates.update({one.id: one for one in self._lookup.of_node(cluster, node)})
        for machine, (match, _) in self._joins.nodes(list(candidates.values())).items():
            if match.node is not None:
                found.setdefault(match.node.name, set()).add(machine)
        return {node: next(iter(own)) for node, own in found.items() if len(own) == 1}


def _have_claims(collectors: Sequence[StoredCollector]) -> bool:
    return any(copy.resource == ObjectKind.CLAIM and copy.objects for one in collectors for copy in one.copies)
