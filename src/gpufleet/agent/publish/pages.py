"""What the agent shows: the document, and pages made of it.

What was asked for lately is prepared anew when passes end, and whoever asks meanwhile gets what there was before. What
nobody asks for is not made: the next one who does waits for it, milliseconds, once.
"""

import asyncio
import time
import zlib
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

from gpufleet.delivery.export import AgentStats
from gpufleet.model.snapshot import Snapshot
from gpufleet.runtime import at_once, in_slices

GZIP_LEVEL = 1
"""A page shrinks to a twentieth with it; six times the work would save another third."""

WANTED_SECONDS = 150.0
"""Who asks comes again within this time: who scrapes less often than every two minutes has gaps between scrapes.

What was asked for once since the last time was prepared anew before; of the scrapes between which several passes ended,
which are most, each waited for its page (`benchmarks exposition`).
"""

_GZIP = 16 + zlib.MAX_WBITS


class Form(NamedTuple):
    """How a page is asked for: in OpenMetrics instead of the text format, and compressed."""

    openmetrics: bool = False
    gzip: bool = False


class Pages(Protocol):
    """What makes pages of documents."""

    @property
    def remembers(self) -> bool:
        """Whether every document has to be taken, asked for or not."""
        ...

    def take(self, snapshot: Snapshot) -> None:
        """Take note of a document."""
        ...

    def update(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Write a document, in small steps; it was taken before."""
        ...

    def page(self, *, openmetrics: bool) -> bytes:
        """Return the page of the document that was written last."""
        ...


class Showing:
    """Keeps the newest document and its pages."""

    def __init__(
        self,
        steps: Callable[[], Generator[None, None, Snapshot]],
        pages: Pages,
        stats: Callable[[], AgentStats],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what it shows.

        Args:
            steps: makes the document in small steps.
            pages: what makes pages of it.
            stats: gives the agent's figures.
            monotonic: gives seconds, to tell how long ago somebody asked.
        """
        self._steps, self._pages, self._stats, self._monotonic = steps, pages, stats, monotonic
        self._lock = asyncio.Lock()
        self._behind = False
        self._asked: dict[Form | None, float] = {}  # when, of pages; None is the document
        self._changes = self._shown_changes = 0
        self._snapshot = at_once(steps())
        self._rendered = False
        self._bodies: dict[Form, bytes] = {}

    def change(self) -> None:
        """Take note that there is news, which `renew` will show."""
        self._changes += 1

    async def renew(self) -> None:
        """Show what is known now to those who ask from now on."""
        if not (self._wanted() or self._pages.remembers):
            self._behind = True
            return
        async with self._lock:
            await self._prepare(hurried=False)

    async def snapshot(self) -> Snapshot:
        """Return the document."""
        self._asked[None] = self._monotonic()
        if self._behind:
            async with self._lock:
                if self._behind:
                    await self._prepare(hurried=True)
        return self._snapshot

    async def page(self, form: Form) -> bytes:
        """Return a page."""
        self._asked[form] = self._monotonic()
        if self._behind or form not in self._bodies:
            async with self._lock:
                if self._behind:
                    await self._prepare(hurried=True)
                if form not in self._bodies:
                    await self._render(self._snapshot, self._bodies, {form}, rendered=self._rendered, hurried=True)
                    self._rendered = True
        return self._bodies[form]

    def newest(self) -> Snapshot:
        """Return a document that has everything known now, made without a break where there is none."""
        return self._snapshot if self._shown_changes == self._changes else at_once(self._steps())

    def _wanted(self) -> set[Form | None]:
        """Return what was asked for lately."""
        since = self._monotonic() - WANTED_SECONDS
        self._asked = {form: at for form, at in self._asked.items() if at >= since}
        return set(self._asked)

    async def _prepare(self, *, hurried: bool) -> None:
        """Make the document and what was asked for, and only then show it; inside the lock."""
        asked = {form for form in self._wanted() if form is not None}
        self._behind = False
        changes = self._changes
        snapshot = await in_slices(self._steps(), hurried=hurried)
        self._pages.take(snapshot)
        bodies: dict[Form, bytes] = {}
        if asked:
            await self._render(snapshot, bodies, asked, rendered=False, hurried=hurried)
        self._snapshot, self._bodies, self._rendered = snapshot, bodies, bool(asked)
        self._shown_changes = changes

    async def _render(
        self, snapshot: Snapshot, bodies: dict[Form, bytes], forms: set[Form], *, rendered: bool, hurried: bool
    ) -> None:
        if not rendered:
            await in_slices(self._pages.update(snapshot, self._stats()), hurried=hurried)
        for openmetrics in {form.openmetrics for form in forms}:
            plain = Form(openmetrics=openmetrics)
            if plain not in bodies:
                bodies[plain] = self._pages.page(openmetrics=openmetrics)
            packed = Form(openmetrics=openmetrics, gzip=True)
            if packed in forms:
                bodies[packed] = await asyncio.to_thread(_compress, bodies[plain])


def _compress(page: bytes) -> bytes:
    return zlib.compress(page, GZIP_LEVEL, _GZIP)
