"""Mapping of domains to claims. Pure."""

from collections.abc import Callable

from gpufleet.codecs.libvirt_domain import Domain, split_kubevirt_name
from gpufleet.model.holdings import Holder, HolderKind, Method, Owner, Share
from gpufleet.model.text import bounded
from gpufleet.ports.holder import DeviceName, HolderClaim, Naming
from gpufleet.ports.hypervisor import DomainDocument

MAX_NAME = 253
VMI, KUBEVIRT_API = "VirtualMachineInstance", "kubevirt.io/v1"


def holder_of(document: DomainDocument, domain: Domain) -> Holder:
    """Return the domain as a holder. A domain of KubeVirt has the name and the owner that KubeVirt gave it."""
    kubevirt = split_kubevirt_name(document.name) if domain.vmi_uid else None
    if kubevirt is None:
        return Holder(kind=HolderKind.VM, id=document.uuid, name=bounded(document.name, MAX_NAME))
    namespace, name = kubevirt
    owner = Owner(kind=VMI, name=name, uid=domain.vmi_uid, api_version=KUBEVIRT_API)
    return Holder(kind=HolderKind.VM, id=document.uuid, name=name, namespace=namespace, owners=(owner,))


def claims_of(document: DomainDocument, domain: Domain, is_other: Callable[[str], bool]) -> list[HolderClaim]:
    """Return the claims of a domain: its PCI functions, and its mediated devices.

    Args:
        document, domain: the domain.
        is_other: returns whether a PCI address or mediated device is not one of a GPU.
    """
    holder = holder_of(document, domain)
    devices = (
        (Share.EXCLUSIVE, [DeviceName(Naming.PCI, pci, pci) for pci in domain.pci if not is_other(pci)]),
        (Share.VGPU, [DeviceName(Naming.MDEV, mdev, mdev) for mdev in domain.mdevs if not is_other(mdev)]),
    )
    return [
        HolderClaim(holder=holder, devices=tuple(names), method=Method.HYPERVISOR, share=share)
        for share, names in devices
        if names
    ]
