"""Nodes: GPU resources, conditions, taints, and evidence of identity."""

import msgspec

from gpufleet.fleet.gpu_resources import gpu_resource_kind
from gpufleet.holders.kubernetes.parse.fields import (
    LabelSelection,
    ObjectMetadata,
    instant,
    required,
    text,
    whole_count,
)
from gpufleet.model.kubernetes import (
    MAX_CONDITIONS,
    MAX_RESOURCES,
    ClusterNode,
    NodeCondition,
    NodeGpuResource,
    NodeTaint,
)

NODE_LABELS = LabelSelection.of(
    (
        *("nvidia.com/gpu.*", "nvidia.com/mig.*", "nvidia.com/cuda.*", "nvidia.com/vgpu.*", "nvidia.com/gpu"),
        *("nvidia.com/mps.capable", "feature.node.kubernetes.io/pci-10de.present", "amd.com/gpu.*"),
        *("topology.kubernetes.io/*", "node.kubernetes.io/instance-type", "node-role.kubernetes.io/*"),
        *("cloud.google.com/gke-nodepool", "cloud.google.com/gke-accelerator", "eks.amazonaws.com/nodegroup"),
        *("karpenter.sh/nodepool", "kubernetes.azure.com/agentpool", "kubevirt.io/schedulable"),
    )
)
"""Labels of nodes that are collected by default."""

_ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_REGIONS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")


class _Taint(msgspec.Struct):
    key: str
    effect: str
    value: str | None = None


class _Spec(msgspec.Struct):
    provider_id: str | None = msgspec.field(name="providerID", default=None)
    taints: list[_Taint] | None = None
    unschedulable: bool | None = None


class _Condition(msgspec.Struct):
    type: str
    status: str
    reason: str | None = None
    since: str | None = msgspec.field(name="lastTransitionTime", default=None)


class _NodeInfo(msgspec.Struct):
    machine_id: str | None = msgspec.field(name="machineID", default=None)
    system_uuid: str | None = msgspec.field(name="systemUUID", default=None)
    boot_id: str | None = msgspec.field(name="bootID", default=None)
    kernel: str | None = msgspec.field(name="kernelVersion", default=None)
    kubelet: str | None = msgspec.field(name="kubeletVersion", default=None)
    architecture: str | None = None


class _Status(msgspec.Struct):
    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    conditions: list[_Condition] | None = None
    info: _NodeInfo | None = msgspec.field(name="nodeInfo", default=None)


class _NodeObject(msgspec.Struct):
    metadata: ObjectMetadata
    spec: _Spec | None = None
    status: _Status | None = None


_NODES = msgspec.json.Decoder(_NodeObject)


def parse_node(data: bytes | msgspec.Raw, labels: LabelSelection = NODE_LABELS) -> ClusterNode:
    """Decode a node.

    Args:
        data: its JSON.
        labels: allow-list of its labels.

    Raises:
        msgspec.DecodeError: if a field has another type than the API's.
        WireError: if it has no UID or name.
    """
    node = _NODES.decode(data)
    metadata, spec, status = node.metadata, node.spec or _Spec(), node.status or _Status()
    info, all_labels = status.info or _NodeInfo(), metadata.labels or {}
    return ClusterNode(
        uid=required(metadata.uid, "metadata.uid"),
        name=required(metadata.name, "metadata.name"),
        provider_id=text(spec.provider_id),
        zone=_first(all_labels, _ZONES),
        region=_first(all_labels, _REGIONS),
        instance_type=_first(all_labels, _TYPES),
        machine_id=text(info.machine_id),
        system_uuid=text(info.system_uuid),
        boot_id=text(info.boot_id),
        kernel_version=text(info.kernel),
        kubelet_version=text(info.kubelet),
        architecture=text(info.architecture),
        labels=labels.select(metadata.labels),
        resources=_resources(status.capacity or {}, status.allocatable or {}),
        conditions=tuple(
            NodeCondition(
                kind=text(condition.type),
                status=text(condition.status),
                reason=text(condition.reason),
                since=instant(condition.since),
            )
            for condition in (status.conditions or [])[:MAX_CONDITIONS]
        ),
        taints=tuple(
            NodeTaint(key=text(taint.key), effect=text(taint.effect), value=text(taint.value))
            for taint in (spec.taints or [])[:MAX_CONDITIONS]
        ),
        unschedulable=bool(spec.unschedulable),
        created=instant(metadata.created),
    )


def _first(labels: dict[str, str], names: tuple[str, ...]) -> str:
    return next((text(labels[name]) for name in names if labels.get(name)), "")


def _resources(capacity: dict[str, str | int], allocatable: dict[str, str | int]) -> tuple[NodeGpuResource, ...]:
    kinds = {name: gpu_resource_kind(name) for name in sorted({*capacity, *allocatable})}
    found = [
        NodeGpuResource(
            name=text(name),
            kind=kind,
            capacity=whole_count(capacity.get(name)),
            allocatable=whole_count(allocatable.get(name)),
        )
        for name, kind in kinds.items()
        if kind is not None
    ]
    return tuple(found[:MAX_RESOURCES])
