"""Attributes of the holder of a device, under the names of OpenTelemetry's conventions where they have one.

OpenTelemetry has `k8s.*` and `container.*`. The attributes of a job are l9gpu's documented names, `job.*`. Those of a
virtual machine are also attributes of a guest's resource, `gpufleet.vm.*`. The conventions have no queue of a pod: it
is `gpufleet.queue`.
"""

from collections.abc import Container, Iterator, Sequence

from gpufleet.dialects.otel_names import OWN
from gpufleet.model.holdings import Holder, HolderKind, Holding, Owner
from gpufleet.model.text import bounded

POD_LABEL = "k8s.pod.label."
"""Prefix of the labels of a pod. No other attribute has it, so that no label can replace an attribute."""

MAX_POD_LABELS = 32
"""Maximum number of pod labels of a point; the first by name are sent."""

MAX_NAME_BYTES = 256
"""Maximum size of an attribute's name. A hub rejects points with longer names, so that such a label is left out."""

MAX_TEXT = 1024
"""Maximum length of a value."""

VM_NAMESPACE, VM_NAME, VM_UUID = OWN + "vm.namespace", OWN + "vm.name", OWN + "vm.uuid"
"""Attributes of a virtual machine."""

HYPERVISOR = OWN + "hypervisor"
"""Attribute of a guest's resource: the node whose agent reads the guest."""

QUEUE = OWN + "queue"
"""Queue of a pod at a batch scheduler in Kubernetes. The queue of a job is its partition."""

JOB = (
    ("job.id", "id"),
    ("job.name", "name"),
    ("job.user", "user"),
    ("job.partition", "queue"),
    (OWN + "slurm.cluster", "slurm_cluster"),
)
"""Attributes of a job, and the fields of `Holder`."""

_OWNERS = {
    "Job": ("batch/", "k8s.job.name"),
    "StatefulSet": ("apps/", "k8s.statefulset.name"),
    "Deployment": ("apps/", "k8s.deployment.name"),
}
"""Kind of an owner to its API group and attribute. Other API groups have kinds of the same name."""


def is_guest_resource(attributes: Container[str]) -> bool:
    """Return whether a resource is a virtual machine that the agent of its host reads."""
    return any(name in attributes for name in (HYPERVISOR, VM_NAME, VM_UUID))


def holder_attributes(holding: Holding, job: Sequence[tuple[str, str]] = JOB) -> dict[str, str]:
    """Return the attributes of a holder and of its own holder; unknown ones are left out.

    Args:
        holding: the holding of a device.
        job: attributes of a job, and the fields of `Holder`.
    """
    attributes: dict[str, str] = {}
    for holder in (holding.parent, holding.holder):
        if holder is not None:
            attributes |= dict(_attributes(holder, job))
    if holding.holder.kind is HolderKind.POD:
        attributes["k8s.container.name"] = holding.container
    return {name: bounded(text, MAX_TEXT) for name, text in attributes.items() if text}


def _attributes(holder: Holder, job: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    match holder.kind:
        case HolderKind.POD:
            yield from _pod(holder)
        case HolderKind.JOB:
            for name, field in job:
                value = getattr(holder, field)
                yield name, str(value) if value else ""
        case HolderKind.VM:
            uuid = "" if "/" in holder.id else holder.id
            yield from ((VM_NAMESPACE, holder.namespace), (VM_NAME, holder.name), (VM_UUID, uuid))
        case HolderKind.CONTAINER:
            yield from (("container.id", holder.id), ("container.name", holder.name))
        case _:
            yield OWN + "allocation", holder.id


def _pod(pod: Holder) -> Iterator[tuple[str, str]]:
    yield "k8s.namespace.name", pod.namespace
    yield "k8s.pod.name", pod.name
    yield "k8s.pod.uid", "" if "/" in pod.id else pod.id
    if pod.owners:
        workload = next(filter(None, map(_workload, pod.owners)), None)
        if workload is not None:
            yield workload
        yield "k8s.owner.kind", pod.owners[-1].kind
        yield "k8s.owner.name", pod.owners[-1].name
    yield QUEUE, pod.queue
    for key in list(filter(_is_sent, sorted(pod.labels)))[:MAX_POD_LABELS]:
        yield POD_LABEL + key, pod.labels[key]


def _is_sent(label: str) -> bool:
    return bool(label) and label.isprintable() and len((POD_LABEL + label).encode()) <= MAX_NAME_BYTES


def _workload(owner: Owner) -> tuple[str, str] | None:
    """Return the attribute of a job, stateful set or deployment."""
    group, name = _OWNERS.get(owner.kind, ("", ""))
    return (name, owner.name) if name and (not owner.api_version or owner.api_version.startswith(group)) else None
