"""Core readings that vanish: by reader, reason, MIG mode and time, and those of an earlier process."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.facts.core_readings import CoreMemory, CoreObservation
from gpufleet.fleet.facts.memory import Subjects
from tests.support.core_observations import POWER, core
from tests.support.profiles import examples

NO = float("nan")


class CoreHistory:
    """Core readings of one GPU, judged at steps of minutes."""

    def __init__(self) -> None:
        self._subjects, self._memory = Subjects(CoreMemory.columns, ()), CoreMemory()
        self._second = 0

    def judge(self, seen: CoreObservation, minutes: int = 1) -> float:
        """Advance the clock and judge; return the number of missing readings."""
        self._second += 60 * minutes
        rows = self._subjects.judge(np.array([1]), self._second)
        count, mask = self._memory.judge(self._subjects, rows, seen)
        assert mask[0] == (1 << POWER if count[0] == 1 else 0)
        return float(count[0])

    def judge_all(self, *seen: CoreObservation) -> list[float]:
        """Judge each minute; return the numbers."""
        return [self.judge(one) for one in seen]


def same(found: Sequence[float], expected: Sequence[float]) -> bool:
    return np.array_equal(found, expected, equal_nan=True)


ABSENT = core(None)
OTHER_READER = core(None, reporters=(2,))


def test_reading_that_its_reader_no_longer_gives_is_missing() -> None:
    history = CoreHistory()
    assert history.judge_all(core(), ABSENT, ABSENT, core()) == [0, 1, 1, 0]


def test_missing_reading_stays_missing_for_hours() -> None:
    history = CoreHistory()
    assert set(history.judge_all(core(), *[ABSENT] * 200)[1:]) == {1}


def test_reading_that_was_never_given_is_not_missing() -> None:
    history = CoreHistory()
    assert history.judge_all(*[ABSENT] * 3) == [0, 0, 0]


def test_absence_that_is_explained_is_not_missing() -> None:
    history = CoreHistory()
    assert history.judge_all(core(), core(None, is_explained=True), ABSENT) == [0, 0, 1]


def test_reading_of_a_reader_that_left_is_unknown_for_an_hour() -> None:
    history = CoreHistory()
    found = history.judge_all(core(), *[OTHER_READER] * 62)
    assert same(found, [0, *[NO] * 60, 0, 0])
    assert history.judge_all(core(2), OTHER_READER) == [0, 1]


def test_missing_reading_of_a_reader_that_left_stays_unknown() -> None:
    history = CoreHistory()
    history.judge_all(core(), ABSENT)
    assert np.isnan(history.judge_all(*[OTHER_READER] * 200)).all()
    assert history.judge(core(2)) == 0


def test_other_reader_with_a_value_takes_the_place_of_the_first() -> None:
    history = CoreHistory()
    assert history.judge_all(core(), core(2, reporters=(2,)), OTHER_READER) == [0, 0, 1]


def test_reading_is_unknown_while_no_reader_reports_the_gpu() -> None:
    history = CoreHistory()
    found = history.judge_all(core(), core(None, is_known=False, reporters=()), ABSENT)
    assert same(found, [0, NO, 1])


def test_switch_of_the_mig_mode_drops_the_readings() -> None:
    history = CoreHistory()
    found = history.judge_all(core(), core(None, has_mig=True), core(has_mig=True), core(None, has_mig=True))
    assert same(found, [0, 0, 0, 1])


def test_missing_reading_of_an_earlier_process_is_missing_until_it_is_given() -> None:
    history = CoreHistory()
    before = 1 << POWER
    found = history.judge_all(
        core(None, is_known=False, missing_before=before),
        *[core(None, missing_before=before, reporters=(2,))] * 70,
        core(missing_before=before),
        core(None, missing_before=before, reporters=(2,)),
    )
    assert same(found, [NO, *[1] * 70, 0, NO])


@given(st.lists(st.tuples(st.sampled_from((None, 1, 2)), st.sets(st.sampled_from((1, 2)))), max_size=40))
@settings(max_examples=examples(ci=100, long=2000), deadline=None)
def test_only_the_reader_of_the_newest_value_makes_a_reading_missing(
    steps: Sequence[tuple[int | None, set[int]]],
) -> None:
    history, newest = CoreHistory(), None
    for reader, others in steps:
        reporters = others | ({reader} if reader else set())
        found = history.judge(core(reader, is_known=bool(reporters), reporters=sorted(reporters)))
        newest = reader or newest
        if not reporters or (reader is None and newest is not None and newest not in reporters):
            assert np.isnan(found)
        else:
            assert found == (reader is None and newest is not None)
