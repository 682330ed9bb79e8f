"""Targets of allocations, matched with the holders that machines report. Pure.

A pod is named by its UID. A job is named as SLURM's commands name it:

- `123`: the job, all tasks of the job array, or all components of the heterogeneous job with this id;
- `123_4`: task 4 of the job array 123;
- `123+1`: component 1 of the heterogeneous job 123.
- `alpha/123`, `alpha/123_4`: only those of the SLURM cluster `alpha`.

A job without the name of its SLURM cluster is meant only by names without one. Two jobs of different SLURM clusters can
have one id: a name without a SLURM cluster means neither from the start of the second one on (`ambiguous_since`).

Each task and each component also has a job id of its own, which names only that task or component.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from gpufleet.model.allocation import AllocationKind, AllocationSpec
from gpufleet.model.holdings import HET_COMPONENT, HET_JOB, Holder, HolderKind
from gpufleet.model.stored.holdings import HoldingQuery, StoredJob
from gpufleet.model.view import normalise_uuid

_PART = re.compile(r"(\d{1,10})([_+]\d{1,10})", re.ASCII)


class HolderName(NamedTuple):
    """Name of a holder, or of several.

    Attributes:
        kind: kind of the holders.
        id: id of the holder, of its job array, or of its heterogeneous job.
        part: `_4` for task 4 of the array, `+1` for component 1 of the heterogeneous job; None for all of them.
        slurm_cluster: SLURM cluster of the job, empty if it is unknown; None for a name that is of any of them.
    """

    kind: HolderKind
    id: str
    part: str | None = None
    slurm_cluster: str | None = None


def target_name(spec: AllocationSpec) -> HolderName | None:
    """Return the name of the holders that a target means, or None for a machine."""
    target = spec.target
    match spec.kind:
        case AllocationKind.BARE_METAL:
            return None
        case AllocationKind.KUBERNETES_POD:
            return HolderName(HolderKind.POD, target.pod_uid or "")
        case AllocationKind.SLURM_JOB:
            cluster, separator, id_ = (target.job_id or "").rpartition("/")
            return _job_name(id_)._replace(slurm_cluster=cluster.lower() if separator else None)
        case AllocationKind.GPU_SLICE | AllocationKind.KUBEVIRT_VMI:
            return HolderName(HolderKind.VM, normalise_uuid(target.vm_uuid or "") or target.vm_uuid or "")


def holder_names(holder: Holder) -> tuple[HolderName, ...]:
    """Return every name of a holder."""
    if holder.kind is not HolderKind.JOB:
        return (HolderName(holder.kind, holder.id),)
    names = [HolderName(HolderKind.JOB, holder.array_job, f"_{holder.array_task}")] if holder.array_job else []
    components = [_job_name(owner.name) for owner in holder.owners if owner.kind == HET_COMPONENT]
    names += components or [_job_name(owner.name) for owner in holder.owners if owner.kind == HET_JOB]
    # The last task of an array has the array's own id, and the first component that of its heterogeneous job.
    if holder.id not in {name.id for name in names if name.part is not None}:
        names.append(_job_name(holder.id))
    return tuple(dict.fromkeys(name._replace(slurm_cluster=holder.slurm_cluster) for name in names))


def names_holder(spec: AllocationSpec, holder: Holder) -> bool:
    """Return whether the target of an allocation means a holder."""
    target = target_name(spec)
    return target is not None and any(
        (name.kind, name.id) == (target.kind, target.id)
        and target.part in (None, name.part)
        and target.slurm_cluster in (None, name.slurm_cluster)
        for name in holder_names(holder)
    )


def can_be_ambiguous(spec: AllocationSpec) -> bool:
    """Return whether a target is a job without the name of its SLURM cluster."""
    name = target_name(spec)
    return name is not None and name.kind is HolderKind.JOB and name.slurm_cluster is None


def ambiguous_since(spec: AllocationSpec, jobs: Iterable[StoredJob], start: int, end: int) -> int | None:
    """Return since when a target means jobs of several SLURM clusters within an interval, or None if it does not.

    Args:
        spec: of any kind.
        jobs: runs of jobs of known SLURM clusters.
        start, end: nanoseconds since 1970, `end` excluded.
    """
    if not can_be_ambiguous(spec):
        return None
    first: dict[str, int] = {}
    for one in jobs:
        if one.first < end and start <= one.last and names_holder(spec, one.holder):
            name = one.holder.slurm_cluster
            first[name] = min(max(start, one.first), first.get(name, end))
    return sorted(first.values())[1] if len(first) > 1 else None


def holding_query(spec: AllocationSpec, start: int, end: int, limit: int) -> HoldingQuery | None:
    """Return the query for the holdings of a target within an interval; it can find more. None for a machine."""
    name = target_name(spec)
    if name is None:
        return None
    groups = (name.id,) if name.kind is HolderKind.JOB else ()
    ids = tuple(dict.fromkeys((name.id, (spec.target.job_id or name.id).rpartition("/")[2])))
    return HoldingQuery(
        cluster=spec.target.cluster, kind=name.kind, ids=ids, groups=groups, start=start, end=end, limit=limit
    )


def _job_name(text: str) -> HolderName:
    part = _PART.fullmatch(text)
    return HolderName(HolderKind.JOB, text) if part is None else HolderName(HolderKind.JOB, part[1], part[2])
