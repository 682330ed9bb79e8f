"""Delivery of the transitions of findings to the store, for its SQL view."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from gpufleet.hub.notify.feed import FindingFeed
from gpufleet.hub.notify.receiver import POLL_SECONDS, FindingReceiver
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import FactStore

STORE_NAME = "store"
"""Name of the store as a receiver."""


class StoreReceiver(FindingReceiver):
    """Store. A new one gets every transition that the registry has."""

    def __init__(
        self,
        feed: FindingFeed,
        store: FactStore,
        *,
        thread: Executor,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the findings, the store, and the thread of all its writes; the rest as in `FindingReceiver`."""
        super().__init__(STORE_NAME, feed, clock=clock, jitter=jitter, sleep=sleep)
        self._store, self._thread = store, thread

    async def _resume(self) -> None:
        self.stats.position = await self._feed.position(self.name) or 0

    async def _step(self) -> float:
        while found := await self._feed.transitions(self.stats.position):
            await asyncio.get_running_loop().run_in_executor(self._thread, self._store.write_findings, found)
            self._succeeded(len(found))
            await self._save(found[-1].number)
        return POLL_SECONDS
