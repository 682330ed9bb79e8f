"""Allocation: devices assigned to a tenant for an interval."""

import datetime as dt
import enum
from typing import Annotated

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
"""Externally supplied name, bounded for display and storage."""


class AllocationKind(enum.StrEnum):
    """Kind of allocation; it decides which sources may answer for it."""

    BARE_METAL = "bare_metal"  # a whole machine: the host's own readings answer
    GPU_SLICE = "gpu_slice"  # a virtual machine: only readings from inside it, or of its own vGPU instance, answer
    KUBERNETES_POD = "kubernetes_pod"
    SLURM_JOB = "slurm_job"
    KUBEVIRT_VMI = "kubevirt_vmi"


VM_KINDS = frozenset({AllocationKind.GPU_SLICE, AllocationKind.KUBEVIRT_VMI})
"""Kinds whose target is a virtual machine."""

WORKLOAD_KINDS = frozenset({AllocationKind.KUBERNETES_POD, AllocationKind.SLURM_JOB})
"""Kinds whose target is a holder of devices: the readings of its devices answer."""


class Target(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Target of an allocation; the kind determines the required fields.

    Attributes:
        cluster: cluster of the target.
        machine: the hub's machine id, or the machine's host name if the name is unique in the cluster
            (bare_metal).
        vm_uuid: UUID of the virtual machine (gpu_slice, kubevirt_vmi).
        pod_uid: UID of the pod (kubernetes_pod).
        job_id: id of the job, or `SLURM_CLUSTER/ID` (slurm_job).
    """

    cluster: Name
    machine: Name | None = None
    vm_uuid: Name | None = None
    pod_uid: Name | None = None
    job_id: Name | None = None


class AllocationSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `PUT /v1/allocations/{id}`.

    Attributes:
        kind: kind of allocation.
        target: machine, VM, pod or job.
        tenant: paying tenant.
        team: owning team.
        devices: UUIDs or PCI addresses, if only some of the machine's devices belong to the allocation.
        expected: expected number of GPUs per class name; an empty map expects nothing.
        valid_from: start; None means the time of the request.
        valid_to: end, after the start; None means open.
    """

    kind: AllocationKind
    target: Target
    tenant: Name | None = None
    team: Name | None = None
    devices: tuple[Name, ...] | None = None
    expected: dict[Name, Annotated[int, msgspec.Meta(ge=0, le=100_000)]] = {}
    valid_from: dt.datetime | None = None
    valid_to: dt.datetime | None = None


REQUIRED_TARGET_FIELD = {
    AllocationKind.BARE_METAL: "machine",
    AllocationKind.GPU_SLICE: "vm_uuid",
    AllocationKind.KUBERNETES_POD: "pod_uid",
    AllocationKind.SLURM_JOB: "job_id",
    AllocationKind.KUBEVIRT_VMI: "vm_uuid",
}
"""The field of `Target` that each kind requires; the other three of these fields stay unset."""


class Binding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Machine and devices of an allocation in an interval, by identity: later changes of names do not affect it.

    Attributes:
        machine: the hub's machine id.
        devices: listed device to the keys of its views on that machine; a PCI address at which nothing was seen yet is
            missing, and one at which another tenant's GPU was seen has none. None for the whole machine.
        parents: listed MIG device to the key of the GPU that contains it; unknown ones are missing.
        since: start; None means the start of the allocation.
        until: end, excluded; None means the end of the allocation.
    """

    machine: str
    devices: dict[str, tuple[str, ...]] | None = None
    parents: dict[str, str] = {}
    since: dt.datetime | None = None
    until: dt.datetime | None = None


class Allocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored allocation.

    Attributes:
        id: chosen by the client.
        generation: 1 at first, incremented whenever a PUT changes the spec.
        spec: spec of the client, with `valid_from` filled in.
        created_at: time of the first PUT.
        closed_at: time of deletion (closed, never erased), or None.
        bindings: of a bare-metal allocation, the machines that its target meant, in order of time; empty until the hub
            knows the machine.
    """

    id: str
    generation: int
    spec: AllocationSpec
    created_at: dt.datetime
    closed_at: dt.datetime | None = None
    bindings: tuple[Binding, ...] = ()
