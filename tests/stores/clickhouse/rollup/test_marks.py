"""Hour marks: the next due hour, also after changes of the clock that set the marks."""

import types
from typing import Any

from gpufleet.model.stored.retention import UNLIMITED
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.hours import QUIET_SECONDS, HourMarks, HourState
from gpufleet.stores.clickhouse.rollup.job import next_due_hour
from tests.fakes.clock import FakeClock

HOUR = 1_710_000_000
NOW = (HOUR + 7200) * NANOS
YEAR = 365 * 86_400 * NANOS


class MarksDatabase:
    """Database that contains only the newest mark."""

    def __init__(self, newest: int) -> None:
        self.newest = newest

    def query(self, statement: str, **more: Any) -> Any:
        return types.SimpleNamespace(result_rows=[(self.newest,)])

    def insert_arrow(self, table: str, rows: Any, **more: Any) -> None:
        self.newest = rows["marked_at"].to_pylist()[0]


def pending(marked: int) -> HourState:
    return HourState(hour=HOUR, marked=marked, seen=0, version=0)


def test_hour_is_due_after_a_quiet_interval() -> None:
    quiet = NOW - QUIET_SECONDS * NANOS
    assert next_due_hour([pending(quiet)], NOW, UNLIMITED, HourMarks().is_quiet) is not None
    assert next_due_hour([pending(quiet + 1)], NOW, UNLIMITED, HourMarks().is_quiet) is None


def test_marks_from_a_fast_clock_delay_no_hour() -> None:
    clock = FakeClock()
    marks = HourMarks(clock.monotonic)
    database = MarksDatabase(newest=NOW + YEAR)
    marks.mark(database, [HOUR])
    assert database.newest > NOW + YEAR  # a later mark is greater
    hour = pending(database.newest)
    assert next_due_hour([hour], NOW, UNLIMITED, marks.is_quiet) is None
    clock.advance(QUIET_SECONDS - 1)
    marks.mark(database, [HOUR])
    clock.advance(QUIET_SECONDS - 1)
    assert next_due_hour([hour], NOW, UNLIMITED, marks.is_quiet) is None
    clock.advance(1)
    assert next_due_hour([hour], NOW, UNLIMITED, marks.is_quiet) == hour


def test_marks_of_an_earlier_process_expire() -> None:
    clock = FakeClock()
    marks = HourMarks(clock.monotonic)
    assert next_due_hour([pending(NOW + YEAR)], NOW, UNLIMITED, marks.is_quiet) is None
    clock.advance(QUIET_SECONDS)
    assert next_due_hour([pending(NOW + YEAR)], NOW, UNLIMITED, marks.is_quiet) is not None
