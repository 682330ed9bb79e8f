"""The page cache: the snapshot document and the pages rendered from it.

Pages that were requested recently are rendered again when passes end; a request in between gets the previous
page. Pages that no client requests are not rendered; the next request waits milliseconds for one.
"""

import asyncio
import time
import zlib
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

from gpufleet.delivery.export import AgentStats
from gpufleet.model.snapshot import Snapshot
from gpufleet.runtime import run_cooperatively, run_to_end

GZIP_LEVEL = 1
"""Compresses a page to a twentieth. Higher levels cost six times the CPU for another third."""

REQUEST_WINDOW_SECONDS = 150.0
"""Time for which a requested page is kept up to date. A scraper with a longer interval has gaps between scrapes.

With a window of one scrape, most scrapes found a page that several passes had outdated, and waited for it
(`benchmarks exposition`).
"""

_GZIP = 16 + zlib.MAX_WBITS


class PageForm(NamedTuple):
    """The form of a page: OpenMetrics instead of Prometheus text, gzip or plain."""

    openmetrics: bool = False
    gzip: bool = False


class PageWriter(Protocol):
    """Renders pages from documents."""

    @property
    def needs_every_snapshot(self) -> bool:
        """Return whether every document must be taken, even if no page is requested."""
        ...

    def take(self, snapshot: Snapshot) -> None:
        """Take a document."""
        ...

    def update(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Render the document that was taken last, in small steps."""
        ...

    def page(self, *, openmetrics: bool) -> bytes:
        """Return the page that was rendered last."""
        ...


class PageCache:
    """Holds the newest document and its pages."""

    def __init__(
        self,
        steps: Callable[[], Generator[None, None, Snapshot]],
        pages: PageWriter,
        stats: Callable[[], AgentStats],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the sources of documents and pages.

        Args:
            steps: builds the document in small steps.
            pages: renders pages from it.
            stats: returns the agent's counters.
            monotonic: clock for the age of requests.
        """
        self._steps, self._pages, self._stats, self._monotonic = steps, pages, stats, monotonic
        self._lock = asyncio.Lock()
        self._behind = False
        self._requested: dict[PageForm | None, float] = {}  # form to its last request; None is the document
        self._changes = self._published_changes = 0
        self._snapshot = run_to_end(steps())
        self._rendered = False
        self._bodies: dict[PageForm, bytes] = {}

    def change(self) -> None:
        """Record a change; `renew` will include it."""
        self._changes += 1

    async def renew(self) -> None:
        """Rebuild the document and the recently requested pages."""
        if not (self._recent() or self._pages.needs_every_snapshot):
            self._behind = True
            return
        async with self._lock:
            await self._prepare(urgent=False)

    async def snapshot(self) -> Snapshot:
        """Return the document."""
        self._requested[None] = self._monotonic()
        if self._behind:
            async with self._lock:
                if self._behind:
                    await self._prepare(urgent=True)
        return self._snapshot

    async def page(self, form: PageForm) -> bytes:
        """Return a page."""
        self._requested[form] = self._monotonic()
        if self._behind or form not in self._bodies:
            async with self._lock:
                if self._behind:
                    await self._prepare(urgent=True)
                if form not in self._bodies:
                    await self._render(self._snapshot, self._bodies, {form}, rendered=self._rendered, urgent=True)
                    self._rendered = True
        return self._bodies[form]

    def newest(self) -> Snapshot:
        """Return a document with every change so far; it is built in one go if the newest lacks some."""
        return self._snapshot if self._published_changes == self._changes else run_to_end(self._steps())

    def _recent(self) -> set[PageForm | None]:
        """Return the recently requested forms."""
        since = self._monotonic() - REQUEST_WINDOW_SECONDS
        self._requested = {form: at for form, at in self._requested.items() if at >= since}
        return set(self._requested)

    async def _prepare(self, *, urgent: bool) -> None:
        """Build the document and the requested pages, then publish both at once. Called with the lock held."""
        requested = {form for form in self._recent() if form is not None}
        self._behind = False
        changes = self._changes
        snapshot = await run_cooperatively(self._steps(), urgent=urgent)
        self._pages.take(snapshot)
        bodies: dict[PageForm, bytes] = {}
        if requested:
            await self._render(snapshot, bodies, requested, rendered=False, urgent=urgent)
        self._snapshot, self._bodies, self._rendered = snapshot, bodies, bool(requested)
        self._published_changes = changes

    async def _render(
        self, snapshot: Snapshot, bodies: dict[PageForm, bytes], forms: set[PageForm], *, rendered: bool, urgent: bool
    ) -> None:
        if not rendered:
            await run_cooperatively(self._pages.update(snapshot, self._stats()), urgent=urgent)
        for openmetrics in {form.openmetrics for form in forms}:
            plain = PageForm(openmetrics=openmetrics)
            if plain not in bodies:
                bodies[plain] = self._pages.page(openmetrics=openmetrics)
            packed = PageForm(openmetrics=openmetrics, gzip=True)
            if packed in forms:
                bodies[packed] = await asyncio.to_thread(_compress, bodies[plain])


def _compress(page: bytes) -> bytes:
    return zlib.compress(page, GZIP_LEVEL, _GZIP)
