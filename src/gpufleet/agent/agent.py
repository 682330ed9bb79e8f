"""The agent: reader loops fill the state; after each pass the pages are prepared and what is new goes to the outbox."""

import asyncio
import contextlib
import copy
import functools
import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from gpufleet.agent.collect.assemble import Assembler
from gpufleet.agent.collect.release import Holding, ReleaseFolder
from gpufleet.agent.collect.schedule import ReaderLoop
from gpufleet.agent.collect.state import Outcome, State, without_unnamed
from gpufleet.agent.events.timeline import Keeper, Timeline, status_before
from gpufleet.agent.guests.guests import Guests
from gpufleet.agent.publish.batches import Pending
from gpufleet.agent.publish.pages import Form, Pages, Showing
from gpufleet.delivery.export import AgentStats, LaneStats
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.wire.batch import MachineReport
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader
from gpufleet.runtime import give_back_memory

if TYPE_CHECKING:  # the first brings the HTTP client, which an agent that pushes nowhere does without
    from gpufleet.agent.publish.outbox import Delivery
    from gpufleet.delivery.export import Export

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.05
"""Passes that end this close together are shown together."""

BATCH_SECONDS = 1.0
"""Passes that end this close together travel together."""

FLUSH_SECONDS = 3.0
"""How long stopping waits for the hub to take what is left; the rest stays in the spool."""


class Agent:
    """Runs until cancelled; what it shows is what passes have brought, never what it would have to read first.

    Attributes:
        missing: `reader/lane` of every lane whose first pass is not shown yet; empty when the agent is ready.
    """

    def __init__(
        self,
        readers: Sequence[tuple[Reader, float]],
        *,
        intervals: Mapping[Lane, float],
        machine: Machine,
        name: str | None,
        clock: Clock,
        pages: Pages,
        delivery: "Delivery | None",
        capabilities: Mapping[str, str] | None = None,
        keeper: Keeper | None = None,
        boot: str = "",
        release: ReleaseFolder | None = None,
        holders: Collection[str] = (),
        guests: Guests | None = None,
        paces: Mapping[str, Mapping[Lane, float]] = MappingProxyType({}),
        exports: "Sequence[Export]" = (),
    ) -> None:
        """Take the parts.

        Args:
            readers: each with the seconds that a pass of it may take.
            intervals: seconds between passes of each lane.
            machine: evidence until a reader brings better.
            name: what to call the machine instead of its host name.
            clock: the clocks.
            pages: makes pages of metrics.
            delivery: the way to the hub, or None.
            capabilities: what there is to say of readers that were enabled and do not read, by name.
            keeper: remembers events over a restart.
            boot: id of this boot of the machine, or empty where it is not known.
            release: where an operator asks for the devices.
            holders: names of the readers that hold devices.
            guests: virtual machines to read, or None.
            paces: reader to seconds between its passes, for lanes in which it keeps another pace.
            exports: ways to other systems.
        """
        self._clock = clock
        self._guests = guests
        self._delivery = delivery
        self._exports = tuple(exports)
        self._capabilities = dict(capabilities or {})
        self._refresh_seconds = min(seconds for lane, seconds in intervals.items() if lane is not Lane.EVENT)
        self._holding = Holding(release, holders, clock)
        self._loops = [
            ReaderLoop(
                reader,
                intervals={**intervals, **paces.get(reader.name, {})},
                timeout_seconds=seconds,
                clock=clock,
                report=self._take,
                excuses=lambda failure: self._state.excuses(failure),
                withheld=functools.partial(self._why_not, reader.name),
            )
            for reader, seconds in readers
        ]
        statuses = [status for loop in self._loops for status in loop.statuses]
        self._keeper = keeper
        remembered = keeper.load() if keeper is not None else None
        self._timeline = Timeline(clock, boot=boot, remembered=remembered)
        self._saved = copy.deepcopy(remembered)
        self._told = asyncio.Event()
        events = remembered.events if remembered is not None else ()
        self._state = State(machine, [*statuses, status_before()], name=name, events=events)
        self._pending = Pending()
        self._events: list[Event] = []  # that exports have not heard of
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._stats = AgentStats(
            started_at=clock.now_ns(),
            lanes={(status.reader, status.lane): LaneStats() for status in self._state.statuses.values()},
            exports={export.name: export.stats for export in self._exports},
        )
        self._assembler = Assembler()
        self._showing = Showing(self._assemble, pages, self._newest_stats, monotonic=clock.monotonic)
        self.missing = self._state.missing()

    async def snapshot(self) -> Snapshot:
        """Return the document."""
        return await self._showing.snapshot()

    async def page(self, form: Form) -> bytes:
        """Return a page of metrics."""
        return await self._showing.page(form)

    async def run(self) -> None:
        """Run until cancelled, then close the readers and hand over what is left, within a few seconds."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for loop in self._loops:
                    tasks.create_task(loop.run(), name=f"reader {loop.reader.name}")
                if self._guests is not None:
                    tasks.create_task(self._guests.run(self._hear_guests), name="guests")
                tasks.create_task(self._keep_settling(), name="events")
                tasks.create_task(self._keep_prepared(), name="pages")
                for export in self._exports:
                    tasks.create_task(export.run(), name=f"export {export.name}")
                if self._delivery is not None:
                    tasks.create_task(self._keep_posting(self._delivery), name="outbox")
                    tasks.create_task(self._delivery.pusher.run(), name="push")
        finally:
            self._settle(everything=True)
            await self._flush()
            await self._remember()

    async def _flush(self) -> None:
        """Send what is left, everywhere at once."""
        if self._exports and not self._state.missing():
            await self._offer(self._showing.newest())
        ways = [export.flush() for export in self._exports]
        if self._delivery is not None:
            ways.append(self._hand_over(self._delivery))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.gather(*ways)

    def _why_not(self, reader: str) -> Absent | None:
        for event in self._holding.look():
            self._timeline.tell(event)
            self._told.set()
        return self._holding.why_not(reader)

    def _take(self, outcome: Outcome) -> None:
        """Take what a reader's pass came to; its events are the timeline's."""
        outcome = without_unnamed(outcome, self._state)
        self._take_in(self._timeline.take(self._holding.take(outcome, self._state), self._state))
        self._told.set()

    def _take_in(self, outcome: Outcome) -> None:
        before = self._state.statuses[outcome.status.reader, outcome.status.lane]
        self._state.apply(outcome)
        counts = self._stats.lanes[outcome.status.reader, outcome.status.lane]
        counts.passes += 1
        counts.failures += self._state.judged(outcome.status).state is ReaderState.FAILED
        if self._delivery is not None:
            self._pending.add(outcome)
        if self._exports and outcome.round is not None:
            self._events += outcome.round.events
        if _is_news(outcome, before):
            self._news.set()
            self._changed.set()
            self._showing.change()

    def _settle(self, *, everything: bool = False) -> None:
        outcome = self._timeline.settle(self._state, released=self._holding.release is not None, everything=everything)
        if outcome is not None:
            self._take_in(outcome)

    async def _keep_settling(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeline.due_in()):
                    await self._told.wait()
            self._told.clear()
            self._settle()
            if self._delivery is None:
                await self._remember()

    async def _remember(self) -> None:
        """Save what was told; with a hub, not before it is in the spool."""
        if self._keeper is None:
            return
        remembered = self._timeline.remembered(self._state)
        if remembered != self._saved:
            self._saved = copy.deepcopy(remembered)
            await asyncio.to_thread(self._keeper.save, self._saved)

    async def _keep_prepared(self) -> None:
        while True:
            # Without any pass ending, readings still grow old and have to leave.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_seconds):
                    await self._changed.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._changed.clear()
            missing = self._state.missing()
            await self._showing.renew()
            if self._exports and not missing:  # before that the machine may not be known
                await self._offer(await self._showing.snapshot())
            if self.missing and not missing:
                give_back_memory()  # what starting took
            self.missing = missing

    async def _offer(self, snapshot: Snapshot) -> None:
        """Give exports a document, and what happened since the one before."""
        events, self._events = self._events, []
        for export in self._exports:
            await export.offer(snapshot, self._newest_stats(), events)

    def _hear_guests(self) -> None:
        self._news.set()
        self._changed.set()
        self._showing.change()

    def _assemble(self) -> Generator[None, None, Snapshot]:
        capability = "no hub is configured" if self._delivery is None else self._delivery.capability
        files = {} if self._guests is None else {"guests": self._guests.capability}
        snapshot = yield from self._assembler.steps(
            self._state,
            now=self._clock.monotonic(),
            now_ns=self._clock.now_ns(),
            capabilities={
                **self._capabilities,
                **files,
                "push": capability,
                **{export.name: export.capability for export in self._exports},
            },
        )
        if self._guests is not None:
            found = yield from self._guests.documents(snapshot.node.name)
            snapshot = msgspec.structs.replace(snapshot, guests=found)
        return snapshot

    def _newest_stats(self) -> AgentStats:
        if self._delivery is not None:
            self._stats.send = self._delivery.outbox.stats
            self._stats.queue = self._delivery.outbox.queue_stats()
        return self._stats

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
        guests: tuple[MachineReport, ...] = ()
        if not self._state.missing():
            if self._pending:
                report = self._pending.take(self._showing.newest(), self._clock.now_ns(), self._state.judged)
            if self._guests is not None:
                guests = self._guests.take(self._state.machine.name)
        if await delivery.outbox.post(report, *guests):
            delivery.pusher.wake()
            if report is not None:
                await self._remember()

    async def _hand_over(self, delivery: "Delivery") -> None:
        await self._post(delivery)
        await delivery.pusher.flush()


def _is_news(outcome: Outcome, before: ReaderStatus) -> bool:
    """Whether anybody waits for it. The event lanes pass every second, and mostly have nothing to say."""
    if outcome.status.lane is not Lane.EVENT or before.state is not outcome.status.state:
        return True
    if outcome.status.last_error != before.last_error:
        return True
    return outcome.round is not None and bool(outcome.round.samples or outcome.round.events)
