"""An allocation: what a tenant was given, and for how long."""

import datetime as dt
import enum
from typing import Annotated

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
"""Names given from outside: short enough to show and to store."""


class AllocationKind(enum.StrEnum):
    """What kind of thing was allocated; it decides who may answer for it."""

    BARE_METAL = "bare_metal"  # a whole machine: the host's own readings answer
    GPU_SLICE = "gpu_slice"  # a virtual machine: only its inside, or its own vGPU instance, answers
    KUBERNETES_POD = "kubernetes_pod"
    SLURM_JOB = "slurm_job"
    KUBEVIRT_VMI = "kubevirt_vmi"


class Target(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the allocation points at; the kind says which fields it needs.

    Attributes:
        cluster: the cluster it is in.
        machine: the hub's machine id, or the machine's host name if that is unique in the cluster
            (bare_metal).
        vm_uuid: UUID of the virtual machine (gpu_slice, kubevirt_vmi).
        pod_uid: UID of the pod (kubernetes_pod).
        job_id: id of the job (slurm_job).
    """

    cluster: Name
    machine: Name | None = None
    vm_uuid: Name | None = None
    pod_uid: Name | None = None
    job_id: Name | None = None


class AllocationSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The body of `PUT /v1/allocations/{id}`.

    Attributes:
        kind: what was allocated.
        target: what it points at.
        tenant: who pays.
        team: who owns.
        devices: UUIDs or PCI addresses, where only some of the machine's devices belong to it.
        expected: number of GPUs per class name that it should have; an empty map claims nothing.
        valid_from: start; None means from the moment it was put.
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
"""The field of `Target` that each kind cannot do without; the others of the four stay unset."""


class Allocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An allocation as the registry keeps it.

    Attributes:
        id: given by the caller.
        generation: 1 at first, one more whenever a PUT changes the spec.
        spec: what the caller said, with `valid_from` filled in.
        created_at: when it was first put.
        closed_at: when it was deleted (closed, never erased), or None.
    """

    id: str
    generation: int
    spec: AllocationSpec
    created_at: dt.datetime
    closed_at: dt.datetime | None = None
