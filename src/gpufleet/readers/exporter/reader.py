"""The exporter reader: samples of one machine from another exporter's page, provenance `imported`."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpufleet.codecs.prometheus_text.page import LineProblem
from gpufleet.dialects.dialect import Dialect
from gpufleet.fleet.device_events import DeviceStates
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ConfigError, ReaderError, WireError
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import Side
from gpufleet.ports.clock import Clock
from gpufleet.readers.exporter.fetch import PageFetcher, ScrapedPage
from gpufleet.readers.exporter.freeze_detector import FrozenDetector
from gpufleet.readers.exporter.mapping import PageParser, PageSamples, detect_dialect, samples_of

PREFIX = "exporter/"
SHARED_SECONDS = 5.0
"""Age within which lanes share one page."""

THREAD_BYTES = 256 << 10
"""Larger pages are parsed in a thread, not to block the event loop; a page of 8 GPUs has half of this."""

MAX_ERRORS = 20
"""Maximum number of error messages of a pass."""

LANES = (Lane.STATIC, Lane.SLOW, Lane.FAST, Lane.EVENT)


class _CachedPage(NamedTuple):
    """Result of one page; each lane is served from it once."""

    began: float
    at: float
    served: set[Lane]
    samples: list[Sample]
    errors: tuple[str, ...]
    failure: ReaderError | None


class ExporterReader:
    """Reads one exporter.

    The dialect is declared, or detected from the first page and kept. Later pages in another dialect are rejected.
    """

    def __init__(
        self,
        name: str,
        pages: PageFetcher,
        clock: Clock,
        *,
        dialect: Dialect | None = None,
        side: Side | None = None,
        drift: Callable[[Mapping[str, int], Mapping[str, int]], None] = lambda *_: None,
    ) -> None:
        """Create the reader.

        Args:
            name: of the target; the reader's name is `exporter/` and this name.
            pages: fetches the pages.
            clock: wall clock and monotonic clock.
            dialect: dialect of the pages; None to detect it.
            side: side of the GPU views, if the caller knows it better than the page.
            drift: called for each page with the metric names and labels that the dialect's table lacks, and their
                numbers of series.
        """
        self._name, self._pages, self._clock, self._side = PREFIX + name, pages, clock, side
        self._dialect, self._drift = dialect, drift
        self._parser, self._frozen = PageParser(), FrozenDetector()
        self._cached: _CachedPage | None = None
        self._states = DeviceStates(self._name)
        self._devices: frozenset[str] = frozenset()  # view keys of the last page

    @property
    def name(self) -> str:
        """Return `exporter/` and the target's name."""
        return self._name

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return all lanes: a page has everything."""
        return LANES

    async def read(self, lane: Lane) -> Round:
        """Make a pass.

        Raises:
            ReaderError: if the page cannot be fetched or parsed, or is not of one machine in one dialect.
        """
        cached = self._cached
        if cached is None or lane in cached.served or self._clock.monotonic() - cached.at > SHARED_SECONDS:
            cached = self._cached = await self._load()
        cached.served.add(lane)
        age = self._clock.monotonic() - cached.began
        if cached.failure is not None:
            cached.failure.age_seconds = age
            raise cached.failure.with_traceback(None)
        samples = tuple(sample for sample in cached.samples if sample.lane is lane)
        events = tuple(self._states.change_by_samples(samples))
        errors = cached.errors if lane is Lane.FAST else ()
        return Round(samples=samples, events=events, errors=errors, age_seconds=age)

    async def close(self) -> None:
        """Drop the last page; the dialect is kept."""
        self._cached = None

    async def _load(self) -> _CachedPage:
        samples: list[Sample] = []
        errors: tuple[str, ...] = ()
        failure: ReaderError | None = None
        began = self._clock.monotonic()
        try:
            samples, errors = await self._fetch()
        except ReaderError as error:
            failure = error
            # The error is kept until the next page; its tracebacks would keep the partial page in memory.
            cause: BaseException | None = error
            while cause is not None:
                cause.__traceback__, cause = None, cause.__cause__
        return _CachedPage(began, self._clock.monotonic(), set(), samples, errors, failure)

    async def _fetch(self) -> tuple[list[Sample], tuple[str, ...]]:
        where = self._pages.where
        try:
            page = await self._pages.fetch()
        except ChannelError as error:
            reason = Reason.TIMEOUT if error.problem is ChannelProblem.TIMEOUT else Reason.READER_FAILED
            raise ReaderError(reason, str(error)) from error
        except ConfigError as error:
            raise ReaderError(Reason.NOT_PERMITTED, str(error)) from error
        parser = self._parser
        try:
            self._parser = PageParser()  # a rejected or abandoned page must not leave entries in the cache
            if len(page.body) > THREAD_BYTES:
                mapped, problems = await asyncio.to_thread(self._parse, parser, page)
            else:
                mapped, problems = self._parse(parser, page)
            self._parser = parser
        except WireError as error:
            raise ReaderError(Reason.READER_FAILED, f"{where}: {error}") from error
        finally:
            page.done()
        self._dialect, self._devices = mapped.dialect, mapped.devices
        self._drift(mapped.drift, mapped.labels)
        samples, frozen = self._frozen.check(mapped.samples, self._clock.monotonic())
        lost = [f"{count} lines were skipped: {problem}" for problem, count in problems.items()]
        over = [mapped.problem] if mapped.problem else []
        return samples, (*over, *frozen, *lost)[:MAX_ERRORS]

    def _parse(self, parser: PageParser, scraped: ScrapedPage) -> tuple[PageSamples, Mapping[LineProblem, int]]:
        """Parse a page and map it to samples; thread-safe."""
        where, page = self._pages.where, parser.parse(scraped)
        dialect = self._dialect or detect_dialect(page, where)
        now, known = self._clock.now_ns(), self._devices
        mapped = samples_of(page, dialect, now, reader=self._name, where=where, side=self._side, known=known)
        return mapped, page.problems
