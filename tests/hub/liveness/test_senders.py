"""Newest report of a sender."""

from gpufleet.codecs.batch import to_wire
from gpufleet.hub.liveness.senders import is_newer, next_report
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import WireBatch
from tests.fakes.batches import make_batch

NOW = 10**18


def wire(seq: int, sent_at: int, epoch: str = "a" * 32) -> WireBatch:
    return to_wire(make_batch(seq, sent_at, epoch=epoch))


NEWEST = next_report(None, wire(100, NOW), received_at=NOW)


def test_first_report_is_newer() -> None:
    assert is_newer(None, wire(1, NOW), known_epoch=False)


def test_backlog_after_the_newest_is_not_newer() -> None:
    assert not is_newer(NEWEST, wire(99, NOW + 10**12), known_epoch=True)


def test_report_after_a_clock_step_back_is_newer() -> None:
    after = wire(101, NOW - 10**12)
    assert is_newer(NEWEST, after, known_epoch=True)
    assert next_report(NEWEST, after, received_at=NOW - 5).sent_at == NOW - 10**12


def test_unknown_epoch_is_newer_whatever_its_number_and_clock() -> None:
    assert is_newer(NEWEST, wire(1, NOW - 10**12, epoch="b" * 32), known_epoch=False)


def test_sender_clock_orders_alternating_epochs() -> None:
    assert not is_newer(NEWEST, wire(200, NOW - 1, epoch="b" * 32), known_epoch=True)
    assert is_newer(NEWEST, wire(1, NOW + 1, epoch="b" * 32), known_epoch=True)


def test_corrected_clock_shows_the_other_epoch() -> None:
    ahead = next_report(NEWEST, wire(101, NOW + 10**14), received_at=NOW + 1)
    assert is_newer(ahead, wire(201, NOW + 2, epoch="b" * 32), known_epoch=True)
    assert not is_newer(ahead, wire(99, NOW + 2), known_epoch=True)


def test_backlog_of_a_clock_that_is_still_ahead_is_not_newer() -> None:
    ahead = next_report(NEWEST, wire(101, NOW + 120 * NANOS), received_at=NOW)
    assert not is_newer(ahead, wire(201, NOW - 3480 * NANOS, epoch="b" * 32), known_epoch=True)  # created an hour ago
    assert is_newer(ahead, wire(202, NOW + 121 * NANOS, epoch="b" * 32), known_epoch=True)


def test_heartbeat_is_kept_until_the_next_heartbeat() -> None:
    bare = wire(101, NOW)
    bare.heartbeat = None
    assert next_report(NEWEST, bare, received_at=NOW).heartbeat == NEWEST.heartbeat
