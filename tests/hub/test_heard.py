"""Which word of a sender is its newest."""

from gpufleet.codecs.batch import to_wire
from gpufleet.hub.heard import hear
from gpufleet.model.wire import WireBatch
from tests.fakes.batches import make_batch

NOW = 10**18


def wire(seq: int, sent_at: int, epoch: str = "a" * 32) -> WireBatch:
    return to_wire(make_batch(seq, sent_at, epoch=epoch))


def test_backlog_that_follows_the_newest_changes_nothing() -> None:
    newest = hear(None, wire(100, NOW), NOW)
    assert hear(newest, wire(1, NOW - 10**12), NOW + 5) == newest


def test_clocks_that_were_set_back_hide_nothing() -> None:
    before = hear(None, wire(1, NOW), NOW)
    after = hear(before, wire(2, NOW - 10**12), NOW - 10**12)
    assert (after.seq, after.sent_at, after.received_at) == (2, NOW - 10**12, NOW - 10**12)


def test_another_epoch_is_news() -> None:
    before = hear(None, wire(100, NOW), NOW)
    assert hear(before, wire(1, NOW, epoch="b" * 32), NOW + 5).seq == 1
