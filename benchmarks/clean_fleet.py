"""Fleet without faults over simulated days: every finding is false.

`python -m benchmarks.clean_fleet [--nodes 200] [--clusters 2] [--gpus 2] [--hours 24] [--allocations 20] [--seed 0]`

Method: simulated agents and a collector of each cluster report to a hub on a simulated clock. Receipt, log, flush,
store (embedded), registry (SQLite), liveness and evaluation are the hub's own. HTTP and notifications are left out.
Nodes without virtual machines are allocated as bare metal, from the third minute on. Agents report every 30 s. The
rules are evaluated every 60 s, and batches are flushed just before: a hub flushes every second, so that an evaluation
has all of them, too.

The fleet has what a healthy fleet has, see `disturbances`: pods and jobs come and go, virtual machines are replaced,
agents and nodes restart, guests restart, uplinks fail for a minute, batches and values are late, and clocks are off by
up to 2 s. The hub is killed every few hours and starts again after up to 50 s; its clock is stepped by up to 0.4 s.

Exit code 1 if a finding opened. `--faults` adds faults of `simulate fleet`, to see that the run finds them.
"""

import argparse
import asyncio
import datetime as dt
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpufleet.hub.receive.ingest import EpochConflictError
from gpufleet.model.allocation import AllocationKind, AllocationSpec, Target
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.finding import Finding
from gpufleet.model.stored.findings import TransitionKind
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.agents import AgentTiming, EncodedBatch, SimulatedAgent, SimulatedCollector, create_agents
from gpufleet.simulate.fleet.faults import FaultKind, FleetFault, parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.hub.findings.evaluated_hub import EvaluatedHub

INTERVAL, STEP, MINUTE_STEPS = 30.0, 2.5, 24
HOUR = 3600
ALLOCATED_AFTER, TENANTS = 180, 3
"""Seconds until the machines are known and can be allocated, and the number of tenants."""

MAX_SHOWN = 50
"""Maximum number of findings that are printed."""

RESTART_HOURS = (2.0, 6.0)
"""Time between two kills of the hub."""

NOISE_HOURS = {
    FaultKind.AGENT_RESTART: (6.0, 5.0, 45.0, 0.0, 0.0),
    FaultKind.NODE_REBOOT: (24.0, 40.0, 75.0, 0.0, 0.0),
    FaultKind.BACKFILL: (8.0, 30.0, 75.0, 0.0, 0.0),
    FaultKind.LATE_DATA: (6.0, 300.0, 3600.0, 5.0, 40.0),
    FaultKind.DELAYED_BATCHES: (8.0, 60.0, 200.0, 1.0, 3.0),
    FaultKind.CLOCK_STEP: (2.0, 600.0, 7200.0, -2.0, 2.0),
    FaultKind.GUEST_DOWN: (12.0, 30.0, 150.0, 0.0, 0.0),
    FaultKind.GUEST_REPLACED: (6.0, 0.0, 0.0, 0.0, 0.0),
}
"""Mean hours between two occurrences on a node, shortest and longest duration in seconds, and range of the amount.

All of them are too short or too small for the default thresholds of the rules.
"""

WITHOUT_REPORTS = frozenset(
    {FaultKind.AGENT_RESTART, FaultKind.NODE_REBOOT, FaultKind.BACKFILL, FaultKind.DELAYED_BATCHES}
)
"""Kinds in which a node does not report. Together they could exceed a threshold, which is then a real finding."""

APART_SECONDS = 300
"""Minimum time between two of them on a node."""


def disturbances(seed: int, clusters: int, nodes: int, start: int, hours: float) -> Iterator[FleetFault]:
    """Yield the disturbances of a healthy fleet.

    Args:
        seed: seed of kinds, times and places.
        clusters, nodes: clusters, and nodes of each.
        start: nanoseconds since 1970.
        hours: duration of the run.
    """
    for cluster in range(1, clusters + 1):
        for node in range(1, nodes + 1):
            yield from _apart(_of_node(seed, cluster, node, start, hours))


def _apart(faults: Iterable[FleetFault]) -> Iterator[FleetFault]:
    """Yield the disturbances of a node in order; those without reports only apart from one another."""
    next_at = 0
    for one in sorted(faults, key=lambda fault: fault.begin):
        if one.kind in WITHOUT_REPORTS:
            if one.begin < next_at:
                continue
            next_at = one.end + APART_SECONDS * NANOS
        yield one


def _of_node(seed: int, cluster: int, node: int, start: int, hours: float) -> Iterator[FleetFault]:
    chance = random.Random(f"{seed} {cluster} {node}")
    for kind, (mean, shortest, longest, least, most) in NOISE_HOURS.items():
        second = chance.expovariate(1 / (mean * HOUR))
        while second < hours * HOUR:
            begin = start + int(second * NANOS)
            lasts = chance.uniform(shortest, longest)
            amount = chance.uniform(least, most)
            amount = round(amount) if kind is FaultKind.DELAYED_BATCHES else amount
            yield FleetFault(
                kind=kind,
                begin=begin,
                end=begin + int(lasts * NANOS),
                cluster=cluster,
                node=node,
                amount=amount,
            )
            second += lasts + chance.expovariate(1 / (mean * HOUR))


class StoredHub(EvaluatedHub):
    """Hub with the embedded store, which is opened again at each start."""

    def __init__(self, folder: Path, *clusters: str, start: int) -> None:
        """Take the folder, the clusters, and the time of the first start, nanoseconds since 1970."""
        self._first_start = start
        super().__init__(folder, *clusters)

    def open(self) -> None:
        """Start the hub with the state of its predecessor."""
        self.clock.advance(max(0.0, (self._first_start - self.clock.now_ns()) / NANOS))
        self.stored = ClickHouseStore.open(f"chdb://{self.folder}/store")
        self.stored.migrate(hub="hub")
        self.store = self.stored  # type: ignore[assignment]
        super().open()

    def close(self) -> None:
        """End the process."""
        super().close()
        self.stored.close()

    async def check(self) -> None:
        """Check nothing: registry and store always answer."""


class CleanFleet:
    """Fleet and hub.

    Attributes:
        restarts: number of kills of the hub.
        batches: number of accepted batches.
    """

    def __init__(self, folder: Path, spec: FleetSpec, start: int) -> None:
        """Take the folder, the fleet with its disturbances, and the start of the run, nanoseconds since 1970."""
        self.fleet = Fleet(spec)
        self.hub = StoredHub(folder, *self.fleet.cluster_ids(), start=start)
        self.restarts = self.batches = 0
        self._start, self._chance = start, random.Random(spec.seed)
        timing = AgentTiming(start=start, interval=INTERVAL)
        collectors = [SimulatedCollector(self.fleet, number, timing) for number in range(1, spec.clusters + 1)]
        self._agents: Sequence[SimulatedAgent] = [*create_agents(self.fleet, timing), *collectors]
        self._next_restart = self._draw_restart()
        self._read_to = 0
        at = dt.datetime.fromtimestamp(start / NANOS, dt.UTC)
        for number, name in enumerate(self.fleet.cluster_ids(), 1):
            self.hub.registry.put_cluster(name, ClusterSpec(expected=self.fleet.expected(number)), at)

    @property
    def second(self) -> float:
        """Simulated seconds since the start."""
        return (self.hub.clock.now_ns() - self._start) / NANOS

    async def pass_minute(self) -> list[Finding]:
        """Advance the clock by a minute, or by the pause of the hub; return the findings that opened."""
        for _ in range(MINUTE_STEPS):
            await self._pass_step()
        await self.hub.take()
        self.hub.is_caught_up = True
        await self.hub.evaluator.evaluate(self.hub.threads)
        if self.hub.status.failure:
            raise RuntimeError(self.hub.status.failure)
        opened = self._opened()
        if self.second >= self._next_restart:
            await self._restart()
        return opened

    async def _pass_step(self) -> None:
        await self.hub.advance(STEP)
        await self._post()

    async def _restart(self) -> None:
        """Kill the hub with batches that are not flushed; its clock is stepped."""
        for _ in range(self._chance.randrange(1, MINUTE_STEPS)):
            await self._pass_step()
        self.hub.is_caught_up = False
        self.hub.restart_after(self._chance.uniform(1.0, 50.0))
        self.hub.clock.step(self._chance.uniform(-0.4, 0.4))
        self.restarts += 1
        self._next_restart = self.second + self._draw_restart()

    async def allocate(self, count: int) -> None:
        """Allocate the first nodes without virtual machines, each to a tenant with all its GPUs."""
        nodes = [one for one in self.fleet.nodes() if not one.is_passthrough and not one.guests]
        for number, node in enumerate(nodes[:count]):
            spec = AllocationSpec(
                kind=AllocationKind.BARE_METAL,
                target=Target(cluster=self.fleet.cluster_id(node.cluster), machine=node.name),
                tenant=f"tenant-{number % TENANTS}",
                expected={"any": len(node.gpus)},
            )
            await self.hub.allocations.put(f"allocation-{number}", spec)

    def _draw_restart(self) -> float:
        return self._chance.uniform(*RESTART_HOURS) * HOUR

    async def _post(self) -> None:
        now, due = self.hub.clock.now_ns(), []
        for agent in self._agents:
            while agent.next_at <= now:
                agent.collect()
            while agent.waiting and not agent.is_cut_off(now):
                due.append((agent, agent.take()))
        await asyncio.gather(*(self._post_one(agent, body, now) for agent, body in due))
        self.batches += len(due)

    async def _post_one(self, agent: SimulatedAgent, body: EncodedBatch, now: int) -> None:
        try:
            await self.hub.ingest.receive(body.content, now)
        except EpochConflictError:
            agent.renew(body)

    def _opened(self) -> list[Finding]:
        found = self.hub.registered.finding_transitions(self._read_to, MAX_SHOWN)
        self._read_to = found[-1].number if found else self._read_to
        return [one.transition.finding for one in found if one.transition.kind is TransitionKind.OPENED]

    def end(self) -> None:
        """Close the hub."""
        self.hub.end()


async def run(folder: Path, options: argparse.Namespace) -> int:
    """Run the fleet; return the number of findings."""
    start = time.time_ns() - int((options.hours + 1) * HOUR) * NANOS
    nodes = options.nodes // options.clusters
    noise = disturbances(options.seed, options.clusters, nodes, start, options.hours)
    faults = (*noise, *parse_faults(options.faults, start))
    spec = FleetSpec(seed=options.seed, clusters=options.clusters, nodes=nodes, gpus=options.gpus, faults=faults)
    play, began, shown = CleanFleet(folder, spec, start), time.process_time(), 0
    print(f"{nodes * options.clusters} nodes x {options.gpus} GPUs, {options.hours:g} h, {len(faults)} disturbances")
    hour, is_allocated = 0, False
    try:
        while play.second < options.hours * HOUR:
            if play.second >= ALLOCATED_AFTER and not is_allocated:
                is_allocated = True
                await play.allocate(options.allocations)
            for one in await play.pass_minute():
                shown += 1
                if shown <= MAX_SHOWN:
                    evidence = ", ".join(f"{name}={text}" for name, text in one.evidence.items())
                    print(f"  {play.second / 60:.0f} min: {one.rule} {one.scope}: {evidence}", flush=True)
            if play.second >= (hour + 1) * HOUR:
                hour += 1
                cost = (time.process_time() - began) / (play.second / HOUR) / (nodes * options.clusters)
                print(f"{hour} h: {shown} findings, {cost * 1000:.0f} ms of processor time per node-hour", flush=True)
    finally:
        play.end()
    print(f"{shown} findings, {play.batches} batches, {play.restarts} restarts of the hub")
    return shown


def main(arguments: Sequence[str]) -> int:
    """Run; return 1 if a finding opened."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clean_fleet", description="Fleet without faults.")
    parser.add_argument("--nodes", type=int, default=200, help="nodes of all clusters")
    parser.add_argument("--clusters", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=2, help="GPUs per node")
    parser.add_argument("--hours", type=float, default=24.0, help="simulated time")
    parser.add_argument("--allocations", type=int, default=20, help="nodes that are allocated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", default="", help="additional faults, as for `gpufleet simulate fleet`")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        return 1 if asyncio.run(run(Path(folder), options)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
