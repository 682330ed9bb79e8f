"""Pulling of cluster-wide pages: `/federate` of a cluster's Prometheus, and kube-state-metrics.

kube-state-metrics is pulled directly where no Prometheus of its cluster writes to this hub.
"""

import asyncio
import logging
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import quote

from gpufleet import __version__
from gpufleet.codecs.prometheus_text.page import TextLimits, TextPage
from gpufleet.codecs.prometheus_text.parser import TextParser, wire_error_of
from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.dialects.kube_state_metrics import HAS, KUBE_STATE_METRICS, SELECTORS, is_of_gpus
from gpufleet.dialects.registry import DIALECTS
from gpufleet.hub.imports.receiver import BacklogPendingError, ImportReceiver
from gpufleet.hub.imports.remote_write import read_request
from gpufleet.hub.imports.request import ImportedRequest
from gpufleet.hub.imports.scrape_status import TargetStatus
from gpufleet.model.errors import GpufleetError, WireError
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.ports.clock import Clock


def start_offset(name: str, interval_seconds: float) -> float:
    """Return the delay of a target's first pull in seconds, derived from its name to spread targets evenly."""
    return zlib.crc32(name.encode()) / 2**32 * interval_seconds


log = logging.getLogger(__name__)

MAX_PAGE_BYTES = 64 << 20
"""About 200,000 series, or 8,000 GPUs with 25 series each. A larger cluster is pulled in several parts, by `match`."""


class FetchedPage(Protocol):
    """A fetched page. Call `done` once its body is no longer needed."""

    @property
    def body(self) -> bytes:
        """Content of the page."""
        ...

    @property
    def done(self) -> Callable[[], None]:
        """Function that releases the body."""
        ...


class PageSource(Protocol):
    """Source of a page."""

    async def fetch(self) -> FetchedPage:
        """Fetch the current page. Raises ChannelError, or ConfigError if the token is unavailable."""
        ...


class ClusterPuller:
    """Pulls one page periodically. Samples keep their own instants, whatever the interval."""

    def __init__(
        self,
        cluster: str,
        sender: str,
        pages: PageSource,
        read: Callable[[bytes], ImportedRequest],
        receiver: ImportReceiver,
        clock: Clock,
        target_status: TargetStatus,
        *,
        interval_seconds: float,
        on_durable: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect the parts of the puller.

        Args:
            cluster: of the page.
            sender: name of the sender of its batches.
            pages: source of the page.
            read: decodes a page, on a thread.
            receiver: receives the decoded content.
            clock: for the schedule.
            target_status: records successes and failures.
            interval_seconds: between pulls.
            on_durable: called after the content of a page is durable.
        """
        self._cluster, self._sender = cluster, sender
        self._pages, self._read, self._receiver = pages, read, receiver
        self._clock, self._target_status = clock, target_status
        self._interval, self._on_durable = interval_seconds, on_durable
        self._started_at = clock.now_ns()

    async def run(self) -> None:
        """Pull until cancelled, at whole intervals from the start: a late page does not delay later pulls."""
        due = self._clock.monotonic() + start_offset(f"{self._cluster}/{self._sender}", min(self._interval, 10.0))
        while True:
            await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
            await self.pull()
            due += self._interval * max(1, -(-(self._clock.monotonic() - due) // self._interval))

    async def pull(self) -> None:
        """Pull once. A failure sends no heartbeat, so that the target counts as a sender that is not reporting."""
        try:
            page = await self._pages.fetch()
            try:
                heartbeat = Heartbeat(
                    interval_seconds=self._interval,
                    version=__version__,
                    started_at=self._started_at,
                    answered_at=self._clock.now_ns(),
                )
                await self._receiver.receive(
                    self._cluster, self._sender, lambda _: self._read(page.body), heartbeat=heartbeat
                )
                self._on_durable()
            finally:
                page.done()
        except BacklogPendingError:
            return  # the hub has just started; the next page repeats the samples at their instants
        except Exception as error:  # broad: the one catch point of this loop; a failure affects this page only
            is_expected = isinstance(error, GpufleetError)
            if not is_expected:
                log.debug("%s: defect", self._sender, exc_info=True)
            self._record_failure(str(error) if is_expected else f"{type(error).__name__}: {error}")
        else:
            if self._target_status.error:
                log.info("%s of %s responds again", self._sender, self._cluster)
            self._target_status.record_success()

    def _record_failure(self, detail: str) -> None:
        if self._target_status.record_failure(detail):
            log.warning("%s of %s: pull failed: %s", self._sender, self._cluster, detail)


def as_request(page: TextPage) -> WriteRequest:
    """Return the samples of a federation page that have a timestamp.

    The timestamp is that of the scrape in the cluster, not of this pull. A sample without one could be of any age, and
    counts as the problem `no_time`.
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
"""Prefix of the reader's name (the dialect follows) and of the sender's (the name of the Prometheus follows)."""

LIMITS = TextLimits(page_bytes=MAX_PAGE_BYTES, value_bytes=1 << 10, series=300_000, kept=300_000)


class FederationReader:
    """Decoder of federation pages of one Prometheus. Samples keep their timestamps."""

    def __init__(self, *, plain_pods: bool = False) -> None:
        """Create a decoder; `plain_pods` is whether the labels `pod` and `namespace` are those of workloads."""
        self._plain_pods = plain_pods
        self._parser = TextParser(LIMITS)

    def __call__(self, body: bytes) -> ImportedRequest:
        """Decode a page. An invalid page clears the parser's cache. Raises WireError."""
        parser, self._parser = self._parser, TextParser(LIMITS)
        page = parser.parse(body)
        error = wire_error_of(page)
        if error is not None:
            raise error
        self._parser = parser
        return read_request(as_request(page), READER, plain_pods=self._plain_pods)


def federate_url(root: str, match: Sequence[str]) -> str:
    """Return the URL of a federation page; without `match`, it selects all known names of projects and Kubernetes."""
    selectors = match or (known_names_selector(), *SELECTORS)
    return f"{root.rstrip('/')}/federate?" + "&".join(f"match%5B%5D={quote(one, safe='')}" for one in selectors)


def known_names_selector() -> str:
    """Return a selector of all metric names of the dialects."""
    names = "|".join(f"{prefix}.*" for dialect in DIALECTS for prefix in dialect.prefixes)
    return f'{{__name__=~"{names}"}}'


KUBE_STATE_READER = "scrape"
"""Prefix of the reader's name (the dialect follows) and of the sender's (the name of the target follows)."""

KUBE_STATE_LIMITS = TextLimits(page_bytes=MAX_PAGE_BYTES, value_bytes=1 << 10, series=100_000, kept=100_000)

_USED_LINES = re.compile(f"^(?:{'|'.join(KUBE_STATE_METRICS.prefixes)})[^\n]*".encode(), re.MULTILINE)
"""Pattern of the lines used here; most of a page is about pods."""


class KubeStateReader:
    """Decoder of the pages of one kube-state-metrics.

    Samples get the time of the fetch. A series that is missing from a page has ended.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parser = TextParser(KUBE_STATE_LIMITS)
        self._before: frozenset[ImportedSeries] = frozenset()
        self._newest: frozenset[ImportedSeries] = frozenset()

    def __call__(self, body: bytes) -> ImportedRequest:
        """Decode a page. An invalid page clears the parser's cache. Raises WireError."""
        parser, self._parser = self._parser, TextParser(KUBE_STATE_LIMITS)
        lines = _USED_LINES.findall(body)
        if not lines:
            raise WireError("page", f"has no {HAS}: check that it is kube-state-metrics with nodes in --resources")
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
        return read_request(request, KUBE_STATE_READER)

    def commit(self) -> None:
        """Record that the newest page is durable, so that its ended series are not reported again."""
        self._before = self._newest
