"""Runs a fleet against a hub: agents look when they are due, posters post, and what became of it is counted."""

import asyncio
import contextlib
import heapq
import time
from collections.abc import Mapping

import msgspec

from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.agents import Timing, agents_of
from gpufleet.simulate.fleet.chance import FleetClock
from gpufleet.simulate.fleet.fleet import Fleet
from gpufleet.simulate.fleet.posting import ALONE, Counts, Manner, Poster, Way

MAX_WAITING = 100_000
"""Batches that may wait for the hub; beyond it each new one costs its agent's oldest, as where a spool is full."""

AHEAD_BATCHES = 5_000
"""Where time is not the wall's it stands still while so many batches wait."""

LOOKS_A_TURN = 50
"""Looks in a row without letting the posters post."""

ROOM_SECONDS = 0.5
"""How often is looked whether there is room, where no post tells."""

PATIENCE_SECONDS = 120.0
"""How long a run with an end waits for a hub that takes nothing: longer than one takes to start again."""

STOP_SECONDS = 5.0
"""How long stopping waits for what is on its way."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    Attributes:
        clusters, nodes, gpus: of the fleet, in all.
        simulated_seconds: of the fleet's time.
        made: batches that agents numbered and sent.
        acknowledged, refused, renumbered, again, dropped, error: as in `Counts`.
        waiting: batches that no hub has taken.
        behind_seconds: how late the latest look was.
        silent_seconds: how long the hub has taken nothing while the run waited for nothing else.
    """

    clusters: int
    nodes: int
    gpus: int
    simulated_seconds: float
    made: int
    acknowledged: int
    refused: int
    renumbered: int
    again: int
    dropped: int
    waiting: int
    behind_seconds: float
    silent_seconds: float = 0.0
    error: str = ""


class Run:
    """One fleet, one hub. `stop` ends it."""

    def __init__(
        self,
        fleet: Fleet,
        timing: Timing,
        *,
        speed: float = 1.0,
        seconds: float | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Take the fleet, when its agents look, and how long it runs in its own time; None for until stopped.

        A run with an end gives up when the hub has taken nothing for `patience_seconds` and nothing else is left to do.
        """
        self._fleet = fleet
        self._timing = timing
        self._speed = speed
        self._end = None if seconds is None else timing.start + int(seconds * NANOS)
        self._counts = Counts()
        self._agents = agents_of(fleet, timing)
        self._stop = asyncio.Event()
        self._settled = asyncio.Event()
        self._behind = 0.0
        self._patience = patience_seconds
        self._answered = 0
        self._silent_since: float | None = None
        self._reached = timing.start

    def stop(self) -> None:
        """Look no more; `run` returns when what is under way is settled."""
        self._stop.set()

    @property
    def summary(self) -> Summary:
        """What it has come to so far."""
        spec = self._fleet.spec
        nodes = spec.clusters * spec.nodes
        counts = self._counts
        return Summary(
            clusters=spec.clusters,
            nodes=nodes,
            gpus=nodes * spec.gpus,
            simulated_seconds=max(0.0, (self._reached - self._timing.start) / NANOS),
            made=counts.made,
            acknowledged=counts.acknowledged,
            refused=counts.refused,
            renumbered=counts.renumbered,
            again=counts.again,
            dropped=counts.dropped,
            waiting=counts.waiting,
            behind_seconds=round(self._behind, 1),
            silent_seconds=round(self._silent_seconds, 1),
            error=counts.error,
        )

    async def run(self, ways: Mapping[str, Way], manner: Manner = ALONE) -> Summary:
        """Send until the end, until stopped, or until a poster fails.

        Args:
            ways: to the hub, for each cluster's id.
            manner: how batches go there.
        """
        posters = {
            cluster: Poster(ways[self._fleet.cluster_id(cluster)], self._counts, self._settled, manner)
            for cluster in range(1, self._fleet.spec.clusters + 1)
        }
        tasks = [asyncio.create_task(poster.run()) for poster in posters.values()]
        looking = asyncio.create_task(self._look(posters))
        try:
            done, _ = await asyncio.wait({looking, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (looking, *tasks):
                task.cancel()
            await asyncio.gather(looking, *tasks, return_exceptions=True)
        return self.summary

    async def _look(self, posters: dict[int, Poster]) -> None:
        clock = FleetClock(self._timing.start, self._speed)
        due = [(agent.next_at, at) for at, agent in enumerate(self._agents)]
        heapq.heapify(due)
        looks = 0
        while due and not self._stop.is_set():
            at, which = due[0]
            if self._end is not None and at >= self._end:
                break
            await clock.wait_until(at, self._stop)
            await self._wait_for_room()
            if self._stop.is_set() or self._gives_up:
                break
            agent = self._agents[which]
            self._counts.made += agent.look()
            if self._counts.waiting > MAX_WAITING and agent.waiting:
                agent.drop_oldest()
                self._counts.dropped += 1
            self._reached = max(self._reached, at)
            if not agent.is_cut_off(at):
                posters[agent.cluster].offer(agent)
            heapq.heapreplace(due, (agent.next_at, which))
            self._behind = max(self._behind, clock.behind(at))
            looks += 1
            if looks % LOOKS_A_TURN == 0:
                await asyncio.sleep(0)
        await self._drain(posters)

    async def _wait_for_room(self) -> None:
        while self._speed != 1.0 and self._counts.waiting > AHEAD_BATCHES and not self._stop.is_set():
            if self._gives_up:
                return
            await self._wait(ROOM_SECONDS)
        self._silent_since = None

    async def _drain(self, posters: dict[int, Poster]) -> None:
        """Wait until nothing is on its way; once stopped, or where nobody takes it, for a little while only."""
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
            await self._wait(ROOM_SECONDS)
        self._silent_since = None

    @property
    def _silent_seconds(self) -> float:
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    @property
    def _gives_up(self) -> bool:
        return self._end is not None and self._silent_seconds >= self._patience

    async def _wait(self, seconds: float) -> None:
        """Wait until a post has come to something, or for so long."""
        if self._silent_since is None or self._counts.answered != self._answered:
            self._silent_since, self._answered = time.monotonic(), self._counts.answered
        self._settled.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()
