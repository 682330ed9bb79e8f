"""Late data: a passed condition has a finding with its own times, once, unless it was found in time."""

from pathlib import Path

import pytest

from gpufleet.codecs.batch import decode
from gpufleet.hub.findings.late import LATE_SECONDS, QUIET_SECONDS, LateInterval, LateReports, past_interval
from gpufleet.model.errors import RegistryError
from gpufleet.model.stored.findings import TransitionKind
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS
from tests.fakes.clock import FakeClock
from tests.hub.findings.played_fleet import MINUTE, Play
from tests.hub.liveness.fake_clock_hub import Node
from tests.support.findings import MemoryFindings

HUNG = "gpu-hung@+4m/10m:c1/n1/g0"
CUT_OFF = "backfill@+3m/15m:c1/n1"


async def play_minutes(folder: Path, faults: str, minutes: int) -> Play:
    play = Play(folder, faults, (1, 8, 2))
    play.keep_agents_of(play.faults)
    while play.minute < minutes:
        await play.pass_minute()
    return play


def openings(play: Play, rule: str) -> list[tuple[TransitionKind, int]]:
    """Return kind and minute of the transitions of a rule."""
    found = play.hub.registered.finding_transitions(0, 1000)
    return [
        (one.transition.kind, (one.transition.at - play.start) // MINUTE)
        for one in found
        if one.transition.finding.rule == rule
    ]


async def test_condition_that_has_passed_is_found_when_its_data_arrives(tmp_path: Path) -> None:
    play = await play_minutes(tmp_path, f"{HUNG},{CUT_OFF}", 24)
    try:
        opened, closed = openings(play, "gpu.hung")
        assert (opened[0], closed[0]) == (TransitionKind.OPENED, TransitionKind.CLOSED)
        assert 6 <= opened[1] <= 8
        assert 14 <= closed[1] <= 17
        assert "gpu.hung" not in play.hub.open_rules
        assert [kind for kind, _ in openings(play, "node.missing")] == [TransitionKind.OPENED, TransitionKind.CLOSED]
    finally:
        play.hub.end()


async def test_xid_that_a_boot_ended_is_found_when_its_data_arrives(tmp_path: Path) -> None:
    play = await play_minutes(tmp_path, f"xid=119@+4m:c1/n1/g0,node-reboot@+8m/1m:c1/n1,{CUT_OFF}", 24)
    try:
        assert openings(play, "gpu.xid.reset") == [(TransitionKind.OPENED, 5), (TransitionKind.CLOSED, 12)]
    finally:
        play.hub.end()


async def test_xid_without_a_reset_is_found_when_its_data_arrives(tmp_path: Path) -> None:
    play = await play_minutes(tmp_path, f"xid=119@+4m:c1/n1/g0,{CUT_OFF}", 24)
    try:
        assert openings(play, "gpu.xid.reset") == [(TransitionKind.OPENED, 21)]
    finally:
        play.hub.end()


async def test_condition_that_was_found_in_time_has_one_finding(tmp_path: Path) -> None:
    play = await play_minutes(tmp_path, "gpu-hung@+2m/8m:c1/n1/g0,backfill@+13m/6m:c1/n1", 26)
    try:
        assert [kind for kind, _ in openings(play, "gpu.hung")] == [TransitionKind.OPENED, TransitionKind.CLOSED]
    finally:
        play.hub.end()


async def test_late_interval_waits_for_the_end_of_the_backlog_and_for_the_registry(tmp_path: Path) -> None:
    play = await play_minutes(tmp_path, f"{HUNG},{CUT_OFF}", 19)
    try:
        assert openings(play, "gpu.hung") == []
        play.hub.registered.is_down = True
        for _ in range(4):
            with pytest.raises(AssertionError):
                await play.pass_minute()
        play.hub.registered.is_down = False
        await play.pass_minute()
        await play.pass_minute()
        assert [kind for kind, _ in openings(play, "gpu.hung")] == [TransitionKind.OPENED, TransitionKind.CLOSED]
    finally:
        play.hub.end()


@pytest.mark.parametrize("flushes", [True, False], ids=["flushed", "in the log"])
async def test_late_interval_survives_a_restart(flushes: bool, tmp_path: Path) -> None:
    """The hub is killed when the backlog has arrived, and is not judged yet."""
    play = await play_minutes(tmp_path, f"{HUNG},{CUT_OFF}", 18)
    try:
        play.hub.flushes = flushes
        await play.pass_minute()
        assert openings(play, "gpu.hung") == []
        play.hub.flushes = True
        play.hub.restart_after(20)
        while play.minute < 26:
            await play.pass_minute()
        assert [kind for kind, _ in openings(play, "gpu.hung")] == [TransitionKind.OPENED, TransitionKind.CLOSED]
        assert play.hub.registered.late_starts() == ()
    finally:
        play.hub.end()


async def test_backlog_that_a_restart_divides_is_one_late_interval(tmp_path: Path) -> None:
    """The newest batch arrived before the restart, and the backlog after it."""
    play = await play_minutes(tmp_path, f"{HUNG},backfill@+3m/12m:c1/n1", 15)
    try:
        await play.pass_minute()
        play.hub.restart_after(20)
        while play.minute < 26:
            await play.pass_minute()
        assert [kind for kind, _ in openings(play, "gpu.hung")] == [TransitionKind.OPENED, TransitionKind.CLOSED]
    finally:
        play.hub.end()


async def test_interval_that_is_judged_again_after_a_crash_has_no_second_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is killed after the findings were saved, and before that was recorded."""
    play = await play_minutes(tmp_path, f"{HUNG},{CUT_OFF}", 19)
    try:
        monkeypatch.setattr(play.hub.late, "finish", lambda _: None)
        while not openings(play, "gpu.hung"):
            await play.pass_minute()
        assert len(play.hub.registered.late_starts()) == 1
        play.hub.restart_after(20)
        for _ in range(6):
            await play.pass_minute()
        assert [kind for kind, _ in openings(play, "gpu.hung")] == [TransitionKind.OPENED, TransitionKind.CLOSED]
        assert play.hub.registered.late_starts() == ()
    finally:
        play.hub.end()


def accepted(node: Node, clock: FakeClock, at: int | None = None, seq: int | None = None) -> AcceptedBatch:
    """Return a batch of a node, received now: the next one, or that with number `seq`."""
    batch = decode(node.body(clock, at=at, seq=seq))
    return AcceptedBatch(received_at=clock.now_ns(), reported_at=clock.now_ns(), machine_ids=(), batch=batch)


def sender_with_backlog() -> Node:
    """Return a sender whose first batches did not arrive."""
    node = Node("n")
    node.seq = 50
    return node


def test_interval_that_could_not_be_saved_is_saved_with_the_next_batches() -> None:
    registry, node, clock = MemoryFindings(), sender_with_backlog(), FakeClock()
    late = LateReports(registry, ())
    late.note([accepted(node, clock)])
    old = accepted(node, clock, clock.now_ns() - int(LATE_SECONDS * NANOS), 9)
    registry.is_down = True
    with pytest.raises(RegistryError):
        late.note([old])
    registry.is_down = False
    late.note([old])
    assert [one.start for one in registry.late_starts()] == [old.batch.sent_at]


def test_interval_that_begins_during_a_judgement_is_kept() -> None:
    registry, node, clock = MemoryFindings(), sender_with_backlog(), FakeClock()
    late = LateReports(registry, ())
    starts = [clock.now_ns() - int(seconds * NANOS) for seconds in (2 * LATE_SECONDS, LATE_SECONDS)]
    late.note([accepted(node, clock), accepted(node, clock, starts[0], 8)])
    late.take(0.0)
    assert late.take(QUIET_SECONDS).keys() == {("local", "n")}
    late.note([accepted(node, clock, starts[1], 9)])
    assert [one.start for one in registry.late_starts()] == [starts[0]]
    late.finish({("local", "n")})
    assert [one.start for one in registry.late_starts()] == [starts[0]]
    late.finish(())
    assert [one.start for one in registry.late_starts()] == [starts[1]]


def test_clock_ahead_makes_later_batches_not_late() -> None:
    late, node, clock = LateReports(MemoryFindings(), ()), sender_with_backlog(), FakeClock()
    for ahead in (7200.0, 0.0, 0.0):
        node.ahead = ahead
        clock.advance(30)
        late.note([accepted(node, clock)])
    assert late.take(0.0) == late.take(QUIET_SECONDS) == {}
    one = accepted(node, clock, clock.now_ns() - int(LATE_SECONDS * NANOS), 9)
    late.note([one])
    old = one.batch
    assert late.take(0.0) == {}
    (interval,) = late.take(QUIET_SECONDS).values()
    assert (interval.start, interval.end) == (old.sent_at, clock.now_ns())


def test_clock_that_is_set_back_makes_no_batch_late() -> None:
    late, node, clock = LateReports(MemoryFindings(), ()), Node("n"), FakeClock()
    for node.ahead in (0.0, -7200.0, -7200.0):
        clock.advance(30)
        late.note([accepted(node, clock)])
    assert late.seconds() == {}


def test_only_the_newest_day_of_a_late_interval_is_judged() -> None:
    end = 1_795_000_030 * NANOS
    found = past_interval("east", "m1", "agent", LateInterval(end - 40 * 86_400 * NANOS, end))
    assert (found.start % MINUTE, found.end % MINUTE) == (0, 0)
    assert found.start < end - 86_399 * NANOS
    assert end < found.end <= end + MINUTE
    assert (found.end - found.start) // MINUTE <= 24 * 60 + 1
