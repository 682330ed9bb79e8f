"""The way from the fleet's agents to a hub: each batch by itself, or many in a bundle as a relay sends them.

The newest batch of an agent goes first, then what waits. What a hub does not take now waits for as long as it asks, and
so does everything else of that cluster but what is on its way already.
"""

import asyncio
import random
from collections import deque
from types import TracebackType
from typing import Protocol, Self

import msgspec

from gpufleet.delivery.pacing import retry_delay
from gpufleet.delivery.post import Answer, Verdict
from gpufleet.simulate.fleet.agents import Agent, Body

BUNDLE = 256
"""Batches of one post of a bundling sender: a relay's."""

CONNECTIONS = 8
"""Posts at once of a cluster whose agents post themselves."""


class Way(Protocol):
    """The way to a hub, open while it is used as a context: a client of it, or what tells batches in other words."""

    async def __aenter__(self) -> Self:
        """Make ready to connect."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the connections."""
        ...

    async def post(self, body: bytes) -> Answer:
        """Post one batch."""
        ...

    async def post_bundle(self, bodies: list[bytes]) -> list[Answer]:
        """Post several; return one answer each."""
        ...


class Manner(msgspec.Struct, frozen=True):
    """How batches go.

    Attributes:
        connections: posts at once of a cluster.
        bundle: batches of one post.
        oldest_first: in the order of their making; otherwise the newest goes before what waits.
    """

    connections: int = CONNECTIONS
    bundle: int = 1
    oldest_first: bool = False


ALONE = Manner()
"""Each agent by itself."""

BUNDLED = Manner(connections=1, bundle=BUNDLE)
"""One sender for a cluster, as a relay is."""

IN_ORDER = Manner(connections=1, oldest_first=True)
"""One writer for a cluster, as a Prometheus is: series go forward only."""


class Counts(msgspec.Struct):
    """What became of batches.

    Attributes:
        made: that agents numbered, and that wait or waited to be sent.
        acknowledged: that the hub has.
        refused: that it will never take.
        renumbered: that came under an epoch of which another machine's were there first.
        again: posts of a batch that are made again.
        dropped: lost because too much waited.
        error: what the hub said last that was no acknowledgement; empty once it takes batches again.
    """

    made: int = 0
    acknowledged: int = 0
    refused: int = 0
    renumbered: int = 0
    again: int = 0
    dropped: int = 0
    error: str = ""

    @property
    def answered(self) -> int:
        """Batches that the hub has said anything of but to come again."""
        return self.acknowledged + self.refused + self.renumbered

    @property
    def waiting(self) -> int:
        """Batches of which nothing is known yet."""
        return self.made - self.acknowledged - self.refused - self.dropped


class Poster:
    """Posts for the agents of one cluster."""

    def __init__(self, way: Way, counts: Counts, settled: asyncio.Event, manner: Manner) -> None:
        """Take the way, where it is counted, what is set whenever a post has come to something, and how it is gone."""
        self._way = way
        self._counts = counts
        self._settled = settled
        self._manner = manner
        self._ready: deque[Agent] = deque()
        self._queued: set[Agent] = set()
        self._news = asyncio.Event()
        self._failures = 0
        self._resume_at = 0.0
        self.in_flight = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way, or ready to go."""
        return not self._ready and not self.in_flight

    def offer(self, agent: Agent) -> None:
        """Say that an agent has something to send."""
        if agent.waiting and agent not in self._queued:
            self._queued.add(agent)
            self._ready.append(agent)
            self._news.set()

    async def run(self) -> None:
        """Post until cancelled."""
        async with self._way, asyncio.TaskGroup() as group:
            for _ in range(self._manner.connections):
                group.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if (pause := self._resume_at - loop.time()) > 0:
                await asyncio.sleep(pause)
                continue  # others may have been told to wait for longer
            taken = self._take()
            if not taken:
                self._news.clear()
                await self._news.wait()
                continue
            self.in_flight += len(taken)
            answers: list[Answer] = []
            try:
                answers = await self._post([body.content for _, body in taken])
            finally:
                self.in_flight -= len(taken)
                if not answers:  # cancelled in the middle
                    for agent, body in taken:
                        agent.put_back(body)
            self._settle(taken, answers)

    def _take(self) -> list[tuple[Agent, Body]]:
        taken: list[tuple[Agent, Body]] = []
        while self._ready and len(taken) < self._manner.bundle:
            agent = self._ready.popleft()
            self._queued.discard(agent)
            taken.append((agent, agent.take(oldest=self._manner.oldest_first)))
            if self._manner.bundle > 1:
                self.offer(agent)
        return taken

    async def _post(self, contents: list[bytes]) -> list[Answer]:
        if self._manner.bundle == 1:
            return [await self._way.post(contents[0])]
        return await self._way.post_bundle(contents)

    def _settle(self, taken: list[tuple[Agent, Body]], answers: list[Answer]) -> None:
        later: list[Answer] = []
        self._settled.set()
        for (agent, body), answer in zip(taken, answers, strict=True):
            match answer.verdict:
                case Verdict.TAKEN:
                    self._counts.acknowledged += 1
                case Verdict.REFUSED:
                    self._counts.refused += 1
                    self._counts.error = str(answer)
                case Verdict.CONFLICT:
                    agent.renew(body)
                    self._counts.renumbered += 1
                case Verdict.LATER:
                    agent.put_back(body)
                    later.append(answer)
        if later:
            self._failures += 1
            self._counts.again += len(later)
            self._counts.error = str(later[0])
            # All connections fail together: what counts in a row is how often each of them has.
            often = -(-self._failures // self._manner.connections)
            delay = retry_delay(often, later[0].retry_after, random.random())  # noqa: S311
            self._resume_at = max(self._resume_at, asyncio.get_running_loop().time() + delay)
        elif any(answer.verdict is Verdict.TAKEN for answer in answers):
            self._failures, self._counts.error = 0, "" if not self._counts.refused else self._counts.error
        for agent, _ in taken:
            self.offer(agent)
