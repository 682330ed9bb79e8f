import pytest

from gpufleet.codecs.batch import decode
from gpufleet.hub.receive.decode_cache import DecodedBatchCache
from tests.fakes.batches import body

NOW = 10**18
BATCHES = [decode(body(seq, NOW)) for seq in (1, 2, 3)]


def test_what_was_kept_is_taken_once() -> None:
    unpacked = DecodedBatchCache()
    unpacked.keep(7, BATCHES[0], 70, 1000)
    assert unpacked.take(6) is None
    batch, digest = unpacked.take(7) or (None, 0)
    assert (batch, digest) == (BATCHES[0], 70)
    assert unpacked.take(7) is None


def test_what_is_kept_has_its_numbers_in_arrays() -> None:
    unpacked = DecodedBatchCache()
    unpacked.keep(1, decode(body(1, NOW)), 1, 1000)
    batch, _ = unpacked.take(1) or pytest.fail("it is not there")
    assert "array" in {type(column).__name__ for block in batch.samples for column in block.columns}


def test_the_last_to_come_is_not_kept_when_there_is_no_room() -> None:
    unpacked = DecodedBatchCache(max_bytes=2000)
    for number, batch in enumerate(BATCHES, 1):
        unpacked.keep(number, batch, number, 1000)
    assert [unpacked.take(number) is not None for number in (1, 2, 3)] == [True, True, False]


def test_skipped_numbers_free_room_in_any_order() -> None:
    unpacked = DecodedBatchCache(max_bytes=3000)
    for number in (3, 2, 4):
        unpacked.keep(number, BATCHES[0], number, 1000)
    assert unpacked.take(4) is not None
    for number in (5, 6, 7):
        unpacked.keep(number, BATCHES[0], number, 1000)
    assert [unpacked.take(number) is not None for number in (5, 6, 7)] == [True] * 3


def test_what_was_taken_makes_room() -> None:
    unpacked = DecodedBatchCache(max_bytes=1000)
    for number, batch in enumerate(BATCHES, 1):
        unpacked.keep(number, batch, number, 1000)
        assert unpacked.take(number) is not None


def test_what_has_no_room_at_all_is_not_kept() -> None:
    unpacked = DecodedBatchCache(max_bytes=999)
    unpacked.keep(1, BATCHES[0], 1, 1000)
    assert unpacked.take(1) is None
