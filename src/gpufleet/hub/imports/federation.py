"""A page that tells of a whole cluster, asked again and again: many machines, each at its own instants.

A cluster's Prometheus, asked for the newest samples that it has.

kube-state-metrics' own page, asked where no Prometheus of its cluster writes here.

A page of a Prometheus' `/federate` as a request. Pure.

Spreading questions over time. Pure.
"""

import asyncio
import logging
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import quote

from gpufleet import __version__
from gpufleet.codecs.prometheus_text.page import Page, TextLimits
from gpufleet.codecs.prometheus_text.parser import TextParser, wire_error_of
from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.dialects.known import DIALECTS
from gpufleet.dialects.kube_state_metrics import HAS, KUBE_STATE_METRICS, SELECTORS, is_of_gpus
from gpufleet.hub.imports.receiver import NotYetError, Writes
from gpufleet.hub.imports.remote_write import read_request
from gpufleet.hub.imports.request import Written
from gpufleet.hub.imports.scrape_status import Standing
from gpufleet.model.errors import GpufleetError, WireError
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.samples import Series
from gpufleet.ports.clock import Clock


def offset(name: str, interval_seconds: float) -> float:
    """Return how long after the start a target is asked first, in seconds.

    Always the same for one target, and another for each: a thousand of them are not asked at one instant.
    """
    return zlib.crc32(name.encode()) / 2**32 * interval_seconds


log = logging.getLogger(__name__)

MAX_PAGE_BYTES = 64 << 20
"""About 200,000 series, or 8,000 GPUs with 25 each. A larger cluster is asked in several parts, by `match`."""


class FetchedPage(Protocol):
    """A page that came; `done` is called once its bytes are not needed any more."""

    @property
    def body(self) -> bytes:
        """Its bytes."""
        ...

    @property
    def done(self) -> Callable[[], None]:
        """Let go of them."""
        ...


class Pages(Protocol):
    """Where its pages come from."""

    async def fetch(self) -> FetchedPage:
        """Fetch the page as it is now. Raises ChannelError, or ConfigError where there is no token to present."""
        ...


class ClusterPage:
    """One page. How often it is asked makes nothing on it younger."""

    def __init__(
        self,
        cluster: str,
        sender: str,
        pages: Pages,
        read: Callable[[bytes], Written],
        writes: Writes,
        clock: Clock,
        standing: Standing,
        *,
        interval_seconds: float,
        taken: Callable[[], None] = lambda: None,
    ) -> None:
        """Take whose it is, how it is asked, what reads it (on a thread), who takes that, who hears how it goes.

        `taken` is called once what was read is durable.
        """
        self._cluster, self._sender = cluster, sender
        self._pages, self._read, self._writes = pages, read, writes
        self._clock, self._standing = clock, standing
        self._interval, self._taken = interval_seconds, taken
        self._started_at = clock.now_ns()

    async def run(self) -> None:
        """Ask until cancelled, at whole intervals: a page that is late moves no later one."""
        due = self._clock.monotonic() + offset(f"{self._cluster}/{self._sender}", min(self._interval, 10.0))
        while True:
            await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
            await self.ask()
            due += self._interval * max(1, -(-(self._clock.monotonic() - due) // self._interval))

    async def ask(self) -> None:
        """Ask once. One that does not answer is not heard of, as any sender that does not speak."""
        try:
            page = await self._pages.fetch()
            try:
                beat = Heartbeat(interval_seconds=self._interval, version=__version__, started_at=self._started_at)
                await self._writes.take(self._cluster, self._sender, lambda _: self._read(page.body), beat=beat)
                self._taken()
            finally:
                page.done()
        except NotYetError:
            return  # just started: the next page says the same, at the same instants
        except Exception as error:  # the one catch point of this loop: a page that is not taken costs itself
            is_ours = isinstance(error, GpufleetError)
            if not is_ours:
                log.debug("%s: defect", self._sender, exc_info=True)
            self._said(str(error) if is_ours else f"{type(error).__name__}: {error}")
        else:
            if self._standing.error:
                log.info("%s of %s answers again", self._sender, self._cluster)
            self._standing.answered()

    def _said(self, words: str) -> None:
        if self._standing.failed(words):
            log.warning("%s of %s: %s", self._sender, self._cluster, words)


def as_request(page: Page) -> WriteRequest:
    """Return the samples of a page that say when they were measured.

    The instant of a federated sample is that of its scrape in the cluster, and not of this hub's question. One without
    could be of any age: it is a problem `no_time`.
    """
    numbers = sorted(page.times)
    problems = {str(problem): count for problem, count in page.problems.items()}
    if len(numbers) < len(page.series):
        problems["no_time"] = len(page.series) - len(numbers)
    return WriteRequest(
        series=[page.series[number] for number in numbers],
        values=[page.values[number] for number in numbers],
        times=[page.times[number] for number in numbers],
        stale=[],
        types={},
        problems=problems,
    )


READER = "federate"
"""How its readers and its sender begin; the dialect follows, or the name of the Prometheus."""

LIMITS = TextLimits(page_bytes=MAX_PAGE_BYTES, value_bytes=1 << 10, series=300_000, kept=300_000)


class Federated:
    """Reads the pages of one Prometheus. Its samples keep the instants that it says."""

    def __init__(self, *, plain_pods: bool = False) -> None:
        """Prepare it; `plain_pods` says that its labels `pod` and `namespace` are those of workloads."""
        self._plain_pods = plain_pods
        self._parser = TextParser(LIMITS)

    def __call__(self, body: bytes) -> Written:
        """Read a page. One that cannot be read leaves nothing in the next one's cache. Raises WireError."""
        parser, self._parser = self._parser, TextParser(LIMITS)
        page = parser.parse(body)
        error = wire_error_of(page)
        if error is not None:
            raise error
        self._parser = parser
        return read_request(as_request(page), READER, plain_pods=self._plain_pods)


def federate_url(root: str, match: Sequence[str]) -> str:
    """Return the address of a page; without `match` of every name of a project, and of Kubernetes, that is known."""
    asked = match or (known_names(), *SELECTORS)
    return f"{root.rstrip('/')}/federate?" + "&".join(f"match%5B%5D={quote(one, safe='')}" for one in asked)


def known_names() -> str:
    """Return a selector of every name that a dialect has."""
    names = "|".join(f"{prefix}.*" for dialect in DIALECTS for prefix in dialect.prefixes)
    return f'{{__name__=~"{names}"}}'


KUBERNETES_READER = "scrape"
"""How its readers and its sender begin; the dialect follows, or the name of the target."""

KUBERNETES_LIMITS = TextLimits(page_bytes=MAX_PAGE_BYTES, value_bytes=1 << 10, series=100_000, kept=100_000)

_OURS = re.compile(f"^(?:{'|'.join(KUBE_STATE_METRICS.prefixes)})[^\n]*".encode(), re.MULTILINE)
"""The lines that say something here: most of a page is of pods."""


class KubernetesPage:
    """Reads the pages of one kube-state-metrics.

    What they say is of the instant at which they came. A series that is not on the page any more has ended.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parser = TextParser(KUBERNETES_LIMITS)
        self._before: frozenset[Series] = frozenset()
        self._newest: frozenset[Series] = frozenset()

    def __call__(self, body: bytes) -> Written:
        """Read a page. One that cannot be read leaves nothing in the next one's cache. Raises WireError."""
        parser, self._parser = self._parser, TextParser(KUBERNETES_LIMITS)
        lines = _OURS.findall(body)
        if not lines:
            raise WireError("page", f"no {HAS}: is it kube-state-metrics', with nodes among its --resources?")
        page = parser.parse(b"\n".join(lines) + b"\n")
        error = wire_error_of(page)
        if error is not None:
            raise error
        self._parser = parser
        numbers = [number for number, one in enumerate(page.series) if is_of_gpus(one)]
        now = frozenset(page.series[number] for number in numbers)
        ended = list(self._before - now)
        self._newest = now
        at = self._clock.now_ns()
        series = [*(page.series[number] for number in numbers), *ended]
        request = WriteRequest(
            series=series,
            values=[*(float(page.values[number]) for number in numbers), *(0.0 for _ in ended)],
            times=[at] * len(series),
            stale=list(range(len(numbers), len(series))),
            types={},
            problems={str(problem): count for problem, count in page.problems.items()},
        )
        return read_request(request, KUBERNETES_READER)

    def taken(self) -> None:
        """Note that what the newest page says is durable: what has ended need not be said again."""
        self._before = self._newest
