"""A page that tells of a whole cluster, asked again and again: many machines, each at its own instants."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from gpufleet import __version__
from gpufleet.hub.imported.writes import NotYetError, Writes
from gpufleet.hub.imported.written import Written
from gpufleet.hub.pulled.offset import offset
from gpufleet.hub.pulled.standing import Standing
from gpufleet.model.errors import GpufleetError
from gpufleet.model.status import Heartbeat
from gpufleet.ports import Clock

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
