"""Six clusters of different tiers and faults that report to a hub on a fake clock."""

import datetime as dt
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.codecs.batch import decode, encode, to_rows
from gpufleet.fleet.contract.report import ConformanceReport, ConformanceStatus
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import Batch
from gpufleet.simulate.fleet.agents import AgentTiming, SimulatedAgent, SimulatedCollector, create_agents
from gpufleet.simulate.fleet.faults import parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.layout import NodeRole
from tests.hub.findings.evaluated_hub import EvaluatedHub
from tests.hub.liveness.fake_clock_hub import Node

CLEAN, NODE_OFF, GPU_LOST, COLLECTED, BARE, EMPTY = "sim-1", "sim-2", "sim-3", "sim-4", "bare", "empty"
CLUSTERS = (CLEAN, NODE_OFF, GPU_LOST, COLLECTED, BARE, EMPTY)

FAULTS = "node-off@+150s/2h:c2/n2,gpu-lost@+90s/2h:c3/n1/g0"
INTERVAL = 30.0
ROLES = (NodeRole.INFERENCE, NodeRole.INFERENCE)
REGISTRATION = ClusterSpec(environment="production", team="training", contact="gpu@example", expected={"H200": 4})


Rewrite = Callable[[Batch], Batch | None]
"""Change of a batch before it is posted; None drops it."""


class ContractFleet:
    """The fleet.

    - `CLEAN`: Kubernetes with a collector, and agents on two nodes of two GPUs.
    - `NODE_OFF`: as `CLEAN`; one node is off from 150 s on.
    - `GPU_LOST`: as `CLEAN`; a GPU is lost from 90 s on.
    - `COLLECTED`: Kubernetes with a collector only.
    - `BARE`: a host without Kubernetes, with power readings only; one of its two expected GPUs is not known.
    - `EMPTY`: registered; nothing ever reported.

    Attributes:
        hub: the hub.
        agents: agents and collectors, by cluster.
        rewrites: changes of the batches of a cluster, in order.
        more: returns further batches that are posted each half minute.
    """

    def __init__(
        self,
        folder: Path,
        *,
        unregistered: Sequence[str] = (),
        reporting: Sequence[str] = CLUSTERS,
        roles: tuple[NodeRole, NodeRole] = ROLES,
    ) -> None:
        """Start a hub; `roles` are those of the two GPUs of each node in Kubernetes."""
        self.hub = EvaluatedHub(folder, *CLUSTERS)
        self.rewrites: dict[str, list[Rewrite]] = {name: [] for name in CLUSTERS}
        self.more: Callable[[], Sequence[Batch]] = tuple
        start = self.hub.clock.now_ns()
        fleet = Fleet(FleetSpec(clusters=4, nodes=2, gpus=2, gpu_roles=roles, faults=parse_faults(FAULTS, start)))
        timing = AgentTiming(start=start, interval=INTERVAL, at_once=True)
        agents: list[SimulatedAgent] = [one for one in create_agents(fleet, timing) if one.cluster != 4]
        collectors = [SimulatedCollector(fleet, number, timing) for number in range(1, 5)]
        self.agents: dict[str, list[SimulatedAgent]] = {name: [] for name in CLUSTERS}
        for one in (*agents, *collectors):
            if fleet.cluster_id(one.cluster) in reporting:
                self.agents[fleet.cluster_id(one.cluster)].append(one)
        self.host = Node("host", BARE, gpus=1)
        for name in CLUSTERS:
            if name not in unregistered:
                self.register(name)

    def register(self, cluster: str, **changes: Any) -> None:
        """Register a cluster."""
        spec = msgspec.structs.replace(REGISTRATION, **changes)
        self.hub.registry.put_cluster(cluster, spec, dt.datetime.fromtimestamp(self.hub.clock.now_ns() / NANOS, dt.UTC))

    async def run(self, minutes: int) -> None:
        """Advance the clock; all clusters are judged each minute."""
        for _ in range(minutes):
            for _half in range(2):
                await self.hub.advance(INTERVAL, [self.host])
                await self._post()
            await self.hub.evaluator.evaluate(self.hub.threads)

    async def _post(self) -> None:
        now = self.hub.clock.now_ns()
        for agent in [one for own in self.agents.values() for one in own]:
            while agent.next_at <= now:
                agent.collect()
            while agent.waiting:
                await self._receive(agent.take(oldest=True).content, now)
        for batch in self.more():
            await self.hub.ingest.receive(encode(batch), now)
        await self.hub.take()

    async def _receive(self, body: bytes, now: int) -> None:
        wire = decode(body)
        rewrites = self.rewrites[wire.cluster]
        if not rewrites:
            await self.hub.ingest.receive(body, now)
            return
        batch: Batch | None = to_rows(wire)
        for rewrite in rewrites:
            batch = None if batch is None else rewrite(batch)
        if batch is not None:
            await self.hub.ingest.receive(encode(batch), now)

    def report(self, cluster: str) -> ConformanceReport:
        """Return the newest report of a cluster."""
        return self.hub.contract.report(cluster, REGISTRATION, self.hub.clock.now_ns())

    def statuses(self, cluster: str) -> dict[str, ConformanceStatus]:
        """Return the status of each item of the report of a cluster."""
        return {one.id: one.status for own in self.report(cluster).spec.values() for one in own}
