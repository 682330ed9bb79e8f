"""The agent: reader loops update the state; after each pass the pages and the next batch are prepared."""

import asyncio
import contextlib
import copy
import functools
import logging
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from gpufleet.agent.collect.assemble import Assembler
from gpufleet.agent.collect.holders import HolderCollector
from gpufleet.agent.collect.release import DeviceRelease, ReleaseFolder
from gpufleet.agent.collect.saved import SavedFile
from gpufleet.agent.collect.schedule import ReaderLoop
from gpufleet.agent.collect.state import AgentState, Outcome, without_unnamed
from gpufleet.agent.collect.unresolved import unresolved_devices
from gpufleet.agent.events.event_file import SavedEvents
from gpufleet.agent.events.timeline import Timeline, status_before
from gpufleet.agent.guests.guests import GuestSupervisor
from gpufleet.agent.publish.batches import PendingReport
from gpufleet.agent.publish.pages import PageCache, PageForm, PageWriter
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
from gpufleet.runtime import supervise, trim_memory

if TYPE_CHECKING:  # the first imports the HTTP client, which an agent without a hub does not need
    from gpufleet.delivery.export import Export
    from gpufleet.delivery.outbox import Delivery

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.05
"""Passes that end within this time are published together."""

BATCH_SECONDS = 1.0
"""Passes that end within this time share a batch."""

FLUSH_SECONDS = 3.0
"""Time limit for posting the queue at shutdown; the rest stays in the spool."""


class Agent:
    """Runs until cancelled. It serves what passes have read; no request triggers a reading.

    Attributes:
        missing: `reader/lane` of each lane whose first pass is not published yet; empty once the agent is ready.
    """

    def __init__(
        self,
        readers: Sequence[tuple[Reader, float]],
        *,
        intervals: Mapping[Lane, float],
        machine: Machine,
        name: str | None,
        clock: Clock,
        pages: PageWriter,
        delivery: "Delivery | None",
        capabilities: Mapping[str, str] | None = None,
        keeper: SavedFile[SavedEvents] | None = None,
        boot: str = "",
        release: ReleaseFolder | None = None,
        releasable: Collection[str] = (),
        guests: GuestSupervisor | None = None,
        holders: HolderCollector | None = None,
        paces: Mapping[str, Mapping[Lane, float]] = MappingProxyType({}),
        exports: "Sequence[Export]" = (),
    ) -> None:
        """Take the parts.

        Args:
            readers: each with the time limit of its passes in seconds.
            intervals: seconds between passes of each lane.
            machine: identity evidence until a reader provides better.
            name: replaces the machine's host name.
            clock: wall and monotonic time.
            pages: renders the metrics pages.
            delivery: the queue to the hub, or None.
            capabilities: status of enabled readers that do not read, by name.
            keeper: loads and saves events over a restart.
            boot: id of this boot of the machine; empty if unknown.
            release: where an operator requests a device release.
            releasable: names of the readers that use devices and can release them.
            guests: virtual machines to read, or None.
            holders: collects the holders of the devices, or None.
            paces: reader to its own intervals, for lanes that differ from `intervals`.
            exports: queues to other systems.
        """
        self._clock = clock
        self._guests = guests
        self._holders = holders
        self._has_reported = False
        self._delivery = delivery
        self._exports = tuple(exports)
        self._capabilities = dict(capabilities or {})
        self._refresh_seconds = min(seconds for lane, seconds in intervals.items() if lane is not Lane.EVENT)
        self._release = DeviceRelease(release, releasable, clock)
        self._loops = [
            ReaderLoop(
                reader,
                intervals={**intervals, **paces.get(reader.name, {})},
                timeout_seconds=seconds,
                clock=clock,
                report=self._take,
                nothing_to_read=lambda failure: self._state.nothing_to_read(failure),
                withheld=functools.partial(self._why_not, reader.name),
            )
            for reader, seconds in readers
        ]
        statuses = [status for loop in self._loops for status in loop.statuses]
        self._keeper = keeper
        saved = keeper.load() if keeper is not None else None
        self._timeline = Timeline(clock, boot=boot, saved=saved)
        self._saved = copy.deepcopy(saved)
        self._steps: tuple[Callable[[Outcome, AgentState], Outcome], ...] = (
            without_unnamed,  # drop MIG devices that another reader lists by UUID
            self._release.take,  # replace the values of released devices by their absence
            self._timeline.take,  # derive and group events
        )
        self._events_changed = asyncio.Event()
        events = saved.events if saved is not None else ()
        self._state = AgentState(machine, [*statuses, status_before()], name=name, events=events)
        self._pending = PendingReport()
        self._events: list[Event] = []  # not offered to exports yet
        self._changed = asyncio.Event()
        self._batch_due = asyncio.Event()
        self._stats = AgentStats(
            started_at=clock.now_ns(),
            lanes={(status.reader, status.lane): LaneStats() for status in self._state.statuses.values()},
            exports={export.name: export.stats for export in self._exports},
        )
        self._assembler = Assembler()
        self._showing = PageCache(self._assemble, pages, self._newest_stats, monotonic=clock.monotonic)
        self.missing = self._state.missing()

    async def snapshot(self) -> Snapshot:
        """Return the document."""
        return await self._showing.snapshot()

    async def page(self, form: PageForm) -> bytes:
        """Return a page of metrics."""
        return await self._showing.page(form)

    async def run(self) -> None:
        """Run until cancelled; then close the readers and post the queue within `FLUSH_SECONDS`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for loop in self._loops:
                    tasks.create_task(loop.run(), name=f"reader {loop.reader.name}")
                if self._guests is not None:
                    tasks.create_task(self._guests.run(self._note_change), name="guests")
                if self._holders is not None:
                    tasks.create_task(supervise(self._collect_holders, "holders"), name="holders")
                    if (pods := self._holders.pods) is not None:
                        read_pods = functools.partial(pods.run, self._node_name)
                        tasks.create_task(supervise(read_pods, "pods"), name="pods")
                tasks.create_task(self._emit_events(), name="events")
                tasks.create_task(self._refresh_pages(), name="pages")
                for export in self._exports:
                    tasks.create_task(export.run(), name=f"export {export.name}")
                if self._delivery is not None:
                    tasks.create_task(self._post_batches(self._delivery), name="outbox")
                    tasks.create_task(self._delivery.pusher.run(), name="push")
        finally:
            self._settle(everything=True)
            await self._flush()
            await self._save_events(is_last=True)

    async def _flush(self) -> None:
        """Post every queue concurrently."""
        if self._exports and not self._state.missing():
            await self._offer(self._showing.newest())
        flushes = [export.flush() for export in self._exports]
        if self._delivery is not None:
            flushes.append(self._flush_delivery(self._delivery))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.gather(*flushes)

    def _why_not(self, reader: str) -> Absent | None:
        for event in self._release.poll():
            self._timeline.add(event)
            self._events_changed.set()
        return self._release.why_not(reader)

    def _take(self, outcome: Outcome) -> None:
        """Put the outcome of a reader's pass through the steps in turn, then apply it."""
        for step in self._steps:
            outcome = step(outcome, self._state)
        self._apply(outcome)
        self._events_changed.set()

    def _apply(self, outcome: Outcome) -> None:
        before = self._state.statuses[outcome.status.reader, outcome.status.lane]
        self._state.apply(outcome)
        counts = self._stats.lanes[outcome.status.reader, outcome.status.lane]
        counts.passes += 1
        counts.failures += self._state.judged(outcome.status).state is ReaderState.FAILED
        if self._delivery is not None:
            self._pending.add(outcome)
        if self._exports and outcome.round is not None:
            self._events += outcome.round.events
        if _is_change(outcome, before):
            self._batch_due.set()
            self._changed.set()
            self._showing.change()

    def _settle(self, *, everything: bool = False) -> None:
        outcome = self._timeline.emit_pending(
            self._state, released=self._release.release is not None, everything=everything
        )
        if outcome is not None:
            self._apply(outcome)

    async def _emit_events(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeline.due_in()):
                    await self._events_changed.wait()
            self._events_changed.clear()
            self._settle()
            if self._delivery is None:
                await self._save_events()

    async def _save_events(self, *, is_last: bool = False) -> None:
        """Save the emitted events if there are new ones or the agent stops; with a hub, after they are in the spool."""
        if self._keeper is None:
            return
        saved = self._timeline.state_to_save(self._state)
        if is_last or saved.differs(self._saved):
            self._saved = copy.deepcopy(saved)
            await asyncio.to_thread(self._keeper.save, self._saved)

    async def _refresh_pages(self) -> None:
        while True:
            # Readings become stale even if no pass ends.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_seconds):
                    await self._changed.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._changed.clear()
            missing = self._state.missing()
            await self._showing.renew()
            if self._exports and not missing:  # before that the machine's identity may be unknown
                await self._offer(await self._showing.snapshot())
            if self.missing and not missing:
                trim_memory()  # used by imports and the first passes
            self.missing = missing

    async def _offer(self, snapshot: Snapshot) -> None:
        """Offer a document to the exports, with the events since the previous one."""
        events, self._events = self._events, []
        for export in self._exports:
            await export.offer(snapshot, self._newest_stats(), events)

    async def _collect_holders(self) -> None:
        assert self._holders is not None
        await self._holders.run(self._showing.newest, self._note_holders)

    def _node_name(self) -> str:
        return self._state.machine.k8s_node_name or ""

    def _note_holders(self) -> None:
        assert self._holders is not None
        self._state.holders = self._holders.devices
        self._note_change()

    def _note_change(self) -> None:
        self._batch_due.set()
        self._changed.set()
        self._showing.change()

    def _assemble(self) -> Generator[None, None, Snapshot]:
        capability = "no hub is configured" if self._delivery is None else self._delivery.capability
        files = {} if self._guests is None else {"guests": self._guests.capability}
        holders = {} if self._holders is None else self._holders.capabilities
        snapshot = yield from self._assembler.steps(
            self._state,
            now=self._clock.monotonic(),
            now_ns=self._clock.now_ns(),
            capabilities={
                **self._capabilities,
                **files,
                **holders,
                "push": capability,
                **{export.name: export.capability for export in self._exports},
            },
        )
        if self._holders is not None:
            snapshot = msgspec.structs.replace(snapshot, unresolved=unresolved_devices(self._holders))
        if self._guests is not None:
            found = yield from self._guests.documents(snapshot.node.name)
            snapshot = msgspec.structs.replace(snapshot, guests=found)
        return snapshot

    def _newest_stats(self) -> AgentStats:
        if self._delivery is not None:
            self._stats.send = self._delivery.outbox.stats
            self._stats.queue = self._delivery.outbox.queue_stats()
        return self._stats

    async def _post_batches(self, delivery: "Delivery") -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delivery.outbox.heartbeat_due_in()):
                    await self._batch_due.wait()
            await asyncio.sleep(BATCH_SECONDS)
            await self._post(delivery)

    async def _post(self, delivery: "Delivery") -> None:
        """Queue a batch of everything new. Waits for the first pass of each lane: the machine may be unknown before."""
        self._batch_due.clear()
        report = None
        guests: tuple[MachineReport, ...] = ()
        if not self._state.missing():
            if self._pending:
                report = self._pending.take(self._showing.newest(), self._clock.now_ns(), self._state.judged)
                report = self._with_holders(report)
            if self._guests is not None:
                guests = self._guests.take(self._state.machine.name)
        if await delivery.outbox.post(report, *guests):
            delivery.pusher.wake()
            if report is not None:
                self._has_reported = True
                if self._holders is not None:
                    self._holders.note_delivered()
                await self._save_events()

    def _with_holders(self, report: MachineReport) -> MachineReport:
        """Add the holdings and holder states that are due.

        Without holder sources, the first report replaces the states that an earlier process reported.
        """
        if self._holders is None:
            return report if self._has_reported else msgspec.structs.replace(report, device_holders=())
        states = self._holders.due_states()
        return msgspec.structs.replace(
            report,
            holdings=self._holders.due(),
            device_holders=states.devices if states is not None else None,
            unresolved=states.unresolved if states is not None else (),
        )

    async def _flush_delivery(self, delivery: "Delivery") -> None:
        await self._post(delivery)
        await delivery.pusher.flush()


def _is_change(outcome: Outcome, before: ReaderStatus) -> bool:
    """Return whether an outcome is worth publishing: event lanes pass every second and are mostly empty."""
    if outcome.status.lane is not Lane.EVENT or before.state is not outcome.status.state:
        return True
    if outcome.status.last_error != before.last_error:
        return True
    return outcome.round is not None and bool(outcome.round.samples or outcome.round.events)
