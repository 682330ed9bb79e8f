"""GPUs that Kubernetes declares for a machine. Pure."""

from collections.abc import Iterable, Sequence

from gpufleet.model.catalogue.kubernetes import GPU_RESOURCES, PUBLISHED_GPUS
from gpufleet.model.declarations import DeclaredResource

LABEL = "nvidia.com/gpu.count"
"""Label of a node with its number of GPUs, in place of a resource."""


def whole_gpus(declared: Iterable[DeclaredResource], pci_gpus: int | None) -> tuple[int | None, int | None]:
    """Return the capacity and the allocatable number of whole GPUs of a machine; None if unknown.

    Of several reporters the one with the newest report counts. Unknown if its resources can be shares of GPUs: it has
    other resources of NVIDIA, more devices than its label, or a multiple of the GPUs on its PCI buses.

    Args:
        declared: GPU resources of the machine.
        pci_gpus: GPUs on its PCI buses, None if unknown.
    """
    by_reader: dict[str, list[DeclaredResource]] = {}
    for one in declared:
        by_reader.setdefault(one.reader, []).append(one)
    if not by_reader:
        return None, None
    newest = max(by_reader.values(), key=lambda own: (max(one.received_at for one in own), own[0].reader))
    capacity = {one.resource: one.capacity for one in newest if one.capacity is not None}
    named = [one for one in newest if one.resource in GPU_RESOURCES]
    published, total = capacity.get(PUBLISHED_GPUS), _sum([one.capacity for one in named])
    if published and total:
        return _separate_gpus(total, published, capacity.get(LABEL), pci_gpus), None
    if published is not None:
        return published, None
    others = [one for one in newest if one.resource not in (*GPU_RESOURCES, LABEL)]
    if total is None or any(one.capacity for one in others) or _are_shares(total, capacity.get(LABEL), pci_gpus):
        return None, None
    return total, _sum([one.allocatable for one in named])


def _separate_gpus(devices: int, published: int, labelled: int | None, pci_gpus: int | None) -> int | None:
    """Return the GPUs of a machine with a device plugin and a DRA driver; None if both can have the same GPUs.

    Only the label or the PCI buses show how many GPUs they have together; the rule of `FleetStore.declared_gpus`.
    """
    present = pci_gpus if labelled is None else labelled
    if not present or _are_shares(devices, labelled, pci_gpus):
        return None
    return max(devices, published, min(devices + published, present))


def _are_shares(devices: int, labelled: int | None, pci_gpus: int | None) -> bool:
    """Return whether devices can be shares of GPUs; the rule of `FleetStore.declared_gpus`."""
    if labelled is not None:
        return devices > labelled
    return bool(pci_gpus) and devices >= 2 * (pci_gpus or 1) and devices % (pci_gpus or 1) == 0


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [one for one in numbers if one is not None]
    return sum(known) if known else None
