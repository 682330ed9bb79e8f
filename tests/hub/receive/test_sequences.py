"""Sequence runs: duplicates are recognised and a second machine under an epoch is detected."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.batch import decode
from gpufleet.hub.receive.ledger import MAX_PROCESSES, SequenceRun
from gpufleet.hub.receive.sequences import MAX_BODIES, MIN_BODIES, digest_of
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


def test_known_number_with_other_body_is_a_conflict() -> None:
    run = SequenceRun()
    first = body(7, NOW)
    run.hold(decode(first), digest_of(first), NOW)
    assert run.has(7, digest_of(first))
    other = body(7, NOW, gpus=1)
    assert not run.has(7, digest_of(other))
    assert run.epoch_conflict(decode(other)) == "number 7 came with another content"
    assert run.epoch_conflict(decode(body(8, NOW))) == ""


def test_number_with_expired_digest_is_not_a_duplicate() -> None:
    run = SequenceRun()
    for seq in range(1, MIN_BODIES + 2):
        run.hold(batch(seq), seq, NOW + seq * 100 * NANOS)
    assert not run.has(1, 1)
    assert "came long ago" in run.epoch_conflict(batch(1))
    assert all(run.has(seq, seq) for seq in range(2, MIN_BODIES + 2))


def test_digests_of_a_backlog_expire_with_later_batches() -> None:
    run = SequenceRun()
    for seq in range(1, MAX_BODIES + 11):
        run.hold(batch(seq), seq, NOW)
    assert [run.has(seq, seq) for seq in (10, 11, MAX_BODIES)] == [False, True, True]
    later = NOW + 3600 * NANOS
    for seq in range(MAX_BODIES + 11, MAX_BODIES + 111):
        run.hold(batch(seq), seq, later)
    assert [run.has(seq, seq) for seq in (210, 211, MAX_BODIES + 110)] == [False, True, True]
    for seq in range(MAX_BODIES + 111, 3 * MAX_BODIES):
        run.hold(batch(seq), seq, later + seq * 61 * NANOS)
    assert len(run.held.digests) == 20 * MIN_BODIES


def test_retry_after_an_outage_is_still_a_duplicate() -> None:
    """A sender posts its newest batches first, so batches repeated from before the outage arrive last."""
    run = SequenceRun()
    for seq in range(1, 101):
        run.hold(batch(seq), seq, NOW + seq * 10 * NANOS)
    back = NOW + 5000 * NANOS
    for seq in range(1000, 300, -1):
        run.hold(batch(seq), seq, back + (1000 - seq) * NANOS)
    assert all(run.has(seq, seq) for seq in range(100 - MIN_BODIES + 1, 101))
    for seq in range(101, 301):
        run.hold(batch(seq), seq, back + (700 + seq) * NANOS)
    for seq in range(1001, 1500):
        run.hold(batch(seq), seq, back + 3600 * NANOS + seq * NANOS)
    assert not run.has(100, 100)


def test_digests_cover_all_batches_a_relay_has_in_flight() -> None:
    """A relay posts 256 bodies on each of eight connections, newest first, and the hub is killed before it answers."""
    run = SequenceRun()
    for seq in range(5000, 0, -1):
        run.hold(batch(seq), seq, NOW + (5000 - seq) * NANOS // 40)
    assert all(run.has(seq, seq) for seq in range(5000, 5000 - 8 * 256, -1))


def test_digests_of_a_sender_with_many_gaps_are_bounded() -> None:
    run = SequenceRun()
    for seq in range(1, 5 * (MAX_BODIES + 100), 5):
        run.hold(batch(seq), seq, NOW + seq * 61 * NANOS)
    assert len(run.held.digests) == 20 * MAX_BODIES


def test_digest_of_the_last_received_batch_is_kept() -> None:
    run = SequenceRun()
    for seq in range(1000, 1000 + 3 * MIN_BODIES):
        run.hold(batch(seq), seq, NOW)
    run.hold(batch(5), 55, NOW)
    assert run.has(5, 55)


def test_clone_with_interleaved_numbers_is_detected() -> None:
    run = SequenceRun()
    for seq in (100, 102, 104):
        run.hold(batch(seq, process=1), seq, NOW)
    run.hold(batch(105), 105, NOW)
    assert run.epoch_conflict(batch(103, process=2)) == "number 103 is among the numbers 100 to 104 of another process"
    assert run.epoch_conflict(batch(103, process=1)) == ""
    assert run.epoch_conflict(batch(106, process=2)) == ""


def test_first_clone_is_detected_after_the_second_reported() -> None:
    run = SequenceRun()
    run.hold(batch(100, process=1), 1, NOW)
    run.hold(batch(101, process=2), 2, NOW)
    assert "another process" in run.epoch_conflict(batch(102, process=1))


@given(st.data())
def test_single_sender_never_conflicts(data: st.DataObject) -> None:
    """Any number of restarts, any order of arrival, and duplicates of the latest batch."""
    restarts = sorted(data.draw(st.lists(st.integers(1, 60), max_size=MAX_PROCESSES + 4)))
    beats = data.draw(st.sets(st.integers(1, 60)))
    arrivals = data.draw(st.permutations(range(1, 61)))
    run = SequenceRun()
    for seq in arrivals:
        process = sum(first <= seq for first in restarts) + 1
        received = batch(seq, process if seq in beats else None)
        assert run.epoch_conflict(received) == ""
        run.hold(received, seq, NOW)
        run = run.copy() if seq % 7 == 0 else run
        assert run.has(seq, seq)
    assert run.numbers.ranges == ((1, 60),)


@given(st.lists(st.booleans(), min_size=4, max_size=60))
def test_two_machines_under_one_epoch_conflict(first_has_it: list[bool]) -> None:
    """A clone conflicts by its next heartbeat, unless the numbers of the clones never interleave."""
    run = SequenceRun()
    conflicts = False
    for seq, first in enumerate(first_has_it, 1):
        received = batch(seq, process=1 if first else 2)
        conflicts = conflicts or run.epoch_conflict(received) != ""
        if not conflicts:
            run.hold(received, seq, NOW)
    changes = sum(a is not b for a, b in pairwise(first_has_it))
    assert conflicts is (changes > 1)
