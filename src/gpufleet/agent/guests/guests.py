"""Supervision of all virtual machines that the sources report. Machines come and go while the agent runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence

from gpufleet.agent.guests.guest import EarlierPasses, GuestAccess, GuestWatch
from gpufleet.config.guests import MAX_GUESTS, GuestConfig
from gpufleet.model.catalogue import Lane
from gpufleet.model.snapshot import Guest
from gpufleet.model.wire.batch import MachineReport
from gpufleet.ports.clock import Clock
from gpufleet.ports.guests import DiscoveredGuest, GuestDetails, GuestListing, GuestSource
from gpufleet.runtime import supervise

log = logging.getLogger(__name__)

_NOTHING = GuestListing({}, {})

PUBLISH_SECONDS = 2.0
"""Changes of guests within this time are published together."""

RESTART_SECONDS = 60.0
"""Delay before the task of a virtual machine is restarted after a crash."""


class GuestSupervisor:
    """Runs one task per virtual machine; adds and removes them as the sources report."""

    def __init__(
        self,
        sources: Sequence[GuestSource],
        connect: Callable[[GuestConfig], GuestAccess],
        *,
        intervals: Mapping[Lane, float],
        clock: Clock,
        collects: bool,
        tasks: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        """Take the parts.

        Args:
            sources: sources of virtual machines. For a machine in several sources, the first description applies.
            connect: returns the access paths into a virtual machine.
            intervals: seconds between passes by lane.
            clock: wall and monotonic time.
            collects: whether samples are collected for a hub.
            tasks: run beside the sources, and are restarted if they end.
        """
        self._sources, self._connect, self._source_tasks = tuple(sources), connect, tuple(tasks)
        self._listings: dict[str, GuestListing] = {}
        self._reconciling = asyncio.Lock()
        self._intervals, self._clock, self._collects = intervals, clock, collects
        self._watches: dict[str, GuestWatch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped: list[tuple[GuestWatch, bool]] = []  # with whether the guest is gone, until the next batch
        self._earlier: dict[str, EarlierPasses] = {}  # of guests without a watch, by UID
        self._problems: dict[str, str] = {}
        self._changes = asyncio.Event()

    @property
    def capability(self) -> str:
        """`available`, or `failing` with the first problem of the sources."""
        if not self._problems:
            return "available"
        first = min(self._problems)
        more = f" (and {len(self._problems) - 1} more)" if len(self._problems) > 1 else ""
        return f"failing: {self._problems[first]}{more}"

    async def run(self, changed: Callable[[], None]) -> None:
        """Run until cancelled, then close all connections. `changed` is called after changes."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._publish_changes(changed), name="guest changes")
                for run in self._source_tasks:
                    tasks.create_task(supervise(run, "guest source"), name="guest source")
                for source in self._sources:
                    tasks.create_task(self._poll_source(source), name=f"guests from {source.name}")
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def documents(self, hypervisor: str) -> Generator[None, None, tuple[Guest, ...]]:
        """Return the guests' part of a snapshot, sorted by namespace and name, in small steps."""
        found: list[Guest] = []
        for watch in list(self._watches.values()):
            yield
            found.append((yield from watch.document(hypervisor)))
        return tuple(sorted(found, key=lambda guest: (guest.namespace, guest.name, guest.vm_uuid)))

    def take(self, hypervisor: str) -> tuple[MachineReport, ...]:
        """Return the new reports of all guests since the last call."""
        reports: list[MachineReport | None] = []
        for watch, is_gone in self._stopped:
            reports += [watch.take(hypervisor), watch.removal_report(hypervisor) if is_gone else None]
        self._stopped.clear()
        reports += [watch.take(hypervisor) for watch in self._watches.values()]
        return tuple([report for report in reports if report is not None])

    async def _poll_source(self, source: GuestSource) -> None:
        first = True
        while True:
            self._listings[source.name] = await self._query(source)
            async with self._reconciling:
                await self._reconcile(first=first)
            first = False
            await asyncio.sleep(source.every_seconds)

    async def _query(self, source: GuestSource) -> GuestListing:
        try:
            return await source.list_guests()
        except Exception:  # the one catch point: a defect of a source does not stop running guests
            log.exception("guest source %s failed unexpectedly", source.name)
            before = self._listings.get(source.name, _NOTHING)
            message = f"{source.name}: failed unexpectedly; see the log"
            return GuestListing(before.guests, {source.name: message}, before.details)

    async def _reconcile(self, *, first: bool) -> None:
        """Start the tasks of new guests; stop those of guests that are gone or changed."""
        wanted: dict[str, DiscoveredGuest] = {}
        problems: dict[str, str] = {}
        for source in self._sources:
            listing = self._listings.get(source.name, _NOTHING)
            problems |= listing.problems
            for label, guest in listing.guests.items():
                if guest.uid in wanted:
                    if not source.adds:
                        other = wanted[guest.uid].guest.title
                        problems[label] = f"{label}: {guest.uid} is already read as {other}"
                elif len(wanted) >= MAX_GUESTS:
                    problems[label] = f"{label}: not read: the limit is {MAX_GUESTS} virtual machines"
                else:
                    details = listing.details.get(label, GuestDetails())
                    wanted[guest.uid] = DiscoveredGuest(guest, f"{source.name}: {label}", details)
        if problems != self._problems:
            self._problems = problems
            self._changes.set()
        for uid in [uid for uid, watch in self._watches.items() if wanted.get(uid) != watch.found]:
            await self._stop(uid, gone=uid not in wanted)
            if uid in wanted:  # at once, so that a changed guest is listed all the time
                self._start(wanted[uid], spread=first)
        for uid, found in wanted.items():
            if uid not in self._watches:
                self._start(found, spread=first)

    def _start(self, found: DiscoveredGuest, *, spread: bool) -> None:
        guest = found.guest
        watch = GuestWatch(
            found,
            self._connect(guest),
            intervals=self._intervals,
            clock=self._clock,
            on_change=self._changes.set,
            collects=self._collects,
            spread=spread,
            earlier=self._earlier.pop(guest.uid, EarlierPasses()),
        )
        self._watches[guest.uid] = watch
        run = supervise(watch.run, f"virtual machine {guest.title}", restart_seconds=RESTART_SECONDS)
        self._tasks[guest.uid] = asyncio.create_task(run, name=f"guest {guest.title}")
        log.info("virtual machine %s (%s, %s): added", guest.title, guest.uid, found.by)
        self._changes.set()

    async def _stop(self, uid: str, *, gone: bool) -> None:
        task = self._tasks.pop(uid)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        watch = self._watches.pop(uid)
        if self._collects:
            self._stopped.append((watch, gone))
        self._earlier[uid] = watch.earlier
        while len(self._earlier) > MAX_GUESTS:
            del self._earlier[next(iter(self._earlier))]
        log.info("virtual machine %s (%s): removed", watch.guest.title, uid)
        self._changes.set()

    async def _publish_changes(self, changed: Callable[[], None]) -> None:
        while True:
            await self._changes.wait()
            self._changes.clear()
            changed()
            await asyncio.sleep(PUBLISH_SECONDS)
