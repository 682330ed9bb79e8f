"""Kubernetes clusters of the simulated fleet, as a cluster collector reports them. Pure.

Only nodes of the roles inference and MIG have GPU resources there.
"""

from collections import Counter
from collections.abc import Iterable

from gpufleet.cluster.machines import CountedNode, machine_report
from gpufleet.model.holdings import HolderKind
from gpufleet.model.kubernetes import (
    ClusterNode,
    ClusterPod,
    CopyState,
    CopyStatus,
    GpuRequest,
    GpuResourceKind,
    NodeGpuResource,
)
from gpufleet.model.stored.kubernetes import ObjectKind
from gpufleet.model.view import ViewKind
from gpufleet.model.wire.batch import ClusterPart, MachineReport, RemovedObject
from gpufleet.simulate.fleet.faults import FaultKind
from gpufleet.simulate.fleet.fleet import Fleet
from gpufleet.simulate.fleet.holdings import PresentHolding, present_holdings
from gpufleet.simulate.fleet.layout import FleetNode
from gpufleet.simulate.fleet.random_values import uuid_of

COLLECTOR_FAULTS = frozenset(
    {
        *(FaultKind.ATTRIBUTION_GAP, FaultKind.HIDDEN_WHEN_IDLE, FaultKind.GPU_UNALLOCATABLE),
        FaultKind.NODE_DELETED,
    }
)
"""Faults for which a cluster has a cluster collector."""

SERVER_VERSION = "v1.34.1"
GPU_RESOURCE = "nvidia.com/gpu"


def collector_name(fleet: Fleet, cluster: int) -> str:
    """Return the sender name of a cluster's collector."""
    return f"{fleet.cluster_id(cluster)}-collector"


def collector_reports(fleet: Fleet, cluster: int, at: int, measured_at: int) -> tuple[MachineReport, ...]:
    """Return the reports on the nodes of a cluster at an instant; `measured_at` is by the collector's clock."""
    reports = [machine_report(CountedNode(one), measured_at) for one in _nodes(fleet, cluster, at)]
    return tuple([one for one in reports if one is not None])


def collector_part(fleet: Fleet, cluster: int, since: int, at: int, measured_at: int) -> ClusterPart:
    """Return the objects of a cluster at an instant, and the nodes and pods that ended since an earlier one."""
    nodes, pods = _nodes(fleet, cluster, at), _pods(fleet, cluster, at)
    present = {*(one.uid for one in nodes), *(one.uid for one in pods)}
    before = [(ObjectKind.NODE, one.uid) for one in _nodes(fleet, cluster, since)]
    before += [(ObjectKind.POD, one.uid) for one in _pods(fleet, cluster, since)]
    return ClusterPart(
        observed_at=measured_at,
        system_uid=uuid_of(fleet.spec.seed, fleet.cluster_id(cluster), "kube-system"),
        server_version=SERVER_VERSION,
        copies=[_copy(ObjectKind.NODE, len(nodes), since), _copy(ObjectKind.POD, len(pods), since)],
        nodes=nodes,
        pods=pods,
        removed=[RemovedObject(kind.value, uid, measured_at) for kind, uid in before if uid not in present],
    )


def _copy(kind: ObjectKind, objects: int, since: int) -> CopyStatus:
    return CopyStatus(resource=kind.value, state=CopyState.SYNCED, since=since, objects=objects)


def _gpu_nodes(fleet: Fleet, cluster: int, at: int) -> Iterable[FleetNode]:
    """Return the nodes with GPU resources that are not deleted at an instant."""
    every = (fleet.node(cluster, number) for number in range(1, fleet.spec.nodes + 1))
    return (
        one
        for one in every
        if one.identity.k8s_node_uid is not None
        and not one.is_passthrough
        and not any(fault.kind is FaultKind.NODE_DELETED for fault in fleet.node_faults(one, at))
    )


def _nodes(fleet: Fleet, cluster: int, at: int) -> list[ClusterNode]:
    return [
        ClusterNode(
            uid=node.identity.k8s_node_uid or "",
            name=node.name,
            machine_id=node.identity.machine_id or "",
            system_uuid=node.identity.system_uuid or "",
            resources=_resources(fleet, node, at),
        )
        for node in _gpu_nodes(fleet, cluster, at)
    ]


def _resources(fleet: Fleet, node: FleetNode, at: int) -> tuple[NodeGpuResource, ...]:
    unhealthy = sum(one.kind is FaultKind.GPU_UNALLOCATABLE for one in fleet.node_faults(node, at))
    counts = Counter(_resource(part.slot.profile.name) for gpu in node.gpus for part in gpu.parts if part.slot)
    if not counts:
        size = len(node.gpus)
        one = NodeGpuResource(
            name=GPU_RESOURCE, kind=GpuResourceKind.GPU, capacity=size, allocatable=max(0, size - unhealthy)
        )
        return (one,)
    return tuple(
        NodeGpuResource(name=name, kind=GpuResourceKind.MIG, capacity=count, allocatable=count)
        for name, count in sorted(counts.items())
    )


def _pods(fleet: Fleet, cluster: int, at: int) -> list[ClusterPod]:
    pods = {}
    for node in _gpu_nodes(fleet, cluster, at):
        profiles = {
            part.view.key: _resource(part.slot.profile.name) for gpu in node.gpus for part in gpu.parts if part.slot
        }
        for held in present_holdings(fleet, node, at):
            if held.holder.kind is HolderKind.POD:
                pods[held.holder.id] = _pod(node, held, profiles.get(held.view.key, GPU_RESOURCE))
    return list(pods.values())


def _pod(node: FleetNode, held: PresentHolding, resource: str) -> ClusterPod:
    kind = GpuResourceKind.MIG if held.view.kind is ViewKind.MIG else GpuResourceKind.GPU
    return ClusterPod(
        uid=held.holder.id,
        namespace=held.holder.namespace,
        name=held.holder.name,
        node=node.name,
        phase="Running",
        created=held.since,
        started=held.since,
        requests=(GpuRequest(resource=resource, kind=kind, count=1),),
        controller=held.holder.owners[0] if held.holder.owners else None,
        owners=held.holder.owners,
    )


def _resource(profile: str) -> str:
    return f"nvidia.com/mig-{profile}"
