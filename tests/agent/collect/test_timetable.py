"""Timetable: due times of lanes."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.agent.collect.state import Timetable
from gpufleet.model.catalogue import Lane

INTERVALS = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0}


def test_all_lanes_are_due_at_the_start_static_first() -> None:
    timetable = Timetable(INTERVALS, start=5.0)
    order = []
    for _ in range(3):
        due, lane = timetable.next()
        assert due == 5.0
        order.append(lane)
        timetable.done(lane, 5.1)
    assert order == [Lane.STATIC, Lane.SLOW, Lane.FAST]
    assert timetable.next() == (15.0, Lane.FAST)


@given(st.lists(st.floats(0, 35), min_size=1, max_size=50))
def test_late_passes_are_skipped_and_do_not_shift_the_schedule(durations: list[float]) -> None:
    timetable = Timetable({Lane.FAST: 10.0}, start=0.0)
    now = 0.0
    for duration in durations:
        due, lane = timetable.next()
        assert due % 10.0 == 0.0
        assert due >= now - 10.0
        now = max(now, due) + duration
        timetable.done(lane, now)
        assert timetable.next()[0] > now
        assert timetable.next()[0] - now <= 10.0
