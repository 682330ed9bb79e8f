"""GPUs that drivers of Dynamic Resource Allocation publish for the nodes of a cluster. Pure.

A driver can publish several devices for a GPU: the whole GPU, its MIG devices, and the GPU for passthrough. Devices are
of the same GPU if they share its UUID or PCI address. Names, indices and the order of devices identify nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpufleet.model.kubernetes import ClusterDevice, ClusterSlice

Pool = tuple[str, str]
"""Driver and name of a pool."""

_MIG = "mig"
"""Attribute `type` of a MIG device. Its own UUID is not that of the GPU."""


def newest_slices(slices: Iterable[ClusterSlice]) -> dict[Pool, tuple[ClusterSlice, ...]]:
    """Return the slices of the newest generation of each pool. Those of earlier generations are not valid any more."""
    found: dict[Pool, list[ClusterSlice]] = {}
    for one in slices:
        own = found.setdefault((one.driver, one.pool), [])
        if own and own[0].generation < one.generation:
            own.clear()
        if not own or own[0].generation == one.generation:
            own.append(one)
    return {pool: tuple(own) for pool, own in found.items()}


def is_complete(pool: Sequence[ClusterSlice]) -> bool:
    """Return whether these slices of one generation are all slices of their pool."""
    return 0 < max(one.slices for one in pool) <= len(pool)


def published_gpus(slices: Iterable[ClusterSlice], driver: str) -> dict[str, int | None]:
    """Return the number of GPUs that a driver publishes for each node, by name of the node.

    The number is None if a pool of the node is not complete, or if a MIG device names no GPU. Devices that belong to
    no single node are left out.
    """
    unknown: set[str] = set()
    devices: dict[str, list[ClusterDevice]] = {}
    for (name, _), pool in newest_slices(slices).items():
        if name != driver:
            continue
        if not is_complete(pool):
            unknown.update(_nodes(pool))
            continue
        for node in _nodes(pool):
            devices.setdefault(node, [])
        for device in (device for one in pool for device in one.devices if device.node):
            devices[device.node].append(device)
    counts: Mapping[str, int | None] = {node: _count_gpus(own) for node, own in devices.items()}
    return {**counts, **dict.fromkeys(unknown)}


def _nodes(pool: Iterable[ClusterSlice]) -> Iterator[str]:
    for one in pool:
        yield from filter(None, (one.node, *(device.node for device in one.devices)))


def _count_gpus(devices: Iterable[ClusterDevice]) -> int | None:
    gpus: list[set[str]] = []
    unidentified = 0
    for device in devices:
        identities = _identities(device)
        if not identities and device.kind == _MIG:
            return None
        if not identities:
            unidentified += 1
            continue
        same = [gpu for gpu in gpus if not gpu.isdisjoint(identities)]
        gpus = [gpu for gpu in gpus if gpu.isdisjoint(identities)]
        gpus.append(identities.union(*same))
    return len(gpus) + unidentified


def _identities(device: ClusterDevice) -> set[str]:
    """Return UUID and PCI address of the GPU that a device is or belongs to. Drivers write UUIDs in either case."""
    uuid = device.parent_uuid if device.kind == _MIG else device.uuid
    return set(filter(None, (uuid.lower(), device.pci_address)))
