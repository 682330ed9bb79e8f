"""Delivery of the agents' batches to a hub: one per post, or in bundles as a relay sends them.

The newest batch of an agent is sent first, then its backlog. After a retryable error the batch, and all others of its
cluster except those in flight, wait for the requested time.
"""

import asyncio
import random
from collections import deque
from types import TracebackType
from typing import Protocol, Self

import msgspec

from gpufleet.delivery.pacing import retry_delay
from gpufleet.delivery.post import HubAnswer, HubVerdict
from gpufleet.simulate.fleet.agents import EncodedBatch, SimulatedAgent

BUNDLE = 256
"""Batches per post of a bundling sender, such as a relay."""

CONNECTIONS = 8
"""Concurrent posts of a cluster whose agents post themselves."""


class BatchClient(Protocol):
    """Client of a hub, or an adapter to another protocol; open while it is used as a context."""

    async def __aenter__(self) -> Self:
        """Prepare to connect."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        ...

    async def post(self, body: bytes) -> HubAnswer:
        """Post a batch."""
        ...

    async def post_bundle(self, bodies: list[bytes]) -> list[HubAnswer]:
        """Post several batches; return an answer for each."""
        ...


class SendMode(msgspec.Struct, frozen=True):
    """Concurrency, bundling and order of posts.

    Attributes:
        connections: concurrent posts per cluster.
        bundle: batches per post.
        oldest_first: send in the order of creation; otherwise the newest batch precedes the backlog.
    """

    connections: int = CONNECTIONS
    bundle: int = 1
    oldest_first: bool = False


SEPARATE = SendMode()
"""Every agent posts by itself."""

BUNDLED = SendMode(connections=1, bundle=BUNDLE)
"""A single sender per cluster, as a relay."""

ORDERED = SendMode(connections=1, oldest_first=True)
"""A single writer per cluster, in order, as Prometheus remote write."""


class PostCounts(msgspec.Struct):
    """Counters of batches.

    Attributes:
        made: batches that agents queued.
        acknowledged: batches that the hub has.
        rejected: batches that it rejected permanently.
        renumbered: batches that came under an epoch that another machine already uses.
        retries: retryable failures of a batch.
        dropped: batches dropped because the queue was full.
        error: newest error of the hub; empty once it accepts batches again.
    """

    made: int = 0
    acknowledged: int = 0
    rejected: int = 0
    renumbered: int = 0
    retries: int = 0
    dropped: int = 0
    error: str = ""

    @property
    def answered(self) -> int:
        """Batches with a final answer of the hub."""
        return self.acknowledged + self.rejected + self.renumbered

    @property
    def waiting(self) -> int:
        """Batches without a final answer."""
        return self.made - self.acknowledged - self.rejected - self.dropped


class ClusterPoster:
    """Posts the batches of the agents of a cluster."""

    def __init__(self, client: BatchClient, counts: PostCounts, settled: asyncio.Event, mode: SendMode) -> None:
        """Take the hub client, the counters, an event that is set after every post, and the send mode."""
        self._client = client
        self._counts = counts
        self._settled = settled
        self._mode = mode
        self._ready: deque[SimulatedAgent] = deque()
        self._queued: set[SimulatedAgent] = set()
        self._news = asyncio.Event()
        self._failures = 0
        self._resume_at = 0.0
        self.in_flight = 0

    @property
    def is_idle(self) -> bool:
        """Return whether no batch is ready or in flight."""
        return not self._ready and not self.in_flight

    def offer(self, agent: SimulatedAgent) -> None:
        """Queue an agent if it has a batch to send."""
        if agent.waiting and agent not in self._queued:
            self._queued.add(agent)
            self._ready.append(agent)
            self._news.set()

    async def run(self) -> None:
        """Post until cancelled."""
        async with self._client, asyncio.TaskGroup() as group:
            for _ in range(self._mode.connections):
                group.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if (pause := self._resume_at - loop.time()) > 0:
                await asyncio.sleep(pause)
                continue  # another connection may have received a longer delay
            taken = self._take()
            if not taken:
                self._news.clear()
                await self._news.wait()
                continue
            self.in_flight += len(taken)
            answers: list[HubAnswer] = []
            try:
                answers = await self._post([body.content for _, body in taken])
            finally:
                self.in_flight -= len(taken)
                if not answers:  # cancelled during the post
                    for agent, body in taken:
                        agent.put_back(body)
            self._settle(taken, answers)

    def _take(self) -> list[tuple[SimulatedAgent, EncodedBatch]]:
        taken: list[tuple[SimulatedAgent, EncodedBatch]] = []
        while self._ready and len(taken) < self._mode.bundle:
            agent = self._ready.popleft()
            self._queued.discard(agent)
            taken.append((agent, agent.take(oldest=self._mode.oldest_first)))
            if self._mode.bundle > 1:
                self.offer(agent)
        return taken

    async def _post(self, contents: list[bytes]) -> list[HubAnswer]:
        if self._mode.bundle == 1:
            return [await self._client.post(contents[0])]
        return await self._client.post_bundle(contents)

    def _settle(self, taken: list[tuple[SimulatedAgent, EncodedBatch]], answers: list[HubAnswer]) -> None:
        later: list[HubAnswer] = []
        self._settled.set()
        for (agent, body), answer in zip(taken, answers, strict=True):
            match answer.verdict:
                case HubVerdict.ACCEPTED:
                    self._counts.acknowledged += 1
                case HubVerdict.REJECTED:
                    self._counts.rejected += 1
                    self._counts.error = str(answer)
                case HubVerdict.CONFLICT:
                    agent.renew(body)
                    self._counts.renumbered += 1
                case HubVerdict.RETRY:
                    agent.put_back(body)
                    later.append(answer)
        if later:
            self._failures += 1
            self._counts.retries += len(later)
            self._counts.error = str(later[0])
            # All connections fail together, so the number of consecutive failures is that of each connection.
            often = -(-self._failures // self._mode.connections)
            delay = retry_delay(often, later[0].retry_after, random.random())  # noqa: S311
            self._resume_at = max(self._resume_at, asyncio.get_running_loop().time() + delay)
        elif any(answer.verdict is HubVerdict.ACCEPTED for answer in answers):
            self._failures, self._counts.error = 0, "" if not self._counts.rejected else self._counts.error
        for agent, _ in taken:
            self.offer(agent)
