"""Kubernetes objects of a cluster with GPUs, as the API server has them."""

from typing import Any

from gpufleet.holders.kubernetes.resources import (
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    VIRTUAL_MACHINE_INSTANCES,
    ApiResource,
)
from tests.fakes.kube_api import FakeKind, ResourceKey

VMI_KIND = FakeKind("kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance")

REPLICA_SETS = ApiResource("apps", "v1", "replicasets")
DEPLOYMENTS = ApiResource("apps", "v1", "deployments")
STATEFUL_SETS = ApiResource("apps", "v1", "statefulsets")
DAEMON_SETS = ApiResource("apps", "v1", "daemonsets")
JOBS = ApiResource("batch", "v1", "jobs")
DEFINITIONS = ApiResource("apiextensions.k8s.io", "v1", "customresourcedefinitions", is_namespaced=False)

Object = dict[str, Any]

NOWHERE = {"test.gpufleet.dev/nowhere": "true"}
"""Selector of no node."""

SELECTOR = {"matchLabels": {"app": "a"}}
TEMPLATE: Object = {
    "metadata": {"labels": {"app": "a"}},
    "spec": {
        "containers": [{"name": "main", "image": "none"}],
        "nodeSelector": NOWHERE,  # a DaemonSet has pods otherwise
        "restartPolicy": "Always",
    },
}
JOB_TEMPLATE: Object = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}
OWNER_SPECS: dict[str, Object] = {
    "ReplicaSet": {"replicas": 0, "selector": SELECTOR, "template": TEMPLATE},
    "Deployment": {"replicas": 0, "selector": SELECTOR, "template": TEMPLATE},
    "StatefulSet": {"replicas": 0, "serviceName": "s", "selector": SELECTOR, "template": TEMPLATE},
    "DaemonSet": {"selector": SELECTOR, "template": TEMPLATE},
    "Job": {"parallelism": 0, "template": JOB_TEMPLATE},
    "CronJob": {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": {"template": JOB_TEMPLATE}}},
}
"""Specification of each built-in kind of owner, for which controllers create nothing."""


def key_of(resource: ApiResource) -> ResourceKey:
    """Return the key of a resource in the fake API server."""
    return resource.group, resource.version, resource.plural


NODE_KEY, POD_KEY = key_of(NODES), key_of(PODS)
SLICE_KEY, CLAIM_KEY = key_of(RESOURCE_SLICES), key_of(RESOURCE_CLAIMS)
VMI_KEY = key_of(VIRTUAL_MACHINE_INSTANCES)


def gpu_node(name: str, gpus: int = 8) -> Object:
    """Return a node with GPUs."""
    counts = {"cpu": "64", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "zone-a"}},
        "status": {"capacity": counts, "allocatable": counts},
    }


def gpu_pod(name: str, *, node: str = "", owner: Object | None = None, phase: str = "Running") -> Object:
    """Return a pod that requests a GPU; `owner` is the stored object that controls it."""
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    metadata: Object = {"name": name, "namespace": "test"}
    if owner is not None:
        metadata["ownerReferences"] = [controller(owner)]
    return {
        "metadata": metadata,
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "train", "resources": resources}],
            "automountServiceAccountToken": False,
        },
        "status": {"phase": phase},
    }


def controller(owner: Object) -> Object:
    """Return the controller reference to a stored object."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }


def definition(resource: ApiResource, kind: str) -> Object:
    """Return the CustomResourceDefinition of a resource, without a schema of its fields."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": resource.name,
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},  # required in groups of Kubernetes
        },
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.is_namespaced else "Cluster",
            "names": {"plural": resource.plural, "singular": kind.lower(), "kind": kind},
            "versions": [version],
        },
    }
