"""Every virtual machine of this host that somebody tells of: they come and go while the agent runs."""

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping, Sequence

from gpufleet.agent.guests.guest import Access, GuestWatch
from gpufleet.agent.guests.sources import Found, Listing, Source
from gpufleet.config.guests import MAX_GUESTS, GuestConfig
from gpufleet.model.catalogue import Lane
from gpufleet.model.snapshot import Guest
from gpufleet.model.wire.batch import MachineReport
from gpufleet.ports.clock import Clock

log = logging.getLogger(__name__)

_NOTHING = Listing({}, {})

SHOW_SECONDS = 2.0
"""What guests bring within this time is shown together."""

AGAIN_SECONDS = 60.0
"""After a defect in the reading of one virtual machine."""


class Guests:
    """Runs a task for each virtual machine; adds and removes them as the sources say."""

    def __init__(
        self,
        sources: Sequence[Source],
        reach: Callable[[GuestConfig], Access],
        *,
        intervals: Mapping[Lane, float],
        clock: Clock,
        collects: bool,
    ) -> None:
        """Take the parts.

        Args:
            sources: who tells of virtual machines; what several tell of is as the first of them says.
            reach: makes what one is reached by.
            intervals: seconds between passes by lane.
            clock: the clocks.
            collects: whether there is a hub that samples are collected for.
        """
        self._sources, self._reach = tuple(sources), reach
        self._listings: dict[str, Listing] = {}
        self._following = asyncio.Lock()
        self._intervals, self._clock, self._collects = intervals, clock, collects
        self._watches: dict[str, GuestWatch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._left: list[GuestWatch] = []
        self._problems: dict[str, str] = {}
        self._news = asyncio.Event()

    @property
    def capability(self) -> str:
        """`available`, or what is wrong with a file."""
        if not self._problems:
            return "available"
        first = min(self._problems)
        more = f" (and {len(self._problems) - 1} more)" if len(self._problems) > 1 else ""
        return f"failing: {self._problems[first]}{more}"

    async def run(self, changed: Callable[[], None]) -> None:
        """Run until cancelled, then hang up everywhere; `changed` hears that there is something new to show."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_telling(changed), name="guests' news")
                for source in self._sources:
                    tasks.create_task(self._keep_looking(source), name=f"guests of the {source.name}")
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def documents(self, hypervisor: str) -> Generator[None, None, tuple[Guest, ...]]:
        """Return what snapshots show, by namespace and name, in small steps."""
        found: list[Guest] = []
        for watch in list(self._watches.values()):
            yield
            found.append((yield from watch.document(hypervisor)))
        return tuple(sorted(found, key=lambda one: (one.namespace, one.name, one.vm_uuid)))

    def take(self, hypervisor: str) -> tuple[MachineReport, ...]:
        """Return what is new of each since the last time."""
        reports = [report for watch in self._watches.values() if (report := watch.take(hypervisor)) is not None]
        reports += [watch.farewell(hypervisor) for watch in self._left]
        self._left.clear()
        return tuple(reports)

    async def _keep_looking(self, source: Source) -> None:
        first = True
        while True:
            self._listings[source.name] = await self._look(source)
            async with self._following:
                await self._follow(first=first)
            first = False
            await asyncio.sleep(source.every_seconds)

    async def _look(self, source: Source) -> Listing:
        try:
            return await source.look()
        except Exception:  # the one catch point: a defect of a source costs what it has to tell, and nothing that runs
            log.exception("the %s: a defect in looking for virtual machines", source.name)
            before = self._listings.get(source.name, _NOTHING)
            words = f"{source.name}: a defect in looking for virtual machines; the log has more"
            return Listing(before.guests, {source.name: words})

    async def _follow(self, *, first: bool) -> None:
        """Begin with those that came, and end with those that went or are described anew."""
        wanted: dict[str, Found] = {}
        problems: dict[str, str] = {}
        for source in self._sources:
            listing = self._listings.get(source.name, _NOTHING)
            problems |= listing.problems
            for label, guest in listing.guests.items():
                if guest.uid in wanted:
                    if not source.adds:
                        other = wanted[guest.uid].guest.title
                        problems[label] = f"{label}: {guest.uid} is {other}, which is read already"
                elif len(wanted) >= MAX_GUESTS:
                    problems[label] = f"{label}: more than {MAX_GUESTS} virtual machines: it is not read"
                else:
                    wanted[guest.uid] = Found(guest, f"{source.name}: {label}")
        if problems != self._problems:
            self._problems = problems
            self._news.set()
        for uid in [uid for uid, watch in self._watches.items() if wanted.get(uid) != watch.found]:
            await self._end(uid, gone=uid not in wanted)
        for uid, found in wanted.items():
            if uid not in self._watches:
                self._begin(found, spread=first)

    def _begin(self, found: Found, *, spread: bool) -> None:
        guest = found.guest
        watch = GuestWatch(
            found,
            self._reach(guest),
            intervals=self._intervals,
            clock=self._clock,
            changed=self._news.set,
            collects=self._collects,
            spread=spread,
        )
        self._watches[guest.uid] = watch
        self._tasks[guest.uid] = asyncio.create_task(self._run(watch), name=f"guest {guest.title}")
        log.info("virtual machine %s (%s, %s): read from now on", guest.title, guest.uid, found.by)
        self._news.set()

    async def _end(self, uid: str, *, gone: bool) -> None:
        watch, task = self._watches.pop(uid), self._tasks.pop(uid)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if gone and self._collects:
            self._left.append(watch)
        log.info("virtual machine %s (%s): read no more", watch.guest.title, uid)
        self._news.set()

    async def _run(self, watch: GuestWatch) -> None:
        while True:
            try:
                await watch.run()
            except Exception:  # the one catch point: a defect costs this virtual machine alone
                log.exception("virtual machine %s: a defect; again in %g s", watch.guest.title, AGAIN_SECONDS)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _keep_telling(self, changed: Callable[[], None]) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            changed()
            await asyncio.sleep(SHOW_SECONDS)
