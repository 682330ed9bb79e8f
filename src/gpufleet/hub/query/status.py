"""How the hub itself is doing, at an instant.

Whether registry and store answer, told soon: who is silent has not said no.
"""

import asyncio
from concurrent.futures import Executor

from gpufleet.hub.flush.flusher import Flusher
from gpufleet.hub.forward.forwarder import Forwarder
from gpufleet.hub.imports.scrape_status import Standings
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.limits import Pressure
from gpufleet.hub.receive.log import Wal
from gpufleet.model.errors import RegistryError, StoreError
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store


class HubStatus:
    """Numbers of a running hub, read when asked."""

    def __init__(
        self,
        *,
        counters: Counters,
        wal: Wal,
        ledger: Ledger,
        flusher: Flusher,
        pressure: Pressure,
        clock: Clock,
        standings: Standings,
        forwarder: Forwarder | None = None,
    ) -> None:
        self.counters = counters
        self.standings = standings
        self.forwarder = forwarder
        self._wal = wal
        self._ledger = ledger
        self._flusher = flusher
        self._pressure = pressure
        self._clock = clock

    @property
    def wal_records(self) -> int:
        """Acknowledged batches that the store does not have yet."""
        return self._wal.waiting_records

    @property
    def wal_bytes(self) -> int:
        """Bytes of those batches."""
        return self._wal.waiting_bytes

    @property
    def wal_lost(self) -> int:
        """Acknowledged batches that the disk gave back damaged."""
        return self._wal.lost

    @property
    def missing_batches(self) -> int:
        """Batches lost or still on the way, over all senders."""
        return self._ledger.missing

    @property
    def flush_failures_in_a_row(self) -> int:
        """0 while flushing works."""
        return self._flusher.failures

    @property
    def unflushed_since(self) -> int | None:
        """When the oldest acknowledged batch that the store does not have was received; None when it has all."""
        return self._wal.oldest_received_at

    @property
    def flush_lag_seconds(self) -> float:
        """Age of the oldest acknowledged batch that the store does not have, 0 when it has all."""
        oldest = self.unflushed_since
        return 0.0 if oldest is None else max(0, self._clock.now_ns() - oldest) / 1e9

    @property
    def pending_bytes(self) -> int:
        """Bytes of bodies that are being received or made durable."""
        return self._pressure.held


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
