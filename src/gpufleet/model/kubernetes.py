"""Objects of a Kubernetes cluster: nodes, pods, devices and claims of DRA, virtual machines, and owner chains.

Every text is bounded and has no control characters. A text is empty if the API server does not report it. Instants are
nanoseconds since 1970 UTC.
"""

import enum
from typing import Annotated

import msgspec

from gpufleet.model.holdings import MAX_LABELS, MAX_OWNERS, Count, ObjectText, Owner

MAX_DEVICES = 128
"""Maximum number of devices of a ResourceSlice, allocated devices of a claim, and devices of a virtual machine."""

MAX_RESOURCES = 64
"""Maximum number of GPU resources of a node or pod."""

MAX_CONDITIONS = 64
"""Maximum number of conditions, and of taints, of a node."""

MAX_REFERENCES = 256
"""Maximum number of claims of a pod, and of pods of a claim: the limit of the API server."""

ObjectKey = Annotated[str, msgspec.Meta(max_length=320)]
"""Key in a map of an object, such as the name of a label. The longest label in Kubernetes has 253, a slash, and 63."""

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Number or instant of an object: an integer of 64 bits."""

Labels = Annotated[dict[ObjectKey, ObjectText], msgspec.Meta(max_length=MAX_LABELS)]


class GpuResourceKind(enum.StrEnum):
    """Kind of device behind an extended resource, by its name."""

    GPU = "gpu"  # whole GPUs: nvidia.com/gpu
    SHARED = "shared"  # replicas of GPUs under time-slicing or MPS: nvidia.com/gpu.shared
    MIG = "mig"  # MIG devices: nvidia.com/mig-1g.10gb
    PRODUCT = "product"  # named after a product: passthrough GPUs and vGPU types of KubeVirt


class NodeGpuResource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An extended resource of GPUs on a node.

    Attributes:
        name: resource name.
        kind: kind of device, by the name. `nvidia.com/gpu` can be shared too: the name does not show it.
        capacity, allocatable: counts; None if not reported or not a whole number. Unhealthy devices are not
            allocatable.
    """

    name: ObjectText
    kind: GpuResourceKind
    capacity: Count | None = None
    allocatable: Count | None = None


class NodeCondition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Condition of a node; `status` is True, False or Unknown, `since` its last transition."""

    kind: ObjectText
    status: ObjectText
    reason: ObjectText = ""
    since: Integer | None = None


class NodeTaint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Taint of a node."""

    key: ObjectText
    effect: ObjectText
    value: ObjectText = ""


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Node of a cluster.

    Attributes:
        uid, name: as in the API; another node can get the same name later.
        provider_id: `spec.providerID`.
        zone, region, instance_type: well-known labels of the node.
        machine_id, system_uuid, boot_id: `status.nodeInfo`, evidence of identity.
        kernel_version, kubelet_version, architecture: `status.nodeInfo`.
        labels: those on the allow-list.
        resources: GPU resources, in order of name.
        conditions, taints: all of them, up to `MAX_CONDITIONS` each.
        unschedulable: whether the node is cordoned.
        created: creation of the object.
    """

    uid: ObjectText
    name: ObjectText
    provider_id: ObjectText = ""
    zone: ObjectText = ""
    region: ObjectText = ""
    instance_type: ObjectText = ""
    machine_id: ObjectText = ""
    system_uuid: ObjectText = ""
    boot_id: ObjectText = ""
    kernel_version: ObjectText = ""
    kubelet_version: ObjectText = ""
    architecture: ObjectText = ""
    labels: Labels = {}
    resources: Annotated[tuple[NodeGpuResource, ...], msgspec.Meta(max_length=MAX_RESOURCES)] = ()
    conditions: Annotated[tuple[NodeCondition, ...], msgspec.Meta(max_length=MAX_CONDITIONS)] = ()
    taints: Annotated[tuple[NodeTaint, ...], msgspec.Meta(max_length=MAX_CONDITIONS)] = ()
    unschedulable: bool = False
    created: Integer | None = None


class GpuRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Number of devices of an extended resource that the scheduler reserves for a pod."""

    resource: ObjectText
    kind: GpuResourceKind
    count: Count


class ChainEnd(enum.StrEnum):
    """Reason why an owner chain ends."""

    TOP = "top"  # the last owner has no controller
    FORBIDDEN = "forbidden"  # RBAC does not permit to read the last owner
    UNKNOWN_KIND = "unknown_kind"  # the API server does not serve the kind of the last owner
    NOT_FOUND = "not_found"  # the last owner does not exist any more
    REPLACED = "replaced"  # another object has the name of the last owner
    CYCLE = "cycle"  # the last owner is controlled by an earlier one
    DEPTH = "depth"  # `MAX_OWNERS` is reached
    UNREACHABLE = "unreachable"  # the API server gave no answer; the next walk tries again
    NOT_READ = "not_read"  # only the pod's own reference is known


class ClusterPod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pod of a cluster.

    Attributes:
        uid, namespace, name: as in the API.
        node: name of its node, or empty before it is scheduled.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        created, started: creation of the object, and acceptance by the kubelet.
        deleting: whether deletion was requested: the pod is terminating.
        requests: GPU resources, in order of name.
        claims: names of its resource claims in its namespace, as far as they exist.
        labels, annotations: those on the allow-list.
        controller: its controller reference, or None.
        owners: controllers, the nearest first; only `controller` before the owner walk.
        chain_end: why `owners` ends where it ends.
        queue: queue of a batch scheduler, from the pod or the nearest owner that names it.
        vmi: UID of the VirtualMachineInstance of a launcher pod, or empty.
    """

    uid: ObjectText
    namespace: ObjectText
    name: ObjectText
    node: ObjectText = ""
    phase: ObjectText = ""
    created: Integer | None = None
    started: Integer | None = None
    deleting: bool = False
    requests: Annotated[tuple[GpuRequest, ...], msgspec.Meta(max_length=MAX_RESOURCES)] = ()
    claims: Annotated[tuple[ObjectText, ...], msgspec.Meta(max_length=MAX_REFERENCES)] = ()
    labels: Labels = {}
    annotations: Labels = {}
    controller: Owner | None = None
    owners: Annotated[tuple[Owner, ...], msgspec.Meta(max_length=MAX_OWNERS)] = ()
    chain_end: ChainEnd = ChainEnd.NOT_READ
    queue: ObjectText = ""
    vmi: ObjectText = ""


class ClusterDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Device of a ResourceSlice (DRA).

    Attributes:
        driver, pool, name: identity of the device in claims.
        generation: of the pool. Only slices of the newest generation of a pool are valid.
        node: name of the node, or empty if the device is not of one node.
        uuid: UUID of the GPU or MIG device as the driver reports it.
        pci_address: PCI address as sysfs writes it.
        kind: attribute `type`, such as `gpu`, `mig` or `vfio`.
        parent_uuid: UUID of the GPU of a MIG device.
        attributes: other attributes on the allow-list, as text.
    """

    driver: ObjectText
    pool: ObjectText
    name: ObjectText
    generation: Integer = 0
    node: ObjectText = ""
    uuid: ObjectText = ""
    pci_address: ObjectText = ""
    kind: ObjectText = ""
    parent_uuid: ObjectText = ""
    attributes: Labels = {}


class ClusterSlice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """ResourceSlice (DRA): some devices of a pool.

    Attributes:
        uid, name: as in the API.
        driver, pool, generation, node: those of all its devices; `node` is empty if each device has its own.
        slices: number of slices of the pool in this generation; the pool is incomplete with fewer.
        devices: the devices.
    """

    uid: ObjectText
    name: ObjectText
    driver: ObjectText
    pool: ObjectText
    generation: Integer = 0
    slices: Integer = 0
    node: ObjectText = ""
    devices: Annotated[tuple[ClusterDevice, ...], msgspec.Meta(max_length=MAX_DEVICES)] = ()


class AllocatedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Device that a claim has, by its identity in ResourceSlices.

    Attributes:
        driver, pool, name: identity of the device.
        request: name of the request in the claim.
        admin_access: whether the access is for administration, which does not reserve the device.
    """

    driver: ObjectText
    pool: ObjectText
    name: ObjectText
    request: ObjectText = ""
    admin_access: bool = False


class ClaimUser(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Object that may use a claim: a pod (`pods`) unless `resource` has another value."""

    resource: ObjectText
    name: ObjectText
    uid: ObjectText


class ClusterClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """ResourceClaim (DRA) with allocated GPU devices.

    Attributes:
        uid, namespace, name: as in the API.
        devices: the allocated GPU devices.
        reserved_for: objects that may use the claim.
        created: creation of the object.
    """

    uid: ObjectText
    namespace: ObjectText
    name: ObjectText
    devices: Annotated[tuple[AllocatedDevice, ...], msgspec.Meta(max_length=MAX_DEVICES)] = ()
    reserved_for: Annotated[tuple[ClaimUser, ...], msgspec.Meta(max_length=MAX_REFERENCES)] = ()
    created: Integer | None = None


class VmiDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Device in the specification of a VirtualMachineInstance.

    Attributes:
        name: of the device in the specification.
        device_name: extended resource, as `nvidia.com/GA102GL_A10`, or empty with a claim.
        claim, request: resource claim in the specification and its request, or empty.
        host_device: whether it is under `hostDevices` and not under `gpus`.
    """

    name: ObjectText
    device_name: ObjectText = ""
    claim: ObjectText = ""
    request: ObjectText = ""
    host_device: bool = False


class VmiMigration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Newest migration of a VirtualMachineInstance."""

    source_node: ObjectText = ""
    target_node: ObjectText = ""
    source_pod: ObjectText = ""
    target_pod: ObjectText = ""
    completed: bool = False
    failed: bool = False
    started: Integer | None = None
    ended: Integer | None = None


class ClusterVmi(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """VirtualMachineInstance of KubeVirt.

    Attributes:
        uid, namespace, name: as in the API.
        node: node on which it runs, or empty.
        phase: as in the API, as `Running`.
        created: creation of the object.
        deleting: whether deletion was requested.
        autoattach_vsock: whether the user requested a VSOCK.
        vsock_cid: its CID, or None without VSOCK.
        devices: `gpus`, then `hostDevices`.
        labels, annotations: those on the allow-list.
        pods: UID of each active launcher pod to its node.
        migration: newest migration, or None.
        machine: the VirtualMachine that controls it, or None.
        guest_os: name of the guest's operating system as its guest agent reports it.
    """

    uid: ObjectText
    namespace: ObjectText
    name: ObjectText
    node: ObjectText = ""
    phase: ObjectText = ""
    created: Integer | None = None
    deleting: bool = False
    autoattach_vsock: bool = False
    vsock_cid: Count | None = None
    devices: Annotated[tuple[VmiDevice, ...], msgspec.Meta(max_length=MAX_DEVICES)] = ()
    labels: Labels = {}
    annotations: Labels = {}
    pods: Annotated[dict[ObjectKey, ObjectText], msgspec.Meta(max_length=MAX_LABELS)] = {}
    migration: VmiMigration | None = None
    machine: Owner | None = None
    guest_os: ObjectText = ""


class CopyState(enum.StrEnum):
    """State of a local copy of a resource."""

    STARTING = "starting"  # no complete list yet
    SYNCED = "synced"
    STALE = "stale"  # the API server is not reachable or rejects requests; the objects are as of `since`
    FORBIDDEN = "forbidden"  # RBAC does not permit to list or watch the resource; the objects are as of `since`
    NOT_SERVED = "not_served"  # the API server does not have the resource; the objects are as of `since`


class CopyStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Status of a local copy of a resource.

    Attributes:
        resource: `plural.group`.
        state: the state.
        since: begin of the state `starting` or `synced`; otherwise the last instant at which the copy was known to be
            current.
        detail: the error of a state other than `synced`.
        objects: number of objects in the copy.
        rejected: number of present objects that could not be decoded.
        example: the first of these, and the reason.
        is_complete: false if objects beyond the limit were left out.
    """

    resource: ObjectText
    state: CopyState
    since: Integer
    detail: ObjectText = ""
    objects: Count = 0
    rejected: Count = 0
    example: ObjectText = ""
    is_complete: bool = True
