"""The exporter reader: a page of another exporter becomes the samples of one machine, provenance `imported`."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpufleet.codecs.prometheus_text.page import Problem
from gpufleet.dialects.dialect import Dialect
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ConfigError, ReaderError, WireError
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import Side
from gpufleet.ports.clock import Clock
from gpufleet.readers.exporter.fetch import Answer, Pages
from gpufleet.readers.exporter.frozen import Frozen
from gpufleet.readers.exporter.mapping import PageParser, Told, choose, samples_of

PREFIX = "exporter/"
SHARED_SECONDS = 5.0
"""Lanes that are due within this time share one page."""

BESIDE_BYTES = 256 << 10
"""A larger page is read beside the event loop, which it would hold up; one of 8 GPUs has half of that."""

MAX_WORDS = 20
"""Words of errors that a pass gives."""

LANES = (Lane.STATIC, Lane.SLOW, Lane.FAST, Lane.EVENT)


class _Taken(NamedTuple):
    """What became of one page; each lane is served from it once."""

    at: float
    served: set[Lane]
    samples: list[Sample]
    errors: tuple[str, ...]
    failure: ReaderError | None


class ExporterReader:
    """Reads one exporter.

    Its dialect is declared, or recognised from the first page and kept: a page that changes its tongue is not believed.
    """

    def __init__(
        self,
        name: str,
        pages: Pages,
        clock: Clock,
        *,
        dialect: Dialect | None = None,
        side: Side | None = None,
        drift: Callable[[Mapping[str, int], Mapping[str, int]], None] = lambda *_: None,
    ) -> None:
        """Prepare it.

        Args:
            name: of the target; the reader is `exporter/` and this.
            pages: where the pages come from.
            clock: the clocks.
            dialect: whose names the page has; None to recognise it.
            side: from where its GPUs are seen, where that is known better than the page tells.
            drift: hears of each page which names under the project's prefix its table lacks, and which labels, and how
                many series had them.
        """
        self._name, self._pages, self._clock, self._side = PREFIX + name, pages, clock, side
        self._dialect, self._drift = dialect, drift
        self._parser, self._frozen = PageParser(), Frozen()
        self._taken: _Taken | None = None

    @property
    def name(self) -> str:
        """Return `exporter/` and the target's name."""
        return self._name

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return all four: a page tells everything at once."""
        return LANES

    async def read(self, lane: Lane) -> Round:
        """Make a pass.

        Raises:
            ReaderError: if there is no page, it cannot be read, or it is not one machine's in one dialect.
        """
        taken = self._taken
        if taken is None or lane in taken.served or self._clock.monotonic() - taken.at > SHARED_SECONDS:
            taken = self._taken = await self._take()
        taken.served.add(lane)
        if taken.failure is not None:
            raise taken.failure.with_traceback(None)
        samples = tuple(sample for sample in taken.samples if sample.lane is lane)
        return Round(samples=samples, errors=taken.errors if lane is Lane.FAST else ())

    async def close(self) -> None:
        """Forget the last page. The dialect is kept."""
        self._taken = None

    async def _take(self) -> _Taken:
        samples: list[Sample] = []
        errors: tuple[str, ...] = ()
        failure: ReaderError | None = None
        try:
            samples, errors = await self._fetch()
        except ReaderError as error:
            failure = error
            # It is kept until the next page, and would keep what its frames hold: the page as far as it came.
            cause: BaseException | None = error
            while cause is not None:
                cause.__traceback__, cause = None, cause.__cause__
        return _Taken(self._clock.monotonic(), set(), samples, errors, failure)

    async def _fetch(self) -> tuple[list[Sample], tuple[str, ...]]:
        where = self._pages.where
        try:
            answer = await self._pages.fetch()
        except ChannelError as error:
            reason = Reason.TIMEOUT if error.problem is ChannelProblem.TIMEOUT else Reason.READER_FAILED
            raise ReaderError(reason, str(error)) from error
        except ConfigError as error:
            raise ReaderError(Reason.NOT_PERMITTED, str(error)) from error
        parser = self._parser
        try:
            self._parser = PageParser()  # what is refused, or given up, leaves nothing in the cache of the next
            if len(answer.body) > BESIDE_BYTES:
                told, problems = await asyncio.to_thread(self._understand, parser, answer)
            else:
                told, problems = self._understand(parser, answer)
            self._parser = parser
        except WireError as error:
            raise ReaderError(Reason.READER_FAILED, f"{where}: {error}") from error
        finally:
            answer.done()
        self._dialect = told.dialect
        self._drift(told.drift, told.labels)
        samples, frozen = self._frozen.judge(told.samples, self._clock.monotonic())
        lost = [f"{count} lines were not taken: {problem}" for problem, count in problems.items()]
        return samples, (*frozen, *lost)[:MAX_WORDS]

    def _understand(self, parser: PageParser, answer: Answer) -> tuple[Told, Mapping[Problem, int]]:
        """Read a page; on any thread."""
        where, page = self._pages.where, parser.parse(answer)
        dialect = self._dialect or choose(page, where)
        told = samples_of(page, dialect, self._clock.now_ns(), reader=self._name, where=where, side=self._side)
        return told, page.problems
