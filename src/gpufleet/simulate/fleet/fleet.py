"""Simulated fleet: the state of every machine at every instant, as a function of its specification only.

Only caches are kept. Any instant can thus be computed without the previous ones, and a test knows the right answer for
every value that a hub should return.
"""

from collections.abc import Iterator

import msgspec

from gpufleet.model.machine import Machine
from gpufleet.simulate.fleet.cycles import LoadShape, make_cycle
from gpufleet.simulate.fleet.faults import FaultKind, FaultSchedule, FleetFault
from gpufleet.simulate.fleet.layout import VARIANTS, FleetGpu, FleetLayout, FleetNode
from gpufleet.simulate.fleet.random_values import uuid_of
from gpufleet.simulate.fleet.values import GpuActivity, gpu_activity


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specification of a fleet.

    Attributes:
        seed: fleets with equal specifications and seeds are equal.
        clusters, nodes, gpus: number of clusters, nodes per cluster, GPUs per node.
        prefix: prefix of the cluster ids.
        faults: scheduled faults.
    """

    seed: int = 0
    clusters: int = 1
    nodes: int = 1
    gpus: int = 8
    prefix: str = "sim"
    faults: tuple[FleetFault, ...] = ()


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
        self._layout = FleetLayout(spec.seed, spec.prefix, spec.gpus, cycles)
        self._reboots: dict[tuple[int, int], list[int]] = {}
        for one in spec.faults:
            if one.kind is FaultKind.NODE_REBOOT:
                self._reboots.setdefault((one.cluster, one.node), []).append(one.end)
        self._boots: dict[tuple[str, int], Machine] = {}
        self._nodes: dict[tuple[int, int], FleetNode] = {}

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

    def activity(self, node: FleetNode, gpu: FleetGpu, at: int) -> GpuActivity:
        """Return the activity of a GPU at an instant."""
        return gpu_activity(gpu, at, self.booted_at(node, at), self.gpu_faults(node, gpu))
