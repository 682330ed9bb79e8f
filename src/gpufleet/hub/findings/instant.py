"""State of the hub at an instant, taken on the event loop for a judgement on a thread."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.hub.liveness.uptime import IngestClock
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.receive.sequences import EpochConflicts
from gpufleet.model.api.senders import EpochConflict
from gpufleet.model.errors import RegistryError, StoreError

OWN_REASONS = frozenset({"client_gone", "overloaded", "log_full", "catching_up", "degraded"})
"""Reasons of rejections that are about the hub or the connection, and not about the body."""


class HubInstant(msgspec.Struct, frozen=True, kw_only=True):
    """State of the hub at an instant.

    Attributes:
        liveness: reports of senders.
        served: ids of the served clusters.
        missing: batches that are missing, by cluster and sender.
        conflicts: newest epoch conflict by cluster and sender.
        is_ingesting: whether batches are accepted.
        down_seconds: time without a hub process before this one; None if it is unknown.
        flush_lag_seconds: age of the oldest batch that is not in the store.
        disk_free_ratio: free space of the fullest file system of the hub; None if it is unknown.
        log_used_ratio: backlog of the log as a share of its limit.
        counts: counters since the start by input of the hub.
        unknown_names: names of imported metrics and labels that no table has.
        registry_error: why the registry does not answer; empty if it answers.
        store_error: why the store does not answer; empty if it answers, None if that is unknown.
    """

    liveness: LivenessSnapshot
    served: frozenset[str]
    missing: Mapping[tuple[str, str], int]
    conflicts: Mapping[tuple[str, str], EpochConflict]
    is_ingesting: bool
    down_seconds: float | None
    flush_lag_seconds: float
    disk_free_ratio: float | None
    log_used_ratio: float
    counts: Mapping[str, int]
    unknown_names: frozenset[str]
    registry_error: str
    store_error: str | None

    @property
    def has_store(self) -> bool:
        """Whether the store may be queried: it answers, or that is unknown."""
        return not self.store_error


class ReadinessCheck(Protocol):
    """Check of registry and store; see `hub.query.status.Readiness`."""

    async def check(self) -> None:
        """Raise RegistryError or StoreError if one of them fails, the registry first."""
        ...


class InstantSource:
    """Takes the state of the hub. Lives on the event loop."""

    def __init__(
        self,
        *,
        liveness: Callable[[], LivenessSnapshot],
        served: Callable[[], tuple[str, ...]],
        ingest_clock: IngestClock,
        ledger: Ledger,
        conflicts: EpochConflicts,
        counters: Counters,
        wal: Wal,
        flush_lag_seconds: Callable[[], float],
        disk_free_ratio: Callable[[], float | None],
        readiness: ReadinessCheck,
    ) -> None:
        self._liveness = liveness
        self._served = served
        self._ingest_clock = ingest_clock
        self._ledger = ledger
        self._conflicts = conflicts
        self._counters = counters
        self._wal = wal
        self._flush_lag = flush_lag_seconds
        self._disk_free_ratio = disk_free_ratio
        self._readiness = readiness

    async def take(self) -> HubInstant:
        """Return the state now; registry and store get some seconds to answer first."""
        registry_error = ""
        store_error: str | None = ""
        try:
            await self._readiness.check()
        except RegistryError as error:
            registry_error, store_error = str(error), None  # the check ends at the first error
        except StoreError as error:
            store_error = str(error)
        return HubInstant(
            liveness=self._liveness(),
            served=frozenset(self._served()),
            missing=self._ledger.missing_by_sender(),
            conflicts=self._conflicts.known(),
            is_ingesting=not self._ingest_clock.is_not_ingesting,
            down_seconds=self._ingest_clock.down_seconds,
            flush_lag_seconds=self._flush_lag(),
            disk_free_ratio=await asyncio.to_thread(self._disk_free_ratio),
            log_used_ratio=self._wal.used_ratio,
            counts=_counts(self._counters),
            unknown_names=frozenset({**self._counters.unknown_metrics, **self._counters.unknown_labels}),
            registry_error=registry_error,
            store_error=store_error,
        )


def disk_free_ratio(folders: Iterable[Path]) -> float | None:
    """Return the smallest share of space that a process without privileges may use; None if it is unknown."""
    found = []
    for one in folders:
        try:
            system = os.statvfs(one)
        except OSError:
            continue
        if system.f_blocks:
            found.append(system.f_bavail / system.f_blocks)
    return min(found, default=None)


def _counts(counters: Counters) -> dict[str, int]:
    rejected = {reason: count for reason, count in counters.rejected.items() if reason not in OWN_REASONS}
    return {
        "flush_failures": counters.flush_failures,
        "quarantined_batches": _total(counters.quarantined),
        "received_bodies": counters.received_bodies,
        "rejected_bodies": _total(rejected),
        "task_restarts": _total(counters.task_restarts),
        "uncached_series": _total(counters.uncached_series),
    }


def _total(counted: Mapping[str, int]) -> int:
    """Return the sum of a counter that another thread may write."""
    return sum({**counted}.values())
