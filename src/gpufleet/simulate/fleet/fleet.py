"""The fleet: what every machine says at every instant, as a function of its specification alone.

Nothing here remembers anything but what can be made again. So any instant can be asked without the ones before it, and
a test knows the right answer for every value that a hub should give.
"""

from collections.abc import Iterator

import msgspec

from gpufleet.model.machine import Machine
from gpufleet.simulate.fleet.chance import uuid_of
from gpufleet.simulate.fleet.cycles import Shape, cycle_of
from gpufleet.simulate.fleet.faults import Fault, FaultKind, Schedule
from gpufleet.simulate.fleet.layout import VARIANTS, Gpu, Layout, Node
from gpufleet.simulate.fleet.values import Strain, strain_of


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet is made from.

    Attributes:
        seed: fleets of one seed are the same.
        clusters, nodes, gpus: how many there are, of a cluster, of a node.
        prefix: what the clusters' ids begin with.
        faults: what goes wrong.
    """

    seed: int = 0
    clusters: int = 1
    nodes: int = 1
    gpus: int = 8
    prefix: str = "sim"
    faults: tuple[Fault, ...] = ()


class Fleet:
    """Answers what is where, and how it is. Nodes are made when they are asked for first, and kept."""

    def __init__(self, spec: FleetSpec) -> None:
        """Take what it is made from."""
        self.spec = spec
        self.schedule = Schedule(spec.faults)
        cycles = {
            (shape, variant): cycle_of(shape, spec.seed, variant) for shape in Shape for variant in range(VARIANTS)
        }
        self._layout = Layout(spec.seed, spec.prefix, spec.gpus, cycles)
        self._reboots: dict[tuple[int, int], list[int]] = {}
        for one in spec.faults:
            if one.kind is FaultKind.NODE_REBOOT:
                self._reboots.setdefault((one.cluster, one.node), []).append(one.end)
        self._boots: dict[tuple[str, int], Machine] = {}
        self._nodes: dict[tuple[int, int], Node] = {}

    def nodes(self) -> Iterator[Node]:
        """Go through every node, by cluster and number."""
        for cluster in range(1, self.spec.clusters + 1):
            for number in range(1, self.spec.nodes + 1):
                yield self.node(cluster, number)

    def node(self, cluster: int, number: int) -> Node:
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
        """Return how many GPUs of which class a cluster has, as a registration says it."""
        return {self._layout.model(cluster).short: self.spec.nodes * self.spec.gpus}

    def booted_at(self, node: Node, at: int) -> int:
        """Return when a node booted before that instant, in nanoseconds since 1970."""
        regular = node.booted_at(at)
        reboots = self._reboots.get((node.cluster, node.number))
        return regular if reboots is None else max(regular, *(end if end <= at else 0 for end in reboots))

    def machine(self, node: Node, at: int) -> Machine:
        """Return a node's evidence at an instant."""
        key = node.name, self.booted_at(node, at)
        found = self._boots.get(key)
        if found is None:
            boot = uuid_of(self.spec.seed, node.name, "boot", key[1])
            found = self._boots[key] = msgspec.structs.replace(node.identity, boot_id=boot)
        return found

    def gpu_faults(self, node: Node, gpu: Gpu) -> tuple[Fault, ...]:
        """Return the faults of a GPU."""
        return self.schedule.of_gpu(node.cluster, node.number, gpu.number)

    def strain(self, node: Node, gpu: Gpu, at: int) -> Strain:
        """Return what a GPU does at an instant."""
        return strain_of(gpu, at, self.booted_at(node, at), self.gpu_faults(node, gpu))
