"""The loop that has hours made: one after the other, a failure costs itself, and it ends when it is told to."""

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


class Rolls(MemoryStore):
    """Fails once, then has two hours to be made, one of them anew."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.idle = threading.Event()

    def roll_up(self, now: int, stopped: Callable[[], bool] = lambda: False) -> HourRollup | None:
        self.asked += 1
        if self.asked == 1:
            raise StoreError("the store is down")
        if self.asked <= 3:
            return HourRollup(start=0, machines=1, seconds=0.1, again=self.asked == 3)
        self.idle.set()
        return None


async def test_rolling_continues_after_a_failure() -> None:
    store, counters = Rolls(), Counters()
    async with run_rollups(store, counters, SystemClock(), pause_seconds=0.001):

        async def idle() -> bool:
            return store.idle.is_set()

        await wait_until_async(idle)
    assert (counters.rollup_failures, counters.rolled_hours, counters.rerolled_hours) == (1, 2, 1)


class Away(MemoryStore):
    """Is away for five looks, then has nothing to be made, then is away again, then has a defect."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.done = threading.Event()

    def roll_up(self, now: int, stopped: Callable[[], bool] = lambda: False) -> HourRollup | None:
        self.asked += 1
        if self.asked <= 5 or self.asked == 7:
            raise StoreError("the server does not answer")
        if self.asked == 8:
            raise ZeroDivisionError
        if self.asked > 8:
            self.done.set()
        return None


async def test_store_outage_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, counters = Away(), Counters()
    async with run_rollups(store, counters, SystemClock(), pause_seconds=0.001):

        async def done() -> bool:
            return store.done.is_set()

        await wait_until_async(done)
    logged = [(record.levelname, record.exc_info is not None) for record in caplog.records]
    assert logged == [("WARNING", False), ("WARNING", False), ("ERROR", True)]
    assert counters.rollup_failures == 7
