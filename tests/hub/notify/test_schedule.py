"""Schedule: order, retries and their end, in simulated time."""

from gpufleet.delivery.pacing import MAX_SECONDS
from gpufleet.hub.notify.notices import Notice
from gpufleet.hub.notify.schedule import ALONE_SECONDS, MAX_PENDING, OUTAGE_SECONDS, NoticeSchedule
from gpufleet.model.stored.findings import TransitionKind
from tests.support.findings import make_finding


def add(schedule: NoticeSchedule, name: str, number: int | None, now: float = 0.0) -> None:
    finding = make_finding("gpu.lost", f"east/{name}", 1)
    notice = Notice(id=f"{name}.{number}", kind=TransitionKind.OPENED, at=1, reason="firing", finding=finding)
    schedule.add(notice, number, now)


def due(schedule: NoticeSchedule, now: float, limit: int = 10) -> list[str]:
    return [one.notice.id for one in schedule.due(now, limit)]


def test_notices_of_a_finding_are_due_in_order() -> None:
    schedule = NoticeSchedule()
    for name, number in (("a", 1), ("b", 2), ("a", 3)):
        add(schedule, name, number)
    assert due(schedule, 0.0) == ["a.1", "b.2"]
    assert due(schedule, 0.0, limit=1) == ["a.1"]
    first = schedule.due(0.0, 1)[0]
    assert schedule.fail(first, 0.0, None, 1.0)
    assert due(schedule, 0.5) == []  # a failure delays every notice
    assert due(schedule, 1.0) == ["b.2", "a.1"]
    schedule.accept(first, 1.0)
    assert due(schedule, 1.0) == ["a.3", "b.2"]


def test_position_is_below_the_oldest_pending_number() -> None:
    schedule = NoticeSchedule()
    assert schedule.position(7) == 7
    for name, number in (("a", 8), ("b", 9), ("c", None)):
        add(schedule, name, number)
    assert schedule.position(12) == 7
    first, second, third = schedule.due(0.0, 3)
    schedule.accept(second, 0.0)
    assert schedule.position(12) == 7
    schedule.drop(first)
    assert schedule.position(12) == 12
    assert schedule.has_unnumbered
    schedule.accept(third, 0.0)
    assert (schedule.has_unnumbered, len(schedule), schedule.delay(0.0)) == (False, 0, None)


def test_delay_grows_to_a_bound_and_respects_the_receiver() -> None:
    schedule = NoticeSchedule()
    add(schedule, "a", 1)
    pending, now, delays = schedule.due(0.0, 1)[0], 0.0, []
    for _ in range(7):
        assert schedule.fail(pending, now, None, 1.0)
        delay = schedule.delay(now)
        assert delay is not None
        delays.append(delay)
        now += delay
    assert delays == [1, 2, 4, 8, MAX_SECONDS, MAX_SECONDS, MAX_SECONDS]
    schedule.fail(pending, now, 120.0, 1.0)
    assert schedule.delay(now) == 120.0


def test_notice_that_fails_alone_is_given_up_and_delays_no_other() -> None:
    """A receiver accepts a notice every 10 seconds, and rejects one of them permanently with a temporary error."""
    schedule, now, added, slowest, is_given_up = NoticeSchedule(), 0.0, 0.0, 0.0, False
    add(schedule, "bad", 0)
    while not is_given_up:
        added += 10.0
        add(schedule, f"good{added}", int(added), added)
        while (delay := schedule.delay(now)) is not None and not is_given_up and now + delay < added + 10.0:
            now += delay
            (pending,) = schedule.due(now, 1)
            if pending.number == 0:
                is_given_up = not schedule.fail(pending, now, None, 1.0)
            else:
                slowest = max(slowest, now - added)
                schedule.accept(pending, now)
        now = max(now, added + 10.0)
    assert ALONE_SECONDS <= now < 2 * ALONE_SECONDS
    assert slowest <= MAX_SECONDS


def test_notices_wait_a_day_for_a_receiver_that_is_down() -> None:
    schedule, now = NoticeSchedule(), 0.0
    add(schedule, "other", 1)
    schedule.accept(schedule.due(now, 1)[0], now)
    for name in ("a", "b", "c"):
        add(schedule, name, 2)
    given_up = []
    while (delay := schedule.delay(now)) is not None:
        now += delay
        (pending,) = schedule.due(now, 1)
        if not schedule.fail(pending, now, None, 1.0):
            given_up.append(now)
    assert len(given_up) == 3
    assert all(OUTAGE_SECONDS <= at < OUTAGE_SECONDS + 300.0 for at in given_up)


def test_short_recovery_does_not_end_the_patience_with_an_outage() -> None:
    schedule = NoticeSchedule()
    add(schedule, "a", 1)
    add(schedule, "b", 2)
    first, second = schedule.due(0.0, 2)
    for now in (0.0, 10_000.0, 20_000.0):
        assert schedule.fail(first, now, None, 1.0)
    schedule.accept(second, 20_001.0)
    assert schedule.fail(first, 40_000.0, None, 1.0)
    assert schedule.fail(first, 50_000.0, None, 1.0)


def test_room_is_bounded() -> None:
    schedule = NoticeSchedule()
    add(schedule, "a", 1)
    assert schedule.room == MAX_PENDING - 1
