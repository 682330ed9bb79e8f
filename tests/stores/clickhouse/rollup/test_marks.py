"""Which hour is made next, whatever was done to the clock that marked it."""

import types
from typing import Any

from gpufleet.model.stored.retention import FOR_EVER
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.hours import QUIET_SECONDS, Marks, Standing
from gpufleet.stores.clickhouse.rollup.job import next_hour
from tests.fakes.clock import FakeClock

HOUR = 1_710_000_000
NOW = (HOUR + 7200) * NANOS
YEAR = 365 * 86_400 * NANOS


class Written:
    """A database in which nothing is but what is written down that was marked last."""

    def __init__(self, newest: int) -> None:
        self.newest = newest

    def query(self, statement: str, **more: Any) -> Any:
        return types.SimpleNamespace(result_rows=[(self.newest,)])

    def insert_arrow(self, table: str, rows: Any, **more: Any) -> None:
        self.newest = rows["marked_at"].to_pylist()[0]


def unmade(marked: int) -> Standing:
    return Standing(hour=HOUR, marked=marked, seen=0, version=0)


def test_an_hour_is_made_once_nothing_was_written_to_it_for_a_while() -> None:
    quiet = NOW - QUIET_SECONDS * NANOS
    assert next_hour([unmade(quiet)], NOW, FOR_EVER, Marks().is_quiet) is not None
    assert next_hour([unmade(quiet + 1)], NOW, FOR_EVER, Marks().is_quiet) is None


def test_marks_of_a_clock_that_was_ahead_and_was_mended_hold_no_hour_back() -> None:
    clock = FakeClock()
    marks = Marks(clock.monotonic)
    database = Written(newest=NOW + YEAR)
    marks.mark(database, [HOUR])
    assert database.newest > NOW + YEAR  # a later mark is greater
    hour = unmade(database.newest)
    assert next_hour([hour], NOW, FOR_EVER, marks.is_quiet) is None
    clock.advance(QUIET_SECONDS - 1)
    marks.mark(database, [HOUR])
    clock.advance(QUIET_SECONDS - 1)
    assert next_hour([hour], NOW, FOR_EVER, marks.is_quiet) is None
    clock.advance(1)
    assert next_hour([hour], NOW, FOR_EVER, marks.is_quiet) == hour


def test_what_an_earlier_process_marked_by_such_a_clock_is_quiet_after_a_while_of_this_one() -> None:
    clock = FakeClock()
    marks = Marks(clock.monotonic)
    assert next_hour([unmade(NOW + YEAR)], NOW, FOR_EVER, marks.is_quiet) is None
    clock.advance(QUIET_SECONDS)
    assert next_hour([unmade(NOW + YEAR)], NOW, FOR_EVER, marks.is_quiet) is not None
