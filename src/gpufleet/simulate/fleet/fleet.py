"""Simulated fleet: the state of every machine at every instant, as a function of its specification only.

Only caches are kept. Any instant can thus be computed without the previous ones, and a test knows the right answer for
every value that a hub should return.
"""

from collections.abc import Container, Iterable, Iterator

import msgspec

from gpufleet.model.machine import Machine
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.cycles import LoadShape, make_cycle
from gpufleet.simulate.fleet.faults import FaultKind, FaultSchedule, FleetFault
from gpufleet.simulate.fleet.layout import VARIANTS, FleetGpu, FleetLayout, FleetNode, GpuPart, NodeRole
from gpufleet.simulate.fleet.random_values import number as random_number
from gpufleet.simulate.fleet.random_values import uuid_of
from gpufleet.simulate.fleet.values import GpuActivity, gpu_activity

HARDWARE_FAULTS = frozenset(
    {
        *(FaultKind.GPU_REMOVED, FaultKind.GPU_REPLACED, FaultKind.GPU_UNLISTED),
        *(FaultKind.MIG_LAYOUT, FaultKind.DRIVER_BROKEN, FaultKind.GUEST_REPLACED),
    }
)
"""Faults that change the devices that a machine shows, or its guests."""

STATIC_FAULTS = HARDWARE_FAULTS | {
    *(FaultKind.NO_INVENTORY, FaultKind.NO_PCI, FaultKind.DRIVER_DRIFT, FaultKind.VBIOS_DRIFT),
}
"""Faults after whose start and end an agent sends its static readings at once."""


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specification of a fleet.

    Attributes:
        seed: fleets with equal specifications and seeds are equal.
        clusters, nodes, gpus: number of clusters, nodes per cluster, GPUs per node.
        prefix: prefix of the cluster ids.
        faults: scheduled faults.
        gpu_roles: role of each GPU of every node; empty means that roles depend on the position of the node.
        vgpus: vGPU instances that share the memory of a GPU in the role VGPU; 0 means two of the model's usual type.
    """

    seed: int = 0
    clusters: int = 1
    nodes: int = 1
    gpus: int = 8
    prefix: str = "sim"
    faults: tuple[FleetFault, ...] = ()
    gpu_roles: tuple[NodeRole, ...] = ()
    vgpus: int = 0


class Fleet:
    """State of the fleet. Nodes are created on first access, and cached."""

    def __init__(self, spec: FleetSpec) -> None:
        """Take the specification."""
        self.spec = spec
        self.schedule = FaultSchedule(spec.faults)
        cycles = {
            (shape, variant): make_cycle(shape, spec.seed, variant)
            for shape in LoadShape
            for variant in range(VARIANTS)
        }
        self._layout = FleetLayout(spec.seed, spec.prefix, spec.gpus, cycles, spec.gpu_roles, spec.vgpus)
        self._reboots: dict[tuple[int, int], list[int]] = {}
        for one in spec.faults:
            if one.kind is FaultKind.NODE_REBOOT:
                self._reboots.setdefault((one.cluster, one.node), []).append(one.end)
        self._boots: dict[tuple[str, int], Machine] = {}
        self._nodes: dict[tuple[int, int], FleetNode] = {}
        self._faults: dict[tuple[int, int], tuple[FleetFault, ...]] = {}
        self._all_faults: dict[tuple[int, int], tuple[FleetFault, ...]] = {}

    def nodes(self) -> Iterator[FleetNode]:
        """Iterate over all nodes, by cluster and number."""
        for cluster in range(1, self.spec.clusters + 1):
            for number in range(1, self.spec.nodes + 1):
                yield self.node(cluster, number)

    def node(self, cluster: int, number: int) -> FleetNode:
        """Return a node; clusters and nodes count from 1."""
        found = self._nodes.get((cluster, number))
        if found is None:
            found = self._nodes[cluster, number] = self._layout.node(cluster, number)
        return found

    def cluster_id(self, cluster: int) -> str:
        """Return the id of a cluster."""
        return self._layout.cluster_id(cluster)

    def cluster_ids(self) -> list[str]:
        """Return the ids of all clusters, in the order of their numbers."""
        return [self.cluster_id(cluster) for cluster in range(1, self.spec.clusters + 1)]

    def expected(self, cluster: int) -> dict[str, int]:
        """Return the expected GPUs of a cluster by class, as in its registration."""
        return {self._layout.model(cluster).short: self.spec.nodes * self.spec.gpus}

    def booted_at(self, node: FleetNode, at: int) -> int:
        """Return the last boot of a node before an instant, in nanoseconds since 1970."""
        regular = node.booted_at(at)
        reboots = self._reboots.get((node.cluster, node.number))
        return regular if reboots is None else max(regular, *(end if end <= at else 0 for end in reboots))

    def machine(self, node: FleetNode, at: int) -> Machine:
        """Return the identity evidence of a node at an instant."""
        key = node.name, self.booted_at(node, at)
        found = self._boots.get(key)
        if found is None:
            boot = uuid_of(self.spec.seed, node.name, "boot", key[1])
            found = self._boots[key] = msgspec.structs.replace(node.identity, boot_id=boot)
        return found

    def gpu_faults(self, node: FleetNode, gpu: FleetGpu) -> tuple[FleetFault, ...]:
        """Return the faults of a GPU."""
        return self.schedule.of_gpu(node.cluster, node.number, gpu.number)

    def node_faults(self, node: FleetNode, at: int) -> tuple[FleetFault, ...]:
        """Return the present faults of a node and of its cluster; most nodes have none."""
        key = node.cluster, node.number
        found = self._faults.get(key)
        if found is None:
            found = self._faults[key] = self.schedule.of_node(*key)
        return _present(found, at) if found else found

    def device_faults(self, node: FleetNode, gpu: FleetGpu, at: int) -> tuple[FleetFault, ...]:
        """Return the present faults of a GPU, its node and its cluster, widest first."""
        return (*self.node_faults(node, at), *_present(self.gpu_faults(node, gpu), at))

    def shown_gpus(self, node: FleetNode, at: int) -> tuple[FleetGpu, ...]:
        """Return the GPUs that a node reports: not the last one, which has no holder, while idle GPUs are hidden."""
        is_hidden = any(one.kind is FaultKind.HIDDEN_WHEN_IDLE for one in self.node_faults(node, at))
        return node.all_gpus[:-1] if is_hidden else node.all_gpus

    def next_node(self, node: FleetNode) -> FleetNode:
        """Return the next node of a node's cluster; the first one after the last."""
        return self.node(node.cluster, node.number % self.spec.nodes + 1)

    def has_edge(self, node: FleetNode, kinds: Container[FaultKind], since: int, at: int) -> bool:
        """Return whether a fault of these kinds starts or ends within an interval, on a node, its GPUs or cluster."""
        return any(
            since < one.begin <= at or since < one.end <= at for one in self.faults_of(node) if one.kind in kinds
        )

    def faults_of(self, node: FleetNode) -> tuple[FleetFault, ...]:
        """Return all faults of a node, of its GPUs and of its cluster."""
        key = node.cluster, node.number
        found = self._all_faults.get(key)
        if found is None:
            of_gpus = [one for number in range(self.spec.gpus) for one in self.schedule.of_gpu(*key, number)]
            found = self._all_faults[key] = (*self.schedule.of_node(*key), *of_gpus)
        return found

    def node_at(self, node: FleetNode, at: int) -> FleetNode:
        """Return a node with the devices that it shows at an instant."""
        faults = [one for one in self.faults_of(node) if one.kind in HARDWARE_FAULTS]
        if not faults:
            return node
        broken = _has(faults, FaultKind.DRIVER_BROKEN, at)
        gpus: list[FleetGpu] = []
        unlisted: list[FleetGpu] = []
        for gpu in node.gpus:
            of_gpu = self.gpu_faults(node, gpu)
            shown = _gpu_at(gpu, of_gpu, at)
            if shown is not None:
                is_unlisted = broken or _has(of_gpu, FaultKind.GPU_UNLISTED, at)
                (unlisted if is_unlisted else gpus).append(shown)
        guests, replaced_at = [], self.guests_replaced_at(node, at)
        for guest in node.guests:
            inside = [_gpu_at(gpu, self.gpu_faults(node, gpu), at) for gpu in guest.gpus]
            gpus_inside = tuple([gpu for gpu in inside if gpu is not None])
            machine = replaced_guest(guest.machine, replaced_at) if replaced_at else guest.machine
            guests.append(msgspec.structs.replace(guest, machine=machine, gpus=gpus_inside))
        return msgspec.structs.replace(node, gpus=tuple(gpus), guests=tuple(guests), unlisted=tuple(unlisted))

    def guests_replaced_at(self, node: FleetNode, at: int) -> int:
        """Return the last replacement of a node's guests before an instant, nanoseconds since 1970; 0 for none."""
        begins = [one.begin for one in self.faults_of(node) if one.kind is FaultKind.GUEST_REPLACED]
        return max((begin for begin in begins if begin <= at), default=0)

    def activity(self, node: FleetNode, gpu: FleetGpu, at: int) -> GpuActivity:
        """Return the activity of a GPU at an instant."""
        return gpu_activity(gpu, at, self.booted_at(node, at), self.gpu_faults(node, gpu))


def _present(faults: tuple[FleetFault, ...], at: int) -> tuple[FleetFault, ...]:
    return tuple([one for one in faults if one.begin <= at < one.end])


def _has(faults: Iterable[FleetFault], kind: FaultKind, at: int) -> bool:
    return any(one.kind is kind and one.begin <= at < one.end for one in faults)


def _gpu_at(gpu: FleetGpu, faults: Iterable[FleetFault], at: int) -> FleetGpu | None:
    """Return the GPU in a slot at an instant, or None if there is none."""
    for one in faults:
        if one.kind is FaultKind.GPU_REPLACED and one.begin <= at:
            gpu = _replacement(gpu, one.begin)
    if _has(faults, FaultKind.GPU_REMOVED, at):
        return None
    return msgspec.structs.replace(gpu, parts=gpu.parts[:-1]) if _has(faults, FaultKind.MIG_LAYOUT, at) else gpu


def replaced_guest(guest: Machine, at: int) -> Machine:
    """Return the virtual machine that takes the place of another at an instant, nanoseconds since 1970."""
    name = f"{guest.name}-{at // NANOS}"
    return msgspec.structs.replace(guest, name=name, system_uuid=uuid_of(name))


def _replacement(gpu: FleetGpu, at: int) -> FleetGpu:
    """Return another GPU of the same model for the same slot, inserted at an instant."""
    key = gpu.serial, at
    view = msgspec.structs.replace(gpu.view, uuid=f"GPU-{uuid_of(*key)}")
    serial = f"165{random_number(10**10, *key):010d}"
    return msgspec.structs.replace(
        gpu, view=view, serial=serial, parts=tuple([_part_of(part, view.key, key) for part in gpu.parts])
    )


def _part_of(part: GpuPart, parent: str, key: tuple[str, int]) -> GpuPart:
    uuid = uuid_of(*key, part.view.uuid or "")
    view = msgspec.structs.replace(part.view, uuid=f"MIG-{uuid}" if part.slot else uuid, parent=parent)
    return msgspec.structs.replace(part, view=view)
