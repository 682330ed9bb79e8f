"""GPUs that Kubernetes declares and allocates on a machine. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gpufleet.model.catalogue.kubernetes import GPU_RESOURCES, PUBLISHED_GPUS
from gpufleet.model.declarations import DeclaredResource
from gpufleet.model.kubernetes import ClusterPod, GpuResourceKind

LABEL = "nvidia.com/gpu.count"
"""Label of a node with its number of GPUs, in place of a resource."""

_DEVICES = frozenset({GpuResourceKind.GPU, GpuResourceKind.MIG})
_ENDED = frozenset({"Succeeded", "Failed"})


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
    if PUBLISHED_GPUS in capacity:
        return capacity[PUBLISHED_GPUS], None
    named = [one for one in newest if one.resource in GPU_RESOURCES]
    others = [one for one in newest if one.resource not in (*GPU_RESOURCES, LABEL)]
    total = _sum([one.capacity for one in named])
    if total is None or any(one.capacity for one in others) or _are_shares(total, capacity.get(LABEL), pci_gpus):
        return None, None
    return total, _sum([one.allocatable for one in named])


def _are_shares(devices: int, labelled: int | None, pci_gpus: int | None) -> bool:
    """Return whether devices can be shares of GPUs; the rule of `FleetStore.declared_gpus`."""
    if labelled is not None:
        return devices > labelled
    return bool(pci_gpus) and devices >= 2 * (pci_gpus or 1) and devices % (pci_gpus or 1) == 0


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [one for one in numbers if one is not None]
    return sum(known) if known else None


class AllocatedDevices:
    """Devices that the pods of a cluster have, by the name of their node."""

    def __init__(self, pods: Iterable[ClusterPod]) -> None:
        """Take the present pods. Pods with resource claims or replicas of GPUs make the number of a node unknown."""
        counts: Counter[str] = Counter()
        unknown = set()
        for one in pods:
            if not one.node or one.phase in _ENDED:
                continue
            if one.claims or any(request.kind not in _DEVICES for request in one.requests):
                unknown.add(one.node.lower())
            counts[one.node.lower()] += sum(request.count for request in one.requests)
        self._counts: Mapping[str, int] = counts
        self._unknown = unknown

    def on(self, node: str) -> int | None:
        """Return the number of devices on a node, None if unknown."""
        name = node.lower()
        return None if name in self._unknown else self._counts.get(name, 0)
