"""Whether registry and store answer, told soon: who is silent has not said no."""

import asyncio
from concurrent.futures import Executor

from gpufleet.model.errors import RegistryError, StoreError
from gpufleet.ports import Clock, Registry, Store

ANSWER_SECONDS = 3.0
"""Who does not answer for so long is told of: those who probe wait for seconds, the store for minutes."""


class Readiness:
    """Asks both something small, on a thread of its own. Lives on the event loop."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        thread: Executor,
        clock: Clock,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Take what is asked, and a thread for nothing else: it waits for their silence alone."""
        self._registry, self._store = registry, store
        self._thread, self._clock, self._answer_seconds = thread, clock, answer_seconds
        self._asked: asyncio.Future[None] | None = None
        self._asked_at = 0.0
        self._has_registry = False

    async def check(self) -> None:
        """Raise RegistryError or StoreError where one of them says no, or has been silent for too long."""
        if self._asked is None or self._asked.done():  # who is silent is asked once, however many want to know
            self._asked_at, self._has_registry = self._clock.monotonic(), False
            self._asked = asyncio.get_running_loop().run_in_executor(self._thread, self._ask)
            self._asked.add_done_callback(_look)
        asked = self._asked
        await asyncio.wait({asked}, timeout=self._answer_seconds)
        if not asked.done():
            silent = f"has not answered for {self._clock.monotonic() - self._asked_at:.0f} s"
            raise StoreError(f"the store {silent}") if self._has_registry else RegistryError(f"the registry {silent}")
        asked.result()

    def _ask(self) -> None:
        self._registry.clusters()
        self._has_registry = True
        self._store.readers("", "")


def _look(asked: asyncio.Future[None]) -> None:
    """Have what came of it count as seen: whoever asked may have been answered meanwhile."""
    if not asked.cancelled():
        asked.exception()
