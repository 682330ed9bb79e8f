"""Forms of the device ids that device plugins give to the kubelet. Pure.

| plugin | ids |
|---|---|
| NVIDIA | `GPU-...`, `MIG-...`, `MIG-GPU-.../gi/ci` before driver 470; `ID::replica` if shared by time slices or MPS |
| GKE | `nvidiaN`, `nvidiaN/giM`; with `/vgpuK` if shared |
| NVIDIA for sandboxes | PCI address, UUID of a mediated device |
| KubeVirt, built in | number of the IOMMU group |
| any | qualified CDI name |
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from gpufleet.fleet.gpu_resources import gpu_resource_kind
from gpufleet.model.holdings import Share
from gpufleet.model.text import bounded
from gpufleet.model.view import normalise_pci_address
from gpufleet.ports.holder import DeviceName, Naming

MAX_ORIGINAL = 256
"""Maximum length of an id in a finding."""

Identity = tuple[Naming, str]
"""Kind of a name, and the name in the form of that kind."""

_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_NVIDIA_UUID = re.compile(rf"(GPU|MIG)-({_UUID})")
_OLD_MIG = re.compile(rf"MIG-GPU-({_UUID})/([0-9]{{1,3}})/([0-9]{{1,3}})")
_NODE = re.compile(r"nvidia([0-9]{1,4})(?:/gi([0-9]{1,3}))?")
_PCI = re.compile(r"(?:[0-9a-fA-F]{4}|[0-9a-fA-F]{8}):[0-9a-fA-F]{2}:[0-1][0-9a-fA-F]\.[0-7]")
_MDEV = re.compile(_UUID)
_NUMBER = re.compile(r"[0-9]{1,6}")
_REPLICA = re.compile(r"(?P<device>.+)::[0-9]+|(?P<node>nvidia[0-9]+(?:/gi[0-9]+)?)/vgpu[0-9]+")
_CDI = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+=[A-Za-z0-9._:-]+")

_PLUGIN_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")
"""Resources of the NVIDIA device plugin, which never uses numbers."""

LAUNCHER = "virt-launcher-"
"""First characters of the names of KubeVirt's pods."""


class NamedDevice(NamedTuple):
    """A device id as a device name.

    Attributes:
        device: the device.
        share: sharing mode that the id shows.
        replica: whether the id is a replica of a shared device.
    """

    device: DeviceName
    share: Share
    replica: bool = False


def nvidia_uuid(text: str) -> str | None:
    """Return the UUID of a GPU or MIG device as the driver writes it, or None."""
    match = _NVIDIA_UUID.fullmatch(text)
    return f"{match[1]}-{match[2].lower()}" if match else None


def is_cdi_name(text: str) -> bool:
    """Return whether the text is a qualified CDI name, `vendor/class=device`."""
    return _CDI.fullmatch(text) is not None


def unresolved(text: str) -> DeviceName:
    """Return a name that identifies no device by itself."""
    shown = bounded(text, MAX_ORIGINAL)
    return DeviceName(Naming.UNRESOLVED, shown, shown)


def name_device(id_: str, resource: str, pod: str, cdi: Mapping[str, Identity]) -> NamedDevice | None:
    """Return the device of an id, or None if the id is not of a GPU.

    Args:
        id_: the id.
        resource: name of the extended resource.
        pod: name of the pod.
        cdi: identities of CDI names.
    """
    match = _REPLICA.fullmatch(id_)
    base = (match["device"] or match["node"]) if match else id_
    identity = _identity(base, resource, pod, cdi)
    if identity is None:
        if gpu_resource_kind(resource) is None or (_NUMBER.fullmatch(base) and not _is_plugin_resource(resource)):
            return None  # plugins of network cards use numbers too
        return NamedDevice(unresolved(base), Share.TIMESLICE if match else Share.EXCLUSIVE, bool(match))
    device = DeviceName(*identity, base)
    return NamedDevice(device, Share.TIMESLICE if match else _share(identity), bool(match))


def _is_plugin_resource(resource: str) -> bool:
    return resource.startswith(_PLUGIN_RESOURCES)


def _identity(text: str, resource: str, pod: str, cdi: Mapping[str, Identity]) -> Identity | None:
    if uuid := nvidia_uuid(text):
        return Naming.UUID, uuid
    if match := _OLD_MIG.fullmatch(text):
        return Naming.MIG_OF_GPU, f"GPU-{match[1].lower()}/{int(match[2])}/{int(match[3])}"
    if match := _NODE.fullmatch(text):
        minor = str(int(match[1]))
        return (Naming.MINOR, minor) if match[2] is None else (Naming.MIG_OF_MINOR, f"{minor}/{int(match[2])}")
    if _PCI.fullmatch(text):
        return Naming.PCI, normalise_pci_address(text)
    if _MDEV.fullmatch(text):
        return Naming.MDEV, text.lower()
    if _NUMBER.fullmatch(text):
        is_group = (
            pod.startswith(LAUNCHER) and gpu_resource_kind(resource) is not None and not _is_plugin_resource(resource)
        )
        return (Naming.IOMMU_GROUP, str(int(text))) if is_group else None
    return cdi.get(text)


def _share(identity: Identity) -> Share:
    naming, text = identity
    if naming in (Naming.MIG_OF_GPU, Naming.MIG_OF_MINOR) or text.startswith("MIG-"):
        return Share.MIG
    return Share.VGPU if naming is Naming.MDEV else Share.EXCLUSIVE
