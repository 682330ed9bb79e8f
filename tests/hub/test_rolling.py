"""The loop that has hours made: one after the other, a failure costs itself, and it ends when it is told to."""

import threading
from collections.abc import Callable

import pytest

from gpufleet.hub.flush.flusher import rolling
from gpufleet.hub.receive.counters import Counters
from gpufleet.model.errors import StoreError
from gpufleet.model.stored.samples import RolledHour
from gpufleet.runtime import SystemClock
from tests.fakes.store import MemoryStore
from tests.support.waiting import wait_until_async


class Rolls(MemoryStore):
    """Fails once, then has two hours to be made, one of them anew."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.idle = threading.Event()

    def roll_up(self, now: int, stopped: Callable[[], bool] = lambda: False) -> RolledHour | None:
        self.asked += 1
        if self.asked == 1:
            raise StoreError("the store is down")
        if self.asked <= 3:
            return RolledHour(start=0, machines=1, seconds=0.1, again=self.asked == 3)
        self.idle.set()
        return None


async def test_hours_are_made_until_there_is_none_and_a_failure_is_tried_again() -> None:
    store, counters = Rolls(), Counters()
    async with rolling(store, counters, SystemClock(), pause_seconds=0.001):

        async def idle() -> bool:
            return store.idle.is_set()

        await wait_until_async(idle)
    assert (counters.rollup_failures, counters.rolled_hours, counters.rolled_again) == (1, 2, 1)


class Away(MemoryStore):
    """Is away for five looks, then has nothing to be made, then is away again, then has a defect."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.done = threading.Event()

    def roll_up(self, now: int, stopped: Callable[[], bool] = lambda: False) -> RolledHour | None:
        self.asked += 1
        if self.asked <= 5 or self.asked == 7:
            raise StoreError("the server does not answer")
        if self.asked == 8:
            raise ZeroDivisionError
        if self.asked > 8:
            self.done.set()
        return None


async def test_a_store_that_is_away_is_told_of_once_and_a_defect_with_where_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, counters = Away(), Counters()
    async with rolling(store, counters, SystemClock(), pause_seconds=0.001):

        async def done() -> bool:
            return store.done.is_set()

        await wait_until_async(done)
    told = [(record.getMessage(), record.exc_info is not None) for record in caplog.records]
    away = "minutes and hours could not be made: the server does not answer"
    assert told == [(away, False), (away, False), ("minutes and hours could not be made", True)]
    assert counters.rollup_failures == 7
