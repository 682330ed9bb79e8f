"""Rules and faults: each fault of the simulated fleet opens the finding of its rule in time, and no unexpected one.

The agents of the fault's nodes and of one more report to a hub on a fake clock; rules that compare nodes have all.
"""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpufleet.fleet.rules.rule import PENDING, Thresholds
from gpufleet.fleet.rules.table import RULES, RULES_BY_ID
from gpufleet.hub.receive.ingest import EpochConflictError
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.agents import AgentTiming, SimulatedAgent, create_agents
from gpufleet.simulate.fleet.faults import FleetFault, parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.rule_faults import (
    DETECTION_MINUTES,
    RULE_FAULTS,
    expected_findings,
    fleet_size,
)
from tests.hub.findings.evaluated_hub import EvaluatedHub

STEP, INTERVAL, MINUTE = 2.5, 30.0, 60 * NANOS

WITH_ALL_NODES = {
    *(rule for rule in RULE_FAULTS if rule.startswith(("hub.", "cluster."))),
    *("node.gpu_count_mismatch", "node.hidden_when_idle", "node.below_class_max"),
    *("node.driver_drift", "gpu.vbios_drift", "gpu.mig_layout_drift"),
}
"""Rules about many nodes, about a majority of them, or about what Kubernetes declares."""

SHORT_SECONDS = 600.0

SHORTENED = {
    rule: {PENDING: SHORT_SECONDS}
    for rule in ("cluster.attribution_gap", "node.driver_drift", "gpu.vbios_drift", "gpu.mig_layout_drift")
}
"""Times of firing that would take long to simulate with many nodes."""

CLOSING_LATER = {"gpu.replaced", "node.driver_drift", "node.repeat_offender", "sender.identity_conflict", *SHORTENED}
"""Rules whose finding closes hours later, most of them a day: the end is not simulated."""

MAX_MINUTES = 120


class Play:
    """A fleet that reports to a hub."""

    def __init__(self, folder: Path, faults: str, size: tuple[int, int, int]) -> None:
        clusters, nodes, gpus = size
        names = [f"sim-{number}" for number in range(1, clusters + 1)]
        self.hub = EvaluatedHub(folder, *names, thresholds=Thresholds(RULES, SHORTENED))
        self.start = self.hub.clock.now_ns()
        self.faults = parse_faults(faults, self.start)
        self.fleet = Fleet(FleetSpec(clusters=clusters, nodes=nodes, gpus=gpus, faults=self.faults))
        self.agents: Sequence[SimulatedAgent] = create_agents(
            self.fleet, AgentTiming(start=self.start, interval=INTERVAL)
        )
        self.opened: dict[str, int] = {}
        """First minute of the findings of each rule."""

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
        for rule in self.hub.open_rules:
            self.opened.setdefault(rule, self.minute)
        return self.hub.open_rules

    async def _post(self, agent: SimulatedAgent) -> None:
        body = agent.take()
        try:
            await self.hub.ingest.receive(body.content, self.hub.clock.now_ns())
        except EpochConflictError:
            agent.renew(body)


def saved_minutes(rule: str) -> float:
    """Return by how many minutes the finding of a rule opens earlier than by default."""
    return (RULES_BY_ID[rule].pending_seconds - SHORT_SECONDS) / 60 if rule in SHORTENED else 0


@pytest.mark.parametrize("rule", DETECTION_MINUTES)
async def test_fault_opens_its_finding_in_time_and_no_other(rule: str, tmp_path: Path) -> None:
    play = Play(tmp_path, RULE_FAULTS[rule], fleet_size(rule))
    if rule in WITH_ALL_NODES:
        play.register()
    else:
        play.keep_agents_of(play.faults)
    try:
        end = max(one.end for one in play.faults)
        while play.minute < MAX_MINUTES:
            is_open = rule in await play.pass_minute()
            if rule in play.opened and (rule in CLOSING_LATER or (not is_open and play.hub.clock.now_ns() > end)):
                break
        first = min(one.begin for one in play.faults)
        found = play.opened[rule] - (first - play.start) // MINUTE
        assert found == DETECTION_MINUTES[rule] - saved_minutes(rule)
        assert play.opened.keys() <= expected_findings(RULE_FAULTS[rule])
        assert play.minute < MAX_MINUTES, "the finding is still open"
    finally:
        play.hub.end()


async def test_fleet_without_faults_has_no_finding(tmp_path: Path) -> None:
    play = Play(tmp_path, "", (2, 8, 2))
    play.register()
    try:
        for _ in range(30):
            assert await play.pass_minute() == set()
    finally:
        play.hub.end()
