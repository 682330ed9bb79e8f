"""Mapping of jobs to claims. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from gpufleet.codecs.mig_minors import MigCapability
from gpufleet.holders.slurm.gres_conf import capability, minor
from gpufleet.holders.slurm.parse import gres_on
from gpufleet.holders.slurm.records import GpuFiles, GresUse, JobRecord
from gpufleet.model.holdings import HET_COMPONENT, HET_JOB, Holder, HolderKind, Method, Owner, Share
from gpufleet.model.text import bounded
from gpufleet.ports.holder import DeviceName, HolderClaim, Naming

MAX_TEXT = 256
"""Maximum length of a text of a holder."""

DEVICE_GRES = ("gpu", "mps", "shard")
"""Names of the GRES whose indexes count the GPUs of the node."""


class SlurmNodeGpus(msgspec.Struct, frozen=True):
    """GPUs of a node by SLURM's index.

    Attributes:
        entries: GPUs in the order of the index; empty if it is unknown.
        capabilities: MIG capabilities of the driver, by the number of their device file.
        detail: why the order is unknown, or empty.
    """

    entries: tuple[GpuFiles, ...] = ()
    capabilities: dict[int, MigCapability] = {}
    detail: str = ""


def claims_of(job: JobRecord, nodes: Mapping[str, SlurmNodeGpus], cluster: str = "") -> tuple[HolderClaim, ...]:
    """Return the claims of a job on the nodes of this machine.

    Args:
        job: the job.
        nodes: GPUs by name of the node.
        cluster: name of the SLURM cluster, or empty.

    Raises:
        WireError: if a host list of the job is malformed.
    """
    holder = holder_of(job, cluster)
    found: list[HolderClaim] = []
    for node, gpus in nodes.items():
        for item in gres_on(job, node):
            if item.name in DEVICE_GRES and item.count:
                found += _claims(holder, job.started, node, gpus, item)
    return _merge(found)


def holder_of(job: JobRecord, cluster: str = "") -> Holder:
    """Return a job of a SLURM cluster as a holder."""
    return Holder(
        kind=HolderKind.JOB,
        id=str(job.listed.id),
        name=_text(job.listed.name),
        owners=_owners(job),
        user=_text(job.user),
        account=_text(job.listed.account),
        queue=_text(job.partition),
        qos=_text(job.qos),
        array_job=job.array_job,
        array_task=_text(job.array_task),
        slurm_cluster=_text(cluster),
        nodes=job.nodes,
        gpus=job.gpus,
    )


def _owners(job: JobRecord) -> tuple[Owner, ...]:
    """Return the component that a job is of a heterogeneous job, and that job."""
    if not job.het_job:
        return ()
    component = Owner(kind=HET_COMPONENT, name=f"{job.het_job}+{job.het_offset}")
    return component, Owner(kind=HET_JOB, name=job.het_job)


def device_of(node: str, gpus: SlurmNodeGpus, item: GresUse, index: int) -> DeviceName:
    """Return the name of the device at an index, `UNRESOLVED` if no device file identifies it."""
    written = f"{node} {_resource(item)} IDX:{index}"
    unresolved = DeviceName(Naming.UNRESOLVED, bounded(written, MAX_TEXT), bounded(written, MAX_TEXT))
    if index >= len(gpus.entries):
        return unresolved
    files = gpus.entries[index].files
    original = bounded(f"{written} {','.join(files)}", MAX_TEXT)
    unresolved = DeviceName(Naming.UNRESOLVED, unresolved.text, original)
    numbers = [number for number in map(minor, files) if number is not None]
    capabilities = [number for number in map(capability, files) if number is not None]
    if len(numbers) != 1 or len(numbers) + len(capabilities) != len(files):
        return unresolved
    if not capabilities:
        return DeviceName(Naming.MINOR, str(numbers[0]), original)
    opened = [gpus.capabilities.get(number) for number in capabilities]
    instances = {(entry.gpu, entry.instance) for entry in opened if entry is not None}
    computes = {entry.compute for entry in opened if entry is not None and entry.compute is not None}
    if None in opened or len(instances) != 1 or len(computes) > 1:
        return unresolved
    gpu, instance = instances.pop()
    if gpu != numbers[0]:
        return unresolved
    text = f"{gpu}/{instance}/{computes.pop()}" if computes else f"{gpu}/{instance}"
    return DeviceName(Naming.MIG_OF_MINOR, text, original)


def _claims(holder: Holder, since: int | None, node: str, gpus: SlurmNodeGpus, item: GresUse) -> list[HolderClaim]:
    """Return the claims of one item: one for all GPUs, or one for each GPU of a share."""
    if not item.indexes:
        written = bounded(f"{node} {_resource(item)}:{item.count}", MAX_TEXT)
        groups: list[tuple[tuple[DeviceName, ...], int]] = [((DeviceName(Naming.UNRESOLVED, written, written),), 0)]
    elif item.name == "gpu":
        groups = [(tuple(device_of(node, gpus, item, index) for index in item.indexes), 0)]
    else:
        counts: Sequence[int] = item.counts or ((item.count,) if len(item.indexes) == 1 else (0,) * len(item.indexes))
        groups = [
            ((device_of(node, gpus, item, index),), count) for index, count in zip(item.indexes, counts, strict=True)
        ]
    return [
        HolderClaim(
            holder=holder,
            devices=tuple(dict.fromkeys(device for device in devices if _share(item, device) is share)),
            method=Method.SCHEDULER,
            share=share,
            replicas=replicas,
            resource=_resource(item),
            since=since,
        )
        for devices, replicas in groups
        for share in dict.fromkeys(_share(item, device) for device in devices)
    ]


def _merge(claims: Sequence[HolderClaim]) -> tuple[HolderClaim, ...]:
    """Join the claims that differ in their devices only: a machine can be several nodes."""
    joined: dict[tuple[str, Share, int], HolderClaim] = {}
    for claim in claims:
        key = (claim.resource, claim.share, claim.replicas)
        before = joined.get(key)
        devices = claim.devices if before is None else tuple(dict.fromkeys((*before.devices, *claim.devices)))
        joined[key] = msgspec.structs.replace(claim, devices=devices)
    return tuple(joined.values())


def _share(item: GresUse, device: DeviceName) -> Share:
    if item.name == "mps":
        return Share.MPS
    if item.name == "shard":
        return Share.TIMESLICE
    return Share.MIG if device.naming is Naming.MIG_OF_MINOR else Share.EXCLUSIVE


def _resource(item: GresUse) -> str:
    return bounded(f"{item.name}:{item.type}" if item.type else item.name, MAX_TEXT)


def _text(text: str) -> str:
    return "" if text == "(null)" else bounded(text, MAX_TEXT)
