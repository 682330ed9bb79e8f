"""Passes of the snapshot of newest samples: when they are due, and the position that they reach."""

from gpufleet.stores.clickhouse.samples.newest import START
from gpufleet.stores.clickhouse.samples.snapshot import MAX_SECONDS, SLACK_NS, LatestSnapshot

POSITION = 1_000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_pass_is_due_when_rows_are_old_and_until_it_ends() -> None:
    clock = Clock()
    snapshot = LatestSnapshot(POSITION, clock)
    clock.now = 2 * MAX_SECONDS
    assert not snapshot.is_due
    snapshot.note(POSITION)
    clock.now += MAX_SECONDS / 2
    snapshot.note(POSITION)
    assert not snapshot.is_due
    clock.now += MAX_SECONDS
    assert snapshot.is_due
    snapshot.begin()
    assert snapshot.is_due
    snapshot.finish()
    assert not snapshot.is_due
    assert not snapshot


def test_position_follows_the_newest_receipt() -> None:
    snapshot = LatestSnapshot(POSITION, Clock())
    newest = POSITION + 2 * SLACK_NS
    snapshot.note(newest)
    snapshot.note(newest - 1)
    assert snapshot.horizon == POSITION
    snapshot.begin()
    assert (snapshot.position, snapshot.horizon) == (POSITION, newest - SLACK_NS)
    snapshot.finish()
    assert (snapshot.position, snapshot.horizon) == (newest - SLACK_NS, newest - SLACK_NS)
    assert snapshot.last_position == newest


def test_position_never_moves_back() -> None:
    snapshot = LatestSnapshot(POSITION, Clock())
    snapshot.note(POSITION - SLACK_NS)
    snapshot.begin()
    snapshot.finish()
    assert (snapshot.position, snapshot.last_position) == (POSITION, POSITION)


def test_rows_noted_during_a_pass_are_left_to_the_next() -> None:
    clock = Clock()
    snapshot = LatestSnapshot(POSITION, clock)
    snapshot.note(POSITION)
    snapshot.begin()
    snapshot.place = ("cluster", 7)
    snapshot.note(POSITION)
    snapshot.finish()
    assert snapshot
    assert not snapshot.is_due
    clock.now = 2 * MAX_SECONDS
    assert snapshot.is_due
    snapshot.begin()
    assert snapshot.place == START
