"""A cluster's Prometheus, asked for the newest samples that it has: many machines, each at its own instants."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import quote

from gpufleet import __version__
from gpufleet.codecs.prometheus_text.limits import TextLimits
from gpufleet.codecs.prometheus_text.parser import TextParser, wire_error_of
from gpufleet.dialects.known import DIALECTS
from gpufleet.dialects.kube_state_metrics import SELECTORS
from gpufleet.hub.imported.page import as_request
from gpufleet.hub.imported.series import read_request
from gpufleet.hub.imported.writers import Writer
from gpufleet.hub.imported.writes import NotYetError, Writes
from gpufleet.hub.imported.written import Written
from gpufleet.hub.pulled.offset import offset
from gpufleet.hub.pulled.standing import Standing
from gpufleet.model.errors import GpufleetError
from gpufleet.model.status import Heartbeat
from gpufleet.ports import Clock

log = logging.getLogger(__name__)

READER = "federate"
"""How its readers and its sender begin; the dialect follows, or the name of the Prometheus."""

MAX_PAGE_BYTES = 64 << 20
"""About 200,000 series, or 8,000 GPUs with 25 each. A larger cluster is asked in several parts, by `match`."""

LIMITS = TextLimits(page_bytes=MAX_PAGE_BYTES, value_bytes=1 << 10, series=300_000, kept=300_000)


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


class Federation:
    """One Prometheus. Its samples keep the instants that it says: how often it is asked makes nothing younger."""

    def __init__(
        self,
        cluster: str,
        name: str,
        pages: Pages,
        writes: Writes,
        clock: Clock,
        standing: Standing,
        *,
        interval_seconds: float,
        plain_pods: bool = False,
    ) -> None:
        """Take whose it is, how it is asked, who takes what it says, and who learns how it goes.

        `plain_pods`: whether its labels `pod` and `namespace` are those of workloads.
        """
        self._cluster, self._sender = cluster, f"{READER}/{name}"
        self._pages, self._writes, self._clock, self._standing = pages, writes, clock, standing
        self._interval, self._plain_pods = interval_seconds, plain_pods
        self._parser = TextParser(LIMITS)
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
                await self._writes.take(self._cluster, self._sender, lambda _: self._read(_, page.body), beat=beat)
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

    def _read(self, _: Writer, body: bytes) -> Written:
        """Read a page; on a thread. One that cannot be read leaves nothing in the next one's cache."""
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
