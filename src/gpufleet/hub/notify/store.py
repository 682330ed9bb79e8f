"""Delivery of the transitions of findings to the store, for its SQL view."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor

import msgspec

from gpufleet.hub.notify.dead_letters import DeadLetters
from gpufleet.hub.notify.feed import FindingFeed
from gpufleet.hub.notify.receiver import POLL_SECONDS, FindingReceiver
from gpufleet.model.errors import UnstorableError
from gpufleet.model.stored.findings import NumberedTransition
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import FactStore

STORE_NAME = "store"
"""Name of the store as a receiver."""


class StoreReceiver(FindingReceiver):
    """Store. A new one gets every transition that the registry has. A transition that does not fit is a dead letter."""

    def __init__(
        self,
        feed: FindingFeed,
        store: FactStore,
        *,
        thread: Executor,
        dead_letters: DeadLetters,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the findings and the store.

        Args:
            feed, clock, jitter, sleep: see `FindingReceiver`.
            store: the store.
            thread: thread of all its writes.
            dead_letters: folder of transitions that do not fit the store.
        """
        super().__init__(STORE_NAME, feed, clock=clock, jitter=jitter, sleep=sleep)
        self._store, self._thread, self._dead_letters = store, thread, dead_letters

    async def _resume(self) -> None:
        self.stats.position = await self._feed.position(self.name) or 0

    async def _step(self) -> float:
        while found := await self._feed.transitions(self.stats.position):
            await self._write(found)
        return POLL_SECONDS

    async def _write(self, found: Sequence[NumberedTransition]) -> None:
        """Write transitions and store the position. If one of them does not fit, write each half by itself."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._store.write_findings, found)
            self._succeeded(len(found))
        except UnstorableError as error:
            if len(found) > 1:
                middle = len(found) // 2
                await self._write(found[:middle])
                await self._write(found[middle:])
                return
            await self._bury(found[0], str(error))
        await self._save(found[-1].number)

    async def _bury(self, one: NumberedTransition, detail: str) -> None:
        """Keep a transition as a dead letter."""
        where = await self._dead_letters.keep(self.name, f"transition-{one.number}", msgspec.json.encode(one))
        self._lose(1, detail, where)
