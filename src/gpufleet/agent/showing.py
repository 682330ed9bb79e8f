"""What the agent shows: the document, and pages made of it.

What was asked for since the last time is prepared anew when passes end, and whoever asks meanwhile gets what there was
before. What nobody asks for is not made: the next one who does waits for it, milliseconds, once.
"""

import asyncio
import zlib
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

from gpufleet.agent.slices import at_once, in_slices
from gpufleet.agent.stats import AgentStats
from gpufleet.model.snapshot import Snapshot

GZIP_LEVEL = 1
"""A page shrinks to a twentieth with it; six times the work would save another third."""

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
        self, steps: Callable[[], Generator[None, None, Snapshot]], pages: Pages, stats: Callable[[], AgentStats]
    ) -> None:
        """Take what makes the document in small steps, what makes pages of it, and what gives the agent's figures."""
        self._steps, self._pages, self._stats = steps, pages, stats
        self._lock = asyncio.Lock()
        self._behind = False
        self._asked: set[Form] = set()
        self._document_asked = False
        self._changes = self._shown_changes = 0
        self._snapshot = at_once(steps())
        self._rendered = False
        self._bodies: dict[Form, bytes] = {}

    def change(self) -> None:
        """Take note that there is news, which `renew` will show."""
        self._changes += 1

    async def renew(self) -> None:
        """Show what is known now to those who ask from now on."""
        if not (self._asked or self._document_asked or self._pages.remembers):
            self._behind = True
            return
        async with self._lock:
            await self._prepare(hurried=False)

    async def snapshot(self) -> Snapshot:
        """Return the document."""
        self._document_asked = True
        if self._behind:
            async with self._lock:
                if self._behind:
                    await self._prepare(hurried=True)
        return self._snapshot

    async def page(self, form: Form) -> bytes:
        """Return a page."""
        self._asked.add(form)
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

    async def _prepare(self, *, hurried: bool) -> None:
        """Make the document and what was asked for, and only then show it; inside the lock."""
        asked, self._asked = self._asked, set()
        self._behind = self._document_asked = False
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
