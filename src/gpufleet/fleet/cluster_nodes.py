"""Kubernetes nodes and the machines of a hub: which node is which machine. Pure.

The UID of the Node object, the system UUID and the machine id identify a node. A name alone counts only if no other
evidence contradicts it. If several nodes can be a machine, none is chosen, and all of them are named.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.fleet.cluster_objects import is_present
from gpufleet.model.kubernetes import ClusterNode, NodeTaint
from gpufleet.model.machine import Machine
from gpufleet.model.stored.kubernetes import StoredObject

HIDING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep pods without a toleration from a node."""

POOL_LABELS = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
    "karpenter.sh/capacity-type",
    "node-pool.cluster.x-k8s.io/name",
    "node.coreweave.cloud/class",
    "cloud.google.com/gke-accelerator",
    "nvidia.com/gpu.product",
)
"""Labels that name the pool or class of a node."""


class NodeMatch(msgspec.Struct, frozen=True):
    """Kubernetes node of a machine.

    Attributes:
        node: the node, or None if none or several can be the machine.
        candidates: names of the nodes if there are several.
    """

    node: ClusterNode | None = None
    candidates: tuple[str, ...] = ()


class NodeDeletion(msgspec.Struct, frozen=True):
    """Deletion of the Kubernetes node of a machine.

    Attributes:
        at: when, nanoseconds since 1970.
        is_recreated: whether a node that exists now can be the machine.
    """

    at: int
    is_recreated: bool


def search_names(machine: Machine) -> tuple[str, ...]:
    """Return the names by which the node of a machine is searched, as `object_names` has them."""
    texts = (machine.k8s_node_name, machine.name, machine.machine_id, machine.system_uuid)
    return tuple(dict.fromkeys(text.lower() for text in texts if text))


def match_node(machine: Machine, nodes: Iterable[ClusterNode]) -> NodeMatch:
    """Return the node of a machine.

    Args:
        machine: evidence of the machine.
        nodes: nodes of its cluster that exist now; others than those of the machine can be among them.
    """
    listed = list(nodes)
    for one in listed:
        if machine.k8s_node_uid and one.uid == machine.k8s_node_uid:
            return NodeMatch(one)
    identified = [one for one in listed if _agrees(machine, one) and not _contradicts(machine, one)]
    if not identified:
        name = (machine.k8s_node_name or machine.name).lower()
        if machine.k8s_node_uid is None:  # otherwise the node of this name has another UID
            identified = [one for one in listed if one.name == name and not _contradicts(machine, one)]
    if len(identified) > 1:
        return NodeMatch(None, tuple(sorted(one.name for one in identified)))
    return NodeMatch(identified[0] if identified else None)


def node_deletion(machine: Machine, nodes: Iterable[StoredObject], at: int) -> NodeDeletion | None:
    """Return the reported deletion of the Kubernetes node of a machine; None if there is none.

    A node that only its name connects with the machine is not its node. A node that exists can be the machine even if
    they have only the name in common.

    Args:
        machine: evidence of the machine.
        nodes: nodes of its cluster as last reported, deleted ones too.
        at: the instant of `judged_at`.
    """
    listed = [(stored, stored.record) for stored in nodes if isinstance(stored.record, ClusterNode)]
    ends = [
        stored.ended_at
        for stored, node in listed
        if stored.ended_at is not None
        and (node.uid == machine.k8s_node_uid or (_agrees(machine, node) and not _contradicts(machine, node)))
    ]
    if not ends:
        return None
    present = [node for stored, node in listed if is_present(stored, at)]
    match, name = match_node(machine, present), (machine.k8s_node_name or machine.name).lower()
    is_same_name = any(one.name == name and not _contradicts(machine, one) for one in present)
    return NodeDeletion(max(ends), is_recreated=bool(match.node or match.candidates or is_same_name))


def hiding_taints(node: ClusterNode) -> tuple[NodeTaint, ...]:
    """Return the taints that keep pods without a toleration from a node's GPUs."""
    return tuple([one for one in node.taints if one.effect in HIDING_EFFECTS])


def pool_labels(node: ClusterNode) -> dict[str, str]:
    """Return the labels of a node that name its pool or class."""
    return {name: node.labels[name] for name in POOL_LABELS if name in node.labels}


def _evidence(machine: Machine, node: ClusterNode) -> Sequence[tuple[str, str]]:
    pairs = ((machine.system_uuid, node.system_uuid), (machine.machine_id, node.machine_id))
    return [(ours.lower(), theirs.lower()) for ours, theirs in pairs if ours and theirs]


def _agrees(machine: Machine, node: ClusterNode) -> bool:
    return any(ours == theirs for ours, theirs in _evidence(machine, node))


def _contradicts(machine: Machine, node: ClusterNode) -> bool:
    return any(ours != theirs for ours, theirs in _evidence(machine, node))
