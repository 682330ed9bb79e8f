"""A sender's repetitions are known, and a second machine under its epoch is found out."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.batch import decode
from gpufleet.hub.receive.ledger import PROCESSES_KEPT, Run
from gpufleet.hub.receive.sequences import LEAST, MOST, digest_of
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import WIRE_VERSION, WireBatch
from tests.fakes.batches import EPOCH, body

NOW = 10**18


def batch(seq: int, process: int | None = None) -> WireBatch:
    heartbeat = None if process is None else Heartbeat(interval_seconds=30, version="1", started_at=process)
    return WireBatch(
        version=WIRE_VERSION,
        catalogue=1,
        cluster="c",
        sender="s",
        epoch=EPOCH,
        seq=seq,
        sent_at=NOW,
        heartbeat=heartbeat,
    )


def test_the_same_body_again_is_held_and_another_one_is_told_apart() -> None:
    run = Run()
    first = body(7, NOW)
    run.hold(decode(first), digest_of(first), NOW)
    assert run.has(7, digest_of(first))
    other = body(7, NOW, gpus=1)
    assert not run.has(7, digest_of(other))
    assert run.contradiction(decode(other)) == "number 7 came with another content"
    assert run.contradiction(decode(body(8, NOW))) == ""


def test_a_number_from_long_ago_is_never_taken_for_a_repetition() -> None:
    run = Run()
    for seq in range(1, LEAST + 2):
        run.hold(batch(seq), seq, NOW + seq * 100 * NANOS)
    assert not run.has(1, 1)
    assert "came long ago" in run.contradiction(batch(1))
    assert all(run.has(seq, seq) for seq in range(2, LEAST + 2))


def test_a_backlog_is_remembered_until_as_much_has_come_after_it() -> None:
    run = Run()
    for seq in range(1, MOST + 11):
        run.hold(batch(seq), seq, NOW)
    assert [run.has(seq, seq) for seq in (10, 11, MOST)] == [False, True, True]
    later = NOW + 3600 * NANOS
    for seq in range(MOST + 11, MOST + 111):
        run.hold(batch(seq), seq, later)
    assert [run.has(seq, seq) for seq in (210, 211, MOST + 110)] == [False, True, True]
    for seq in range(MOST + 111, 3 * MOST):
        run.hold(batch(seq), seq, later + seq * 61 * NANOS)
    assert len(run.held.digests) == 20 * LEAST


def test_a_body_whose_answer_was_lost_before_an_outage_is_a_repetition_still_however_much_came_first() -> None:
    """A sender posts its newest first: what it repeats from before the outage comes after all of that."""
    run = Run()
    for seq in range(1, 101):
        run.hold(batch(seq), seq, NOW + seq * 10 * NANOS)
    back = NOW + 5000 * NANOS
    for seq in range(1000, 300, -1):
        run.hold(batch(seq), seq, back + (1000 - seq) * NANOS)
    assert all(run.has(seq, seq) for seq in range(100 - LEAST + 1, 101))
    for seq in range(101, 301):
        run.hold(batch(seq), seq, back + (700 + seq) * NANOS)
    for seq in range(1001, 1500):
        run.hold(batch(seq), seq, back + 3600 * NANOS + seq * NANOS)
    assert not run.has(100, 100)


def test_all_that_a_relay_can_have_under_way_for_one_sender_is_remembered() -> None:
    """Eight connections of 256 bodies each, posted to a hub that is killed before it answers, and other ones first."""
    run = Run()
    for seq in range(5000, 0, -1):
        run.hold(batch(seq), seq, NOW + (5000 - seq) * NANOS // 40)
    assert all(run.has(seq, seq) for seq in range(5000, 5000 - 8 * 256, -1))


def test_what_is_remembered_of_a_sender_with_many_holes_is_bounded() -> None:
    run = Run()
    for seq in range(1, 20 * MOST, 5):
        run.hold(batch(seq), seq, NOW + seq * 61 * NANOS)
    assert len(run.held.digests) <= 20 * MOST


def test_what_is_received_last_is_remembered_however_low_its_number() -> None:
    run = Run()
    for seq in range(1000, 1000 + 3 * LEAST):
        run.hold(batch(seq), seq, NOW)
    run.hold(batch(5), 55, NOW)
    assert run.has(5, 55)


def test_a_second_machine_whose_numbers_fall_between_the_first_s_is_found_out() -> None:
    run = Run()
    for seq in (100, 102, 104):
        run.hold(batch(seq, process=1), seq, NOW)
    run.hold(batch(105), 105, NOW)
    assert run.contradiction(batch(103, process=2)) == "number 103 is among the numbers 100 to 104 of another process"
    assert run.contradiction(batch(103, process=1)) == ""
    assert run.contradiction(batch(106, process=2)) == ""


def test_and_so_is_the_first_one_when_it_speaks_after_the_second() -> None:
    run = Run()
    run.hold(batch(100, process=1), 1, NOW)
    run.hold(batch(101, process=2), 2, NOW)
    assert "another process" in run.contradiction(batch(102, process=1))


@given(st.data())
def test_an_honest_sender_is_never_contradicted(data: st.DataObject) -> None:
    """Any number of restarts, every order of arrival, and repetitions of what came last."""
    restarts = sorted(data.draw(st.lists(st.integers(1, 60), max_size=PROCESSES_KEPT + 4)))
    beats = data.draw(st.sets(st.integers(1, 60)))
    arrivals = data.draw(st.permutations(range(1, 61)))
    run = Run()
    for seq in arrivals:
        process = sum(first <= seq for first in restarts) + 1
        one = batch(seq, process if seq in beats else None)
        assert run.contradiction(one) == ""
        run.hold(one, seq, NOW)
        run = run.copy() if seq % 7 == 0 else run
        assert run.has(seq, seq)
    assert run.numbers.ranges == ((1, 60),)


@given(st.lists(st.booleans(), min_size=4, max_size=60))
def test_two_machines_under_one_epoch_never_both_stay(first_has_it: list[bool]) -> None:
    """However two clones share the numbers out, one is turned away by its next heartbeat, unless they never mix."""
    run = Run()
    turned_away = False
    for seq, first in enumerate(first_has_it, 1):
        one = batch(seq, process=1 if first else 2)
        turned_away = turned_away or run.contradiction(one) != ""
        if not turned_away:
            run.hold(one, seq, NOW)
    changes = sum(a is not b for a, b in pairwise(first_has_it))
    assert turned_away is (changes > 1)
