"""The agent: reader loops fill the state; after each pass the pages are prepared and what is new goes to the outbox."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpufleet.agent.assemble import assemble
from gpufleet.agent.batches import Pending
from gpufleet.agent.outcome import Outcome
from gpufleet.agent.schedule import ReaderLoop
from gpufleet.agent.state import State
from gpufleet.agent.stats import AgentStats, LaneStats
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderState
from gpufleet.ports import Clock, Reader

if TYPE_CHECKING:  # it brings the HTTP client, which an agent that pushes nowhere does without
    from gpufleet.agent.delivery import Delivery

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.05
"""Passes that end this close together are shown together."""

BATCH_SECONDS = 1.0
"""Passes that end this close together travel together."""

FLUSH_SECONDS = 3.0
"""How long stopping waits for the hub to take what is left; the rest stays in the spool."""


class Agent:
    """Runs until cancelled; what it shows is always the last that was prepared.

    Attributes:
        snapshot: the newest document.
        metrics_page: the newest page, as bytes.
        missing: `reader/lane` of every lane whose first pass is not in them yet; empty when the agent is ready.
    """

    def __init__(
        self,
        readers: Sequence[tuple[Reader, float]],
        *,
        intervals: Mapping[Lane, float],
        machine: Machine,
        name: str | None,
        clock: Clock,
        render: Callable[[Snapshot, AgentStats], bytes],
        delivery: "Delivery | None",
        capabilities: Mapping[str, str] | None = None,
    ) -> None:
        """Take the parts.

        Args:
            readers: each with the seconds that a pass of it may take.
            intervals: seconds between passes of each lane.
            machine: evidence until a reader brings better.
            name: what to call the machine instead of its host name.
            clock: the clocks.
            render: makes the metrics page.
            delivery: the way to the hub, or None.
            capabilities: what there is to say of readers that were enabled and do not read, by name.
        """
        self._clock = clock
        self._render = render
        self._delivery = delivery
        self._capabilities = dict(capabilities or {})
        self._refresh_seconds = min(intervals.values())
        self._loops = [
            ReaderLoop(
                reader,
                intervals=intervals,
                timeout_seconds=seconds,
                clock=clock,
                report=self._take,
                excuses=lambda failure: self._state.excuses(failure),
            )
            for reader, seconds in readers
        ]
        statuses = [status for loop in self._loops for status in loop.statuses]
        self._state = State(machine, statuses, name=name)
        self._pending = Pending()
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._stats = AgentStats(
            started_at=clock.now_ns(), lanes={(status.reader, status.lane): LaneStats() for status in statuses}
        )
        self.snapshot: Snapshot
        self.metrics_page: bytes
        self.missing: tuple[str, ...]
        self._prepare()

    async def run(self) -> None:
        """Run until cancelled, then close the readers and hand over what is left, within a few seconds."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for loop in self._loops:
                    tasks.create_task(loop.run(), name=f"reader {loop.reader.name}")
                tasks.create_task(self._keep_prepared(), name="pages")
                if self._delivery is not None:
                    tasks.create_task(self._keep_posting(self._delivery), name="outbox")
                    tasks.create_task(self._delivery.pusher.run(), name="push")
        finally:
            if self._delivery is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_SECONDS):
                        await self._hand_over(self._delivery)

    def _take(self, outcome: Outcome) -> None:
        self._state.apply(outcome)
        if self._delivery is not None:
            self._pending.add(outcome)
            self._news.set()
        counts = self._stats.lanes[outcome.status.reader, outcome.status.lane]
        counts.passes += 1
        counts.failures += self._state.judged(outcome.status).state is ReaderState.FAILED
        self._changed.set()

    async def _keep_prepared(self) -> None:
        while True:
            # Without any pass ending, readings still grow old and have to leave.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_seconds):
                    await self._changed.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._prepare()

    def _prepare(self) -> None:
        self._changed.clear()
        self.missing = self._state.missing()
        capability = "no hub is configured" if self._delivery is None else self._delivery.capability
        self.snapshot = assemble(
            self._state,
            now=self._clock.monotonic(),
            now_ns=self._clock.now_ns(),
            capabilities={**self._capabilities, "push": capability},
        )
        if self._delivery is not None:
            self._stats.send = self._delivery.outbox.stats
            self._stats.queue = self._delivery.outbox.queue_stats()
        self.metrics_page = self._render(self.snapshot, self._stats)

    async def _keep_posting(self, delivery: "Delivery") -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delivery.outbox.heartbeat_due_in()):
                    await self._news.wait()
            await asyncio.sleep(BATCH_SECONDS)
            await self._post(delivery)

    async def _post(self, delivery: "Delivery") -> None:
        """Post what is new; not before every lane had its first pass, as the machine may not be known till then."""
        self._news.clear()
        report = None
        if self._changed.is_set():
            self._prepare()
        if self._pending and not self.missing:
            report = self._pending.take(self.snapshot, self._clock.now_ns(), self._state.judged)
        if await delivery.outbox.post(report):
            delivery.pusher.wake()

    async def _hand_over(self, delivery: "Delivery") -> None:
        await self._post(delivery)
        await delivery.pusher.flush()
