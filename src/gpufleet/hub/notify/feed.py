"""Access of receivers to the registry: transitions, positions, open findings and mutes, read on threads."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from typing import TypeVar

import msgspec

from gpufleet.hub.notify.notices import Mutes
from gpufleet.model.finding import Finding
from gpufleet.model.stored.findings import FindingQuery, NumberedTransition
from gpufleet.ports.clock import Clock
from gpufleet.ports.findings import FindingRegistry

T = TypeVar("T")

READ_TRANSITIONS = 500
"""Maximum number of transitions read at a time."""

PAGE_FINDINGS = 1000
"""Maximum number of open findings read at a time."""

REFRESH_SECONDS = 1.0
"""Shortest time between two reads of the number of the newest transition, of all receivers together."""

SHARED_SECONDS = 30.0
"""Time for which receivers share a list of open findings."""


class _OpenFindings(msgspec.Struct, frozen=True):
    """List of open findings, which is at least as new as the transition with a number."""

    number: int
    read_at: float
    findings: tuple[Finding, ...]


class FindingFeed:
    """Findings of a hub for its receivers. Methods raise RegistryError. Lives on the event loop.

    Attributes:
        newest: number of the newest transition in the registry, as of the newest read; 0 at first.
    """

    def __init__(
        self,
        registry: FindingRegistry,
        machine_names: Callable[[Collection[str]], Mapping[str, str]],
        *,
        threads: Executor,
        clock: Clock,
    ) -> None:
        """Take the registry, and a function that returns the names of machines by id, without unknown machines."""
        self.newest = 0
        self._registry, self._machine_names = registry, machine_names
        self._threads, self._clock = threads, clock
        self._next_refresh = 0.0
        self._open: _OpenFindings | None = None
        self._reading = asyncio.Lock()

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def position(self, receiver: str) -> int | None:
        """Return the position of a receiver; None for a new one."""
        return await self.call(lambda: self._registry.notified(receiver))

    async def save(self, receiver: str, position: int) -> None:
        """Store the position of a receiver."""
        await self.call(lambda: self._registry.set_notified(receiver, position))

    async def find_newest(self) -> int:
        """Return the number of the newest transition, 0 if there is none."""
        self.newest = max(self.newest, await self.call(self._registry.newest_transition))
        return self.newest

    async def refresh(self) -> None:
        """Update `newest`, at most once in `REFRESH_SECONDS`."""
        now = self._clock.monotonic()
        if now >= self._next_refresh:
            self._next_refresh = now + REFRESH_SECONDS
            await self.find_newest()

    async def transitions(self, after: int, limit: int = READ_TRANSITIONS) -> tuple[NumberedTransition, ...]:
        """Return up to `READ_TRANSITIONS` transitions with numbers above `after`, in order."""
        limit = min(limit, READ_TRANSITIONS)
        found = await self.call(lambda: self._registry.finding_transitions(after, limit))
        if found:
            self.newest = max(self.newest, found[-1].number)
        return found

    async def mutes(self, findings: Iterable[Finding]) -> Mutes:
        """Return the silences since the opening of the first of some findings, and their acknowledgements."""
        opened = {one.id: one.opened_at for one in findings}
        since = min(opened.values(), default=self._clock.now_ns())

        def read() -> Mutes:
            acknowledgements = self._registry.finding_acknowledgements(tuple(opened))
            return Mutes(self._clock.now_ns(), self._registry.silences(since - 1), acknowledgements)

        return await self.call(read)

    async def silences(self, since: int) -> Mutes:
        """Return the silences that end after an instant, ended ones included."""
        return await self.call(lambda: Mutes(self._clock.now_ns(), self._registry.silences(since)))

    async def open_findings(self, processed: int) -> tuple[Finding, ...]:
        """Return the open findings, with acknowledgements.

        The list can be up to `SHARED_SECONDS` old, but every transition up to the number `processed` precedes it. So
        a receiver that has processed the closing of a finding does not get it as open.
        """
        async with self._reading:
            now, shared = self._clock.monotonic(), self._open
            if shared is None or shared.number < processed or now - shared.read_at >= SHARED_SECONDS:
                number = max(self.newest, processed)
                shared = self._open = _OpenFindings(number, now, await self.call(self._read_open))
            return shared.findings

    async def open_page(self, after: tuple[int, str] | None, limit: int) -> tuple[Finding, ...]:
        """Return up to `limit` open findings as of now, with acknowledgements, newest opening first.

        Args:
            after: time of opening and id of the last finding of the page before; None for the first page.
            limit: maximum number.
        """
        query = FindingQuery(is_closed=False, after=after, limit=min(limit, PAGE_FINDINGS))
        return await self.call(lambda: self._registry.findings(query))

    async def names(self, machines: Iterable[str]) -> Mapping[str, str]:
        """Return the names of machines by id, in one call of the registry; unknown machines are missing."""
        ids = set(machines)
        return await self.call(lambda: self._machine_names(ids)) if ids else {}

    def _read_open(self) -> tuple[Finding, ...]:
        found: list[Finding] = []
        after: tuple[int, str] | None = None
        while True:
            page = self._registry.findings(FindingQuery(is_closed=False, after=after, limit=PAGE_FINDINGS))
            found += page
            if len(page) < PAGE_FINDINGS:
                return tuple(found)
            after = (page[-1].opened_at, page[-1].id)
