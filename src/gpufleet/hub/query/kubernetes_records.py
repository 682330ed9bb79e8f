"""Records of what collectors report: their state by cluster, and the Kubernetes node of a machine. Pure."""

from collections.abc import Sequence

from gpufleet.fleet.cluster_nodes import hiding_taints, pool_labels
from gpufleet.fleet.cluster_objects import is_current
from gpufleet.model.api.kubernetes import (
    ClusterCollection,
    CollectionState,
    CollectorRecord,
    CopyRecord,
    KubernetesNodeRecord,
)
from gpufleet.model.kubernetes import ClusterNode, CopyState, CopyStatus
from gpufleet.model.stored.kubernetes import StoredCollector
from gpufleet.model.time import NANOS, to_datetime

NEVER = "no collector of this cluster has reported"
"""Detail of a cluster without a collector."""

_COMPLETE = frozenset({CopyState.SYNCED, CopyState.NOT_SERVED})


def cluster_collection(collectors: Sequence[StoredCollector], now: int) -> ClusterCollection:
    """Return the state of the collection of a cluster's objects.

    Args:
        collectors: the newest report of each collector.
        now: nanoseconds since 1970 by the hub's clock.
    """
    if not collectors:
        return ClusterCollection(state=CollectionState.ABSENT, detail=NEVER)
    ordered = sorted(collectors, key=lambda one: (-one.known_at, one.sender))
    state, detail = _state([one for one in ordered if is_current(one, now)], ordered[0])
    return ClusterCollection(state=state, detail=detail, collectors=tuple([_collector(one, now) for one in ordered]))


def kubernetes_node(node: ClusterNode, known_at: int, now: int) -> KubernetesNodeRecord:
    """Return the record of a node; `known_at` is the time of its newest report."""
    return KubernetesNodeRecord(
        uid=node.uid,
        name=node.name,
        age_seconds=_age(now, known_at),
        ready=next((one.status for one in node.conditions if one.kind == "Ready"), ""),
        cordoned=node.unschedulable,
        taints=hiding_taints(node),
        pools=pool_labels(node),
    )


def _state(current: Sequence[StoredCollector], newest: StoredCollector) -> tuple[CollectionState, str]:
    if not current:
        at = to_datetime(newest.known_at).isoformat(timespec="seconds")
        return CollectionState.ABSENT, f"no collector of this cluster has reported since {at}"
    systems = {one.system_uid: one.sender for one in reversed(current) if one.system_uid}
    if len(systems) > 1:
        named = ", ".join(f"{sender} {uid}" for uid, sender in sorted(systems.items(), key=lambda item: item[1]))
        return CollectionState.CONFLICT, f"collectors report different kube-system UIDs: {named}"
    missing = _missing(max(current, key=_current_at))
    return (CollectionState.PARTIAL, ", ".join(missing)) if missing else (CollectionState.CURRENT, "")


def _current_at(collector: StoredCollector) -> int:
    """Return the newest instant at which a collector had a current copy.

    An earlier leader without connection repeats its state, which is newer than that of the present leader.
    """
    lost = (CopyState.STALE, CopyState.FORBIDDEN)
    instants = [min(one.since, collector.known_at) for one in collector.copies if one.state in lost]
    if len(instants) < len(collector.copies):
        instants.append(collector.known_at)
    return max(instants, default=collector.known_at)


def _missing(collector: StoredCollector) -> list[str]:
    """Return the resources without a current and complete copy at a collector, with the state."""
    return [
        f"{one.resource} {one.state.value if one.state not in _COMPLETE else 'incomplete'}"
        for one in collector.copies
        if one.state not in _COMPLETE or not one.is_complete or one.rejected
    ]


def _collector(one: StoredCollector, now: int) -> CollectorRecord:
    return CollectorRecord(
        sender=one.sender,
        server_version=one.server_version,
        system_uid=one.system_uid,
        observed_at=to_datetime(one.observed_at),
        received_at=to_datetime(one.reported_at),
        age_seconds=_age(now, one.known_at),
        current=is_current(one, now),
        copies=tuple([_copy(copy, one, now) for copy in one.copies]),
    )


def _copy(copy: CopyStatus, of: StoredCollector, now: int) -> CopyRecord:
    """Return the record of a copy. A synchronised copy was current when the collector reported it."""
    at = of.known_at if copy.state is CopyState.SYNCED else None if copy.state is CopyState.STARTING else copy.since
    return CopyRecord(
        resource=copy.resource,
        state=copy.state,
        current_at=None if at is None else to_datetime(at),
        age_seconds=None if at is None else _age(now, at),
        detail=copy.detail,
        objects=copy.objects,
        rejected=copy.rejected,
        example=copy.example,
        is_complete=copy.is_complete,
    )


def _age(now: int, at: int) -> float:
    return max(0, now - at) / NANOS
