"""Pods: GPU requests, resource claims, and the controller reference."""

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
from gpufleet.model.kubernetes import MAX_REFERENCES, MAX_RESOURCES, ChainEnd, ClusterPod, GpuRequest

POD_LABELS = LabelSelection.of(
    (
        *("app", "app.kubernetes.io/*", "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"),
        *("jobset.sigs.k8s.io/*", "kueue.x-k8s.io/*", "leaderworkerset.sigs.k8s.io/*", "training.kubeflow.org/*"),
        *("ray.io/cluster", "ray.io/node-type", "ray.io/group", "workflows.argoproj.io/workflow"),
        *("kubevirt.io/created-by", "vm.kubevirt.io/name"),
    )
)
"""Labels of pods that are collected by default."""

MAX_COUNT = 2**31 - 1
"""Maximum number of devices of a request. A pod that never runs can request any number."""

NO_LABELS = LabelSelection()
VMI_UID = "kubevirt.io/created-by"


class PodSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Pods and fields that are collected.

    Attributes:
        labels: allow-list of labels.
        annotations: allow-list of annotations.
        all_pods: whether pods without GPU requests and claims are collected too.
    """

    labels: LabelSelection = POD_LABELS
    annotations: LabelSelection = NO_LABELS
    all_pods: bool = False


class _Resources(msgspec.Struct):
    requests: dict[str, str | int] | None = None
    limits: dict[str, str | int] | None = None


class _Container(msgspec.Struct):
    resources: _Resources | None = None
    restart_policy: str | None = msgspec.field(name="restartPolicy", default=None)


class _PodClaim(msgspec.Struct):
    name: str
    claim: str | None = msgspec.field(name="resourceClaimName", default=None)


class _PodSpec(msgspec.Struct):
    node: str | None = msgspec.field(name="nodeName", default=None)
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = msgspec.field(name="initContainers", default=None)
    claims: list[_PodClaim] | None = msgspec.field(name="resourceClaims", default=None)


class _ExtendedClaim(msgspec.Struct):
    claim: str | None = msgspec.field(name="resourceClaimName", default=None)


class _PodStatus(msgspec.Struct):
    phase: str | None = None
    started: str | None = msgspec.field(name="startTime", default=None)
    claims: list[_PodClaim] | None = msgspec.field(name="resourceClaimStatuses", default=None)
    extended: _ExtendedClaim | None = msgspec.field(name="extendedResourceClaimStatus", default=None)


class _Pod(msgspec.Struct):
    metadata: ObjectMetadata
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


_PODS = msgspec.json.Decoder(_Pod)
_ALL = PodSelection()


def parse_pod(data: bytes | msgspec.Raw, selection: PodSelection = _ALL) -> ClusterPod | None:
    """Decode a pod; return None if it has neither GPU requests nor claims and `all_pods` is not set.

    Raises:
        msgspec.DecodeError: if a field has another type than the API's.
        WireError: if it has no UID, name or namespace.
    """
    pod = _PODS.decode(data)
    spec, status = pod.spec or _PodSpec(), pod.status or _PodStatus()
    requests = _requests(spec)
    if not (requests or spec.claims or status.extended or selection.all_pods):
        return None
    metadata = pod.metadata
    controller = metadata.controller
    return ClusterPod(
        uid=required(metadata.uid, "metadata.uid"),
        namespace=required(metadata.namespace, "metadata.namespace"),
        name=required(metadata.name, "metadata.name"),
        node=text(spec.node),
        phase=text(status.phase),
        created=instant(metadata.created),
        started=instant(status.started),
        deleting=metadata.deleted is not None,
        requests=requests,
        claims=_claims(spec, status),
        labels=selection.labels.select(metadata.labels),
        annotations=selection.annotations.select(metadata.annotations),
        controller=controller,
        owners=(controller,) if controller else (),
        chain_end=ChainEnd.NOT_READ if controller else ChainEnd.TOP,
        queue=metadata.queue,
        vmi=text((metadata.labels or {}).get(VMI_UID)),
    )


def _requests(spec: _PodSpec) -> tuple[GpuRequest, ...]:
    """Return what the scheduler reserves: the sum of containers and sidecars, or more for an init container."""
    running: dict[str, int] = {}
    for container in spec.containers or ():
        _add(running, container)
    sidecars: dict[str, int] = {}
    highest: dict[str, int] = {}
    for container in spec.init_containers or ():
        if container.restart_policy == "Always":
            _add(sidecars, container)
            at_start = sidecars
        else:
            at_start = dict(sidecars)
            _add(at_start, container)
        for name, count in at_start.items():
            highest[name] = max(count, highest.get(name, 0))
    total = {
        name: max(running.get(name, 0) + sidecars.get(name, 0), highest.get(name, 0))
        for name in sorted({*running, *sidecars, *highest})
    }
    kinds = {name: gpu_resource_kind(name) for name in total}
    found = [
        GpuRequest(resource=text(name), kind=kind, count=min(total[name], MAX_COUNT))
        for name, kind in kinds.items()
        if kind is not None and total[name]
    ]
    return tuple(found[:MAX_RESOURCES])


def _add(total: dict[str, int], container: _Container) -> None:
    resources = container.resources or _Resources()
    for name, value in {**(resources.limits or {}), **(resources.requests or {})}.items():
        if gpu_resource_kind(name) is not None:
            total[name] = total.get(name, 0) + (whole_count(value) or 0)


def _claims(spec: _PodSpec, status: _PodStatus) -> tuple[str, ...]:
    """Return the names of existing claims. Claims of a template have generated names, which the status has."""
    generated = {claim.name: claim.claim for claim in status.claims or ()}
    names = [claim.claim or generated.get(claim.name) for claim in spec.claims or ()]
    if status.extended is not None:
        names.append(status.extended.claim)
    return tuple(dict.fromkeys(text(name) for name in names if name))[:MAX_REFERENCES]
