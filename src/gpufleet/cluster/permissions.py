"""Permissions (RBAC) that the collector needs, each with its reason. Pure."""

import msgspec

from gpufleet.config.cluster import ClusterAgentConfig

_READ_ALL = ("list", "watch")


class Permission(msgspec.Struct, frozen=True):
    """A rule of a role.

    Attributes:
        group, resource: API group, empty for the core group, and plural name.
        verbs: permitted verbs.
        reason: what the collector reads, or writes, and what is missing without it.
        names: the only objects; empty means all.
        is_namespaced: whether a Role in the Lease's namespace is enough.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    reason: str
    names: tuple[str, ...] = ()
    is_namespaced: bool = False

    @property
    def name(self) -> str:
        """Return `plural.group`, as kubectl writes it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


OWNERS = (
    ("apps", "replicasets", "Deployment of a pod"),
    ("apps", "deployments", "owner of a Deployment, such as an operator's object"),
    ("apps", "statefulsets", "owner of a StatefulSet"),
    ("apps", "daemonsets", "owner of a DaemonSet"),
    ("batch", "jobs", "CronJob, JobSet or other owner of a Job, and its queue"),
    ("batch", "cronjobs", "owner of a CronJob"),
    ("jobset.x-k8s.io", "jobsets", "queue and owner of a JobSet"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets", "queue and owner of a LeaderWorkerSet"),
    ("kueue.x-k8s.io", "workloads", "owner of a pod group of Kueue"),
    ("ray.io", "rayclusters", "RayJob or RayService of a RayCluster, and its queue"),
    ("ray.io", "rayjobs", "queue and owner of a RayJob"),
    ("ray.io", "rayservices", "queue and owner of a RayService"),
    ("kubeflow.org", "pytorchjobs", "queue and owner of a PyTorchJob"),
    ("kubeflow.org", "mpijobs", "queue and owner of an MPIJob"),
    ("trainer.kubeflow.org", "trainjobs", "queue and owner of a TrainJob"),
    ("argoproj.io", "workflows", "CronWorkflow or other owner of a Workflow"),
    ("kubevirt.io", "virtualmachineinstances", "VirtualMachine of a launcher pod"),
    ("kubevirt.io", "virtualmachines", "owner of a VirtualMachine"),
)
"""Kinds of owners: group, resource, and what a read of their metadata shows. The role can have any other kind too."""


def required_permissions(config: ClusterAgentConfig) -> tuple[Permission, ...]:
    """Return the permissions without which a part of the configured collection fails. Owners are not among them."""
    collect = config.collect
    found = [
        Permission(
            "", "namespaces", ("get",), "UID of kube-system: evidence of the cluster's identity", ("kube-system",)
        ),
        Permission("", "nodes", _READ_ALL, "nodes: identity, zone, GPU resources, conditions, taints"),
    ]
    if collect.pods:
        found.append(
            Permission("", "pods", _READ_ALL, "pods with GPU requests or claims: names, node, owner reference")
        )
    if collect.resource_slices:
        reason = "devices of DRA drivers: UUIDs and PCI addresses"
        found.append(Permission("resource.k8s.io", "resourceslices", _READ_ALL, reason))
    if collect.resource_claims:
        reason = "devices that are allocated to resource claims"
        found.append(Permission("resource.k8s.io", "resourceclaims", _READ_ALL, reason))
    if collect.virtual_machines:
        reason = "virtual machines with devices: node, VSOCK, migration"
        found.append(Permission("kubevirt.io", "virtualmachineinstances", _READ_ALL, reason))
    if config.lease.enabled:
        reason = "the Lease by which replicas elect a leader: the only object that is written"
        found += [
            Permission("coordination.k8s.io", "leases", ("get", "update"), reason, (config.lease.name,), True),
            Permission("coordination.k8s.io", "leases", ("create",), "first creation of the Lease", (), True),
        ]
    return tuple(found)


def owner_permissions() -> tuple[Permission, ...]:
    """Return the permissions for the owner chains of pods. Without one, chains end at owners of this kind."""
    return tuple(Permission(group, resource, ("get",), reason) for group, resource, reason in OWNERS)
