"""Objects of a cluster with every kind of owner, at a real API server."""

from collections.abc import Mapping
from typing import NamedTuple

from gpufleet.holders.kubernetes.resources import (
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VIRTUAL_MACHINE_INSTANCES,
    ApiResource,
)
from tests.holders.kubevirt.objects import NODE, vmi_object
from tests.support.kube import KubeCluster, KubeServer
from tests.support.kube_objects import (
    DAEMON_SETS,
    DEFINITIONS,
    DEPLOYMENTS,
    JOBS,
    OWNER_SPECS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Object,
    controller,
    definition,
    gpu_node,
    gpu_pod,
)

VIRTUAL_MACHINES = ApiResource("kubevirt.io", "v1", "virtualmachines")
JOB_SETS = ApiResource("jobset.x-k8s.io", "v1alpha2", "jobsets")
CRON_JOBS = ApiResource("batch", "v1beta1", "cronjobs")
CUSTOM = {
    "ResourceSlice": RESOURCE_SLICES,
    "ResourceClaim": RESOURCE_CLAIMS,
    "VirtualMachineInstance": VIRTUAL_MACHINE_INSTANCES,
    "VirtualMachine": VIRTUAL_MACHINES,
    "JobSet": JOB_SETS,
}
"""Kinds that the API server of the tests does not have."""

OWNERS = {
    "ReplicaSet": REPLICA_SETS,
    "Deployment": DEPLOYMENTS,
    "StatefulSet": STATEFUL_SETS,
    "DaemonSet": DAEMON_SETS,
    "Job": JOBS,
    "CronJob": CRON_JOBS,
    **CUSTOM,
}
CHAINS = {
    "web": ("ReplicaSet", "Deployment"),
    "db": ("StatefulSet",),
    "node": ("DaemonSet",),
    "batch": ("Job", "CronJob"),
    "set": ("JobSet",),
    "launcher": ("VirtualMachineInstance", "VirtualMachine"),
}
"""Pod to its owners."""

GUEST = "train-0"
DEVICE = {"driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"}
RESOURCE_SLICE: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": f"{NODE}-gpu.nvidia.com"},
    "spec": {
        "driver": DEVICE["driver"],
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": DEVICE["device"], "attributes": {"type": {"string": "gpu"}}}],
    },
}
RESOURCE_CLAIM: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "one-gpu"},
    "status": {"allocation": {"devices": {"results": [{"request": "gpu", **DEVICE}]}}},
}


class Site(NamedTuple):
    """API server, and name to UID of the pods that it has."""

    server: KubeServer
    pods: Mapping[str, str]


async def create_objects(cluster: KubeCluster) -> dict[str, str]:
    """Create a node, its devices, and the pods of `CHAINS` with their owners; return name to UID of the pods."""
    for kind, resource in CUSTOM.items():
        await cluster.create(DEFINITIONS, definition(resource, kind))
    await cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", **gpu_node(NODE)})
    await cluster.create(RESOURCE_SLICES, RESOURCE_SLICE)
    await cluster.create(RESOURCE_CLAIMS, RESOURCE_CLAIM)
    pods = {}
    for name, chain in CHAINS.items():
        owner = None
        for kind in reversed(chain):
            owner = await _create_owner(cluster, kind, name, owner)
        pod = {"apiVersion": "v1", "kind": "Pod", **gpu_pod(name, node=NODE, owner=owner)}
        pod["metadata"]["namespace"] = cluster.namespace
        pods[name] = (await cluster.create(PODS, pod))["metadata"]["uid"]
    return pods


async def _create_owner(cluster: KubeCluster, kind: str, name: str, owner: Object | None) -> Object:
    resource = OWNERS[kind]
    content: Object = {"metadata": {"name": name}, "spec": OWNER_SPECS.get(kind, {})}
    if kind == "VirtualMachineInstance":
        content = vmi_object(GUEST, namespace=cluster.namespace)
    content |= {"apiVersion": f"{resource.group}/{resource.version}", "kind": kind}
    if owner is not None:
        content["metadata"]["ownerReferences"] = [controller(owner)]
    return await cluster.create(resource, content)
