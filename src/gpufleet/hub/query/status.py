"""State of the hub: its own metrics, and whether registry and store respond."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from gpufleet.hub.contract.verdicts import ContractVerdicts
from gpufleet.hub.flush.flusher import Flusher
from gpufleet.hub.forward.forwarder import SeriesForwarder
from gpufleet.hub.imports.scrape_status import TargetStatuses
from gpufleet.hub.notify.stats import ReceiverStats
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.hub.receive.log import Wal
from gpufleet.model.errors import RegistryError, StoreError
from gpufleet.model.finding import FindingState, Severity
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import ClusterRegistry
from gpufleet.ports.store import StoreAdmin


class RuleStatus(Protocol):
    """Status of the evaluation of the rules; see `hub.findings.status.EvaluationStatus`."""

    @property
    def at(self) -> int | None:
        """Time of the newest durable judgement."""
        ...

    @property
    def seconds(self) -> float | None:
        """Duration of the newest judgement; None if there was none."""
        ...

    @property
    def subjects(self) -> int | None:
        """Number of judged subjects; None before the first judgement."""
        ...

    @property
    def untracked(self) -> int | None:
        """Subjects beyond the limit on findings, at the newest durable judgement; None if there was none."""
        ...

    @property
    def errors(self) -> Mapping[str, int]:
        """Number of failed judgements by part."""
        ...

    def counts(self) -> Mapping[tuple[str, Severity, FindingState, str], int]:
        """Return the number of open findings by rule, severity, state and cluster."""
        ...


class HubStatus:
    """Metrics of a running hub, read on access."""

    def __init__(
        self,
        *,
        counters: Counters,
        wal: Wal,
        ledger: Ledger,
        flusher: Flusher,
        pressure: ByteBudget,
        clock: Clock,
        target_statuses: TargetStatuses,
        forwarder: SeriesForwarder | None = None,
        receivers: Sequence[ReceiverStats] = (),
        rules: RuleStatus | None = None,
        contract: ContractVerdicts | None = None,
    ) -> None:
        self.counters = counters
        self.target_statuses = target_statuses
        self.forwarder = forwarder
        self.receivers = receivers
        self.rules = rules
        self.contract = contract
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
        """Acknowledged batches that were damaged on disk."""
        return self._wal.lost

    @property
    def missing_batches(self) -> int:
        """Batches lost or still on the way, over all senders."""
        return self._ledger.missing

    @property
    def consecutive_flush_failures(self) -> int:
        """Failed flushes since the last success."""
        return self._flusher.failures

    @property
    def unflushed_since(self) -> int | None:
        """Receipt time of the oldest acknowledged batch that the store does not have; None if it has all."""
        return self._wal.oldest_received_at

    @property
    def flush_lag_seconds(self) -> float:
        """Age of the oldest acknowledged batch that the store does not have, 0 if it has all."""
        oldest = self.unflushed_since
        return 0.0 if oldest is None else max(0, self._clock.now_ns() - oldest) / 1e9

    @property
    def pending_bytes(self) -> int:
        """Bytes of bodies that are being received or made durable."""
        return self._pressure.held


ANSWER_SECONDS = 3.0
"""Time after which a dependency counts as not responding: probes wait for seconds, the store may take minutes."""


class Readiness:
    """Readiness check: a small query to registry and store, on its own thread. Lives on the event loop."""

    def __init__(
        self,
        *,
        registry: ClusterRegistry,
        store: StoreAdmin,
        thread: Executor,
        clock: Clock,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Take the dependencies, and a thread that only this check uses."""
        self._registry, self._store = registry, store
        self._thread, self._clock, self._answer_seconds = thread, clock, answer_seconds
        self._check: asyncio.Future[None] | None = None
        self._started = 0.0
        self._has_registry = False

    async def check(self) -> None:
        """Raise RegistryError or StoreError if one of them fails or does not respond in time."""
        if self._check is None or self._check.done():  # concurrent callers share a pending check
            self._started, self._has_registry = self._clock.monotonic(), False
            self._check = asyncio.get_running_loop().run_in_executor(self._thread, self._query)
            self._check.add_done_callback(_retrieve)
        pending = self._check
        await asyncio.wait({pending}, timeout=self._answer_seconds)
        if not pending.done():
            late = f"has not answered for {self._clock.monotonic() - self._started:.0f} s"
            raise StoreError(f"the store {late}") if self._has_registry else RegistryError(f"the registry {late}")
        pending.result()

    def _query(self) -> None:
        self._registry.clusters()
        self._has_registry = True
        self._store.check()


def _retrieve(check: asyncio.Future[None]) -> None:
    """Retrieve the exception of a check that no caller waits for any more."""
    if not check.cancelled():
        check.exception()
