"""A simulated fleet that reports to a hub on a fake clock, minute by minute."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.table import RULES
from gpufleet.hub.receive.ingest import EpochConflictError
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.agents import AgentTiming, SimulatedAgent, create_agents
from gpufleet.simulate.fleet.faults import FleetFault, parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from tests.hub.findings.evaluated_hub import EvaluatedHub

STEP, INTERVAL, MINUTE = 2.5, 30.0, 60 * NANOS


class Play:
    """A fleet that reports to a hub.

    Attributes:
        hub: the hub.
        start: nanoseconds since 1970.
        faults: the faults.
        fleet, agents: the fleet, and its agents.
        opened: first minute of the findings of each rule.
        subjects: first minute of each finding, by rule and subject.
    """

    def __init__(
        self, folder: Path, faults: str, size: tuple[int, int, int], thresholds: Thresholds | None = None
    ) -> None:
        """Take the folder of the hub, faults as for `--faults`, clusters, nodes and GPUs, and the hub's thresholds."""
        clusters, nodes, gpus = size
        names = [f"sim-{number}" for number in range(1, clusters + 1)]
        self.hub = EvaluatedHub(folder, *names, thresholds=thresholds or Thresholds(RULES))
        self.start = self.hub.clock.now_ns()
        self.faults = parse_faults(faults, self.start)
        self.fleet = Fleet(FleetSpec(clusters=clusters, nodes=nodes, gpus=gpus, faults=self.faults))
        self.agents: Sequence[SimulatedAgent] = create_agents(
            self.fleet, AgentTiming(start=self.start, interval=INTERVAL)
        )
        self.opened: dict[str, int] = {}
        self.subjects: dict[tuple[str, str], int] = {}

    @property
    def minute(self) -> int:
        """Minutes since the start."""
        return (self.hub.clock.now_ns() - self.start) // MINUTE

    def register(self) -> None:
        """Register the expected GPUs of the clusters."""
        at = dt.datetime.fromtimestamp(self.start / NANOS, dt.UTC)
        for number, name in enumerate(self.fleet.cluster_ids(), 1):
            self.hub.registry.put_cluster(name, ClusterSpec(expected=self.fleet.expected(number)), at)

    def keep_agents_of(self, faults: Sequence[FleetFault]) -> None:
        """Leave out the agents of nodes without a fault, except of node 2."""
        nodes = {(one.cluster, one.node) for one in faults} | {(1, 2)}
        self.agents = [one for one in self.agents if (one.cluster, one.node.number) in nodes]

    async def pass_minute(self) -> set[str]:
        """Advance the clock by a minute; return the rules with an open finding."""
        for step in range(24):
            await self.hub.advance(STEP)
            now = self.hub.clock.now_ns()
            for agent in self.agents:
                while agent.next_at <= now:
                    agent.collect()
                while agent.waiting and not agent.is_cut_off(now):
                    await self._post(agent)
            if step % 12 == 11:
                await self.hub.take()
        await self.hub.evaluator.evaluate(self.hub.threads)
        assert self.hub.status.failure == ""
        for rule, subject in self.hub.open_findings:
            self.opened.setdefault(rule, self.minute)
            self.subjects.setdefault((rule, subject), self.minute)
        return self.hub.open_rules

    async def _post(self, agent: SimulatedAgent) -> None:
        body = agent.take()
        try:
            await self.hub.ingest.receive(body.content, self.hub.clock.now_ns())
        except EpochConflictError:
            agent.renew(body)
