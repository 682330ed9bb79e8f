"""Rollup loop: hours are rolled up one after another, a failure is retried, and the loop can be stopped."""

import threading
from collections.abc import Callable

import pytest

from gpufleet.hub.flush.flusher import run_rollups
from gpufleet.hub.receive.counters import Counters
from gpufleet.model.errors import StoreError
from gpufleet.model.stored.samples import HourRollup
from gpufleet.runtime import SystemClock
from tests.fakes.store import MemoryStore
from tests.support.waiting import wait_until_async


class FailingOnceStore(MemoryStore):
    """Fails once, then rolls up two hours, the second one again."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.idle = threading.Event()

    def roll_up(self, now: int, stopped: Callable[[], bool] = lambda: False) -> HourRollup | None:
        self.calls += 1
        if self.calls == 1:
            raise StoreError("the store is down")
        if self.calls <= 3:
            return HourRollup(start=0, subjects=1, seconds=0.1, again=self.calls == 3)
        self.idle.set()
        return None


async def test_rollups_continue_after_a_failure() -> None:
    store, counters = FailingOnceStore(), Counters()
    async with run_rollups(store, counters, SystemClock(), pause_seconds=0.001):

        async def idle() -> bool:
            return store.idle.is_set()

        await wait_until_async(idle)
    assert (counters.rollup_failures, counters.rolled_hours, counters.rerolled_hours) == (1, 2, 1)


class UnavailableStore(MemoryStore):
    """Fails five calls, has nothing to do, fails again, then raises an unexpected error."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.done = threading.Event()

    def roll_up(self, now: int, stopped: Callable[[], bool] = lambda: False) -> HourRollup | None:
        self.calls += 1
        if self.calls <= 5 or self.calls == 7:
            raise StoreError("the server does not answer")
        if self.calls == 8:
            raise ZeroDivisionError
        if self.calls > 8:
            self.done.set()
        return None


async def test_store_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store, counters = UnavailableStore(), Counters()
    async with run_rollups(store, counters, SystemClock(), pause_seconds=0.001):

        async def done() -> bool:
            return store.done.is_set()

        await wait_until_async(done)
    logged = [(record.levelname, record.exc_info is not None) for record in caplog.records]
    assert logged == [("WARNING", False), ("WARNING", False), ("ERROR", True)]
    assert counters.rollup_failures == 7
