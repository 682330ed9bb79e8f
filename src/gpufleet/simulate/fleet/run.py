"""Runs a fleet against a hub: agents collect when due, posters send the batches, and the results are counted."""

import asyncio
import contextlib
import heapq
import time
from collections.abc import Mapping

import msgspec

from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.agents import AgentTiming, create_agents
from gpufleet.simulate.fleet.fleet import Fleet
from gpufleet.simulate.fleet.posting import SEPARATE, BatchClient, ClusterPoster, PostCounts, SendMode
from gpufleet.simulate.fleet.random_values import FleetClock

MAX_WAITING = 100_000
"""Maximum number of queued batches; beyond it each new batch drops its agent's oldest, as with a full spool."""

MAX_AHEAD_BATCHES = 5_000
"""Queued batches from which on simulated time stops, unless it runs at real speed."""

PASSES_PER_TURN = 50
"""Collection passes before the posters get a turn."""

POLL_SECONDS = 0.5
"""Interval at which queue space is checked if no post completes."""

GIVE_UP_SECONDS = 120.0
"""Time that a run with an end waits for a hub that accepts nothing: longer than a restart of the hub."""

STOP_SECONDS = 5.0
"""Time that a stop waits for posts in flight."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run.

    Attributes:
        clusters, nodes, gpus: total size of the fleet.
        simulated_seconds: of the fleet's time.
        made: batches that agents queued.
        acknowledged, rejected, renumbered, retries, dropped, error: as in `PostCounts`.
        waiting: batches that no hub has acknowledged.
        behind_seconds: largest delay of a collection pass.
        stalled_seconds: time in which the hub accepted nothing while the run waited for nothing else.
    """

    clusters: int
    nodes: int
    gpus: int
    simulated_seconds: float
    made: int
    acknowledged: int
    rejected: int
    renumbered: int
    retries: int
    dropped: int
    waiting: int
    behind_seconds: float
    stalled_seconds: float = 0.0
    error: str = ""


class FleetRun:
    """Run of a fleet against a hub. `stop` ends it."""

    def __init__(
        self,
        fleet: Fleet,
        timing: AgentTiming,
        *,
        speed: float = 1.0,
        seconds: float | None = None,
        give_up_seconds: float = GIVE_UP_SECONDS,
    ) -> None:
        """Take the fleet, the collection times, and the duration in simulated time; None for until stopped.

        A run with an end gives up if the hub accepts nothing for `give_up_seconds` and nothing else is left to do.
        """
        self._fleet = fleet
        self._timing = timing
        self._speed = speed
        self._end = None if seconds is None else timing.start + int(seconds * NANOS)
        self._counts = PostCounts()
        self._agents = create_agents(fleet, timing)
        self._stop = asyncio.Event()
        self._settled = asyncio.Event()
        self._behind = 0.0
        self._give_up_seconds = give_up_seconds
        self._answered = 0
        self._stalled_since: float | None = None
        self._reached = timing.start

    def stop(self) -> None:
        """Stop collecting; `run` returns when the posts in flight are complete."""
        self._stop.set()

    @property
    def summary(self) -> RunSummary:
        """Result so far."""
        spec = self._fleet.spec
        nodes = spec.clusters * spec.nodes
        counts = self._counts
        return RunSummary(
            clusters=spec.clusters,
            nodes=nodes,
            gpus=nodes * spec.gpus,
            simulated_seconds=max(0.0, (self._reached - self._timing.start) / NANOS),
            made=counts.made,
            acknowledged=counts.acknowledged,
            rejected=counts.rejected,
            renumbered=counts.renumbered,
            retries=counts.retries,
            dropped=counts.dropped,
            waiting=counts.waiting,
            behind_seconds=round(self._behind, 1),
            stalled_seconds=round(self._stalled_seconds, 1),
            error=counts.error,
        )

    async def run(self, clients: Mapping[str, BatchClient], mode: SendMode = SEPARATE) -> RunSummary:
        """Send until the end, until stopped, or until a poster fails.

        Args:
            clients: hub client by cluster id.
            mode: how batches are sent.
        """
        posters = {
            cluster: ClusterPoster(clients[self._fleet.cluster_id(cluster)], self._counts, self._settled, mode)
            for cluster in range(1, self._fleet.spec.clusters + 1)
        }
        tasks = [asyncio.create_task(poster.run()) for poster in posters.values()]
        collecting = asyncio.create_task(self._collect(posters))
        try:
            done, _ = await asyncio.wait({collecting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (collecting, *tasks):
                task.cancel()
            await asyncio.gather(collecting, *tasks, return_exceptions=True)
        return self.summary

    async def _collect(self, posters: dict[int, ClusterPoster]) -> None:
        clock = FleetClock(self._timing.start, self._speed)
        due = [(agent.next_at, at) for at, agent in enumerate(self._agents)]
        heapq.heapify(due)
        passes = 0
        while due and not self._stop.is_set():
            at, which = due[0]
            if self._end is not None and at >= self._end:
                break
            await clock.wait_until(at, self._stop)
            await self._wait_for_room()
            if self._stop.is_set() or self._gives_up:
                break
            agent = self._agents[which]
            self._counts.made += agent.collect()
            if self._counts.waiting > MAX_WAITING and agent.waiting:
                agent.drop_oldest()
                self._counts.dropped += 1
            self._reached = max(self._reached, at)
            if not agent.is_cut_off(at):
                posters[agent.cluster].offer(agent)
            heapq.heapreplace(due, (agent.next_at, which))
            self._behind = max(self._behind, clock.behind(at))
            passes += 1
            if passes % PASSES_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._drain(posters)

    async def _wait_for_room(self) -> None:
        while self._speed != 1.0 and self._counts.waiting > MAX_AHEAD_BATCHES and not self._stop.is_set():
            if self._gives_up:
                return
            await self._wait(POLL_SECONDS)
        self._stalled_since = None

    async def _drain(self, posters: dict[int, ClusterPoster]) -> None:
        """Wait until nothing is in flight; once stopped, or if the hub accepts nothing, only for a limited time."""
        if not self._stop.is_set():
            for agent in self._agents:
                if not agent.is_cut_off(self._reached):
                    posters[agent.cluster].offer(agent)
        stopped_at: float | None = None
        while not all(poster.is_idle for poster in posters.values()):
            if self._stop.is_set():
                stopped_at = stopped_at or time.monotonic()
                if time.monotonic() - stopped_at >= STOP_SECONDS:
                    return
            elif self._gives_up:
                return
            await self._wait(POLL_SECONDS)
        self._stalled_since = None

    @property
    def _stalled_seconds(self) -> float:
        return 0.0 if self._stalled_since is None else time.monotonic() - self._stalled_since

    @property
    def _gives_up(self) -> bool:
        return self._end is not None and self._stalled_seconds >= self._give_up_seconds

    async def _wait(self, seconds: float) -> None:
        """Wait until a post completes, or for `seconds`."""
        if self._stalled_since is None or self._counts.answered != self._answered:
            self._stalled_since, self._answered = time.monotonic(), self._counts.answered
        self._settled.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()
