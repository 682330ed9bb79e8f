"""Listed pods to holder claims. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.gpu_resources import is_gpu_driver
from gpufleet.holders.kubelet.cdi import identify_claimed
from gpufleet.holders.kubelet.device_ids import (
    MAX_ORIGINAL,
    Identity,
    is_cdi_name,
    name_device,
    unresolved,
)
from gpufleet.holders.kubelet.folders import PodIdentities
from gpufleet.holders.kubelet.parse import ClaimedDevice, ListedContainer, ListedPod
from gpufleet.model.holdings import Holder, HolderKind, Method, Share
from gpufleet.model.text import bounded
from gpufleet.ports.holder import DeviceName, HolderClaim, Naming


def pod_holder(pod: ListedPod, identities: PodIdentities) -> Holder:
    """Return a pod as a holder; its id is its UID, or `namespace/name` if that is unknown."""
    uid = identities.uid(pod.namespace, pod.name)
    return Holder(kind=HolderKind.POD, id=uid or f"{pod.namespace}/{pod.name}", name=pod.name, namespace=pod.namespace)


def with_devices(pods: Iterable[ListedPod]) -> set[tuple[str, str]]:
    """Return namespace and name of the pods with devices or claims."""
    return {
        (pod.namespace, pod.name)
        for pod in pods
        if any(container.devices or container.claims for container in pod.containers)
    }


def cdi_names(pods: Iterable[ListedPod]) -> set[str]:
    """Return the CDI names whose devices are needed to name the pods' devices."""
    names: set[str] = set()
    for container in (container for pod in pods for container in pod.containers):
        names.update(id_ for _, id_ in container.devices if is_cdi_name(id_))
        names.update(name for claim in container.claims for device in claim.devices for name in device.cdi)
    return names


def map_pods(
    pods: Sequence[ListedPod], identities: PodIdentities, cdi: Mapping[str, Identity]
) -> tuple[HolderClaim, ...]:
    """Return the claims of all pods.

    Args:
        pods: as listed.
        identities: UIDs of pods and ids of containers.
        cdi: identities of CDI names.
    """
    claims: list[HolderClaim] = []
    for pod in pods:
        if not any(container.devices or container.claims for container in pod.containers):
            continue
        holder = pod_holder(pod, identities)
        for container in pod.containers:
            claims += _device_claims(pod, holder, container, identities, cdi)
        claims += _resource_claims(pod, holder, identities, cdi)
    return tuple(claims)


def with_total_replicas(
    claims: Iterable[HolderClaim], allocatable: Iterable[tuple[str, str]]
) -> tuple[HolderClaim, ...]:
    """Return the claims, with the number of replicas of each shared device.

    A device with fewer allocatable replicas than a claim has of it is left unknown: the kubelet does not list the
    devices that a plugin reports as unhealthy.

    Args:
        claims: of all pods.
        allocatable: resource name and device id of each allocatable device, as the kubelet lists them.
    """
    totals: Counter[tuple[str, DeviceName]] = Counter()
    for resource, id_ in dict.fromkeys(allocatable):
        named = name_device(id_, resource, "", {})
        if named is not None and named.replica:
            totals[resource, named.device] += 1
    found: list[HolderClaim] = []
    for claim in claims:
        groups: dict[int, list[DeviceName]] = {}
        for device in claim.devices:
            total = totals[claim.resource, device] if claim.replicas else 0
            groups.setdefault(total if total >= claim.replicas else 0, []).append(device)
        found += [
            msgspec.structs.replace(claim, devices=tuple(devices), total_replicas=total)
            for total, devices in groups.items()
        ]
    return tuple(found)


def pci_identities(claims: Iterable[HolderClaim]) -> set[Identity]:
    """Return the PCI functions and IOMMU groups in claims. Plugins of network cards and storage report such ids too."""
    kinds = (Naming.PCI, Naming.IOMMU_GROUP)
    return {(device.naming, device.text) for claim in claims for device in claim.devices if device.naming in kinds}


def with_pci_functions(
    claims: Iterable[HolderClaim], others: Collection[Identity], gpus: Mapping[Identity, Identity]
) -> tuple[HolderClaim, ...]:
    """Return the claims on GPUs, with IOMMU groups replaced by their GPU.

    Args:
        claims: of all pods.
        others: identities of devices that are not GPUs; they are left out.
        gpus: IOMMU group to the PCI function of its only GPU.
    """
    kept: list[HolderClaim] = []
    for claim in claims:
        devices = tuple(
            [
                DeviceName(*gpus.get((device.naming, device.text), (device.naming, device.text)), device.original)
                for device in claim.devices
                if (device.naming, device.text) not in others
            ]
        )
        if devices:
            kept.append(msgspec.structs.replace(claim, devices=devices))
    return tuple(kept)


def _device_claims(
    pod: ListedPod,
    holder: Holder,
    container: ListedContainer,
    identities: PodIdentities,
    cdi: Mapping[str, Identity],
) -> list[HolderClaim]:
    """Return the claims on extended resources, each on devices of one resource, sharing mode and replica count."""
    replicas: dict[tuple[str, DeviceName], tuple[Share, int]] = {}
    for resource, id_ in dict.fromkeys(container.devices):
        named = name_device(id_, resource, pod.name, cdi)
        if named is not None:
            _, count = replicas.get((resource, named.device), (named.share, 0))
            replicas[resource, named.device] = named.share, count + named.replica
    groups: dict[tuple[str, Share, int], list[DeviceName]] = {}
    for (resource, device), (share, count) in replicas.items():
        groups.setdefault((resource, share, count), []).append(device)
    return [
        HolderClaim(
            holder=holder,
            devices=_ordered(devices),
            method=Method.KUBELET,
            container=container.name,
            container_id=identities.container_id(holder.id, container.name),
            share=share,
            replicas=count,
            resource=resource,
        )
        for (resource, share, count), devices in sorted(groups.items())
    ]


def _resource_claims(
    pod: ListedPod, holder: Holder, identities: PodIdentities, cdi: Mapping[str, Identity]
) -> list[HolderClaim]:
    """Return the claims on the devices of the pod's resource claims.

    The kubelet lists every device of a claim for each container that uses the claim, also if the container uses only
    one request of it. If several containers do, the devices are held by the pod, and its container is unknown.
    """
    users: dict[tuple[str, str], dict[str, None]] = {}
    listed: dict[tuple[str, str], list[ClaimedDevice]] = {}
    for container in pod.containers:
        for claim in container.claims:
            key = claim.namespace, claim.name
            users.setdefault(key, {})[container.name] = None
            listed.setdefault(key, []).extend(claim.devices)
    claims: list[HolderClaim] = []
    for key, containers in users.items():
        devices = _distinct(listed[key])
        by_driver: dict[str, list[DeviceName]] = {}
        for device in devices:
            named = _claimed_device(device, cdi)
            if named is not None:
                by_driver.setdefault(device.driver, []).append(named)
        is_exact = len(containers) == 1 or len(devices) == 1
        for driver, names in sorted(by_driver.items()):
            claims += [
                HolderClaim(
                    holder=holder,
                    devices=_ordered(names),
                    method=Method.KUBELET,
                    container=container,
                    container_id=identities.container_id(holder.id, container),
                    share=Share.DRA,
                    claim="/".join(key),
                    resource=driver,
                )
                for container in (containers if is_exact else ("",))
            ]
    return claims


def _distinct(devices: Iterable[ClaimedDevice]) -> list[ClaimedDevice]:
    """Return each device once, with all of its CDI names: each container, and a restarted kubelet, repeats them."""
    names: dict[tuple[str, str, str], dict[str, None]] = {}
    for device in devices:
        names.setdefault((device.driver, device.pool, device.name), {}).update(dict.fromkeys(device.cdi))
    return [ClaimedDevice(*key, tuple(cdi)) for key, cdi in names.items()]


def _claimed_device(device: ClaimedDevice, cdi: Mapping[str, Identity]) -> DeviceName | None:
    """Return the name of a claimed device, or None if it is not of a GPU."""
    place = f"{device.driver}/{device.pool}/{device.name}"
    identity = identify_claimed(device, cdi)
    if identity is not None:
        return DeviceName(*identity, bounded(place, MAX_ORIGINAL))
    return unresolved(place) if is_gpu_driver(device.driver) else None


def _ordered(devices: Iterable[DeviceName]) -> tuple[DeviceName, ...]:
    """Return each device once, in order of its name: the kubelet's order is random."""
    by_identity: dict[Identity, DeviceName] = {(device.naming, device.text): device for device in devices}
    return tuple(by_identity[key] for key in sorted(by_identity))
