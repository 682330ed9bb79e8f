"""Decoded batch cache: each batch is taken once and the memory limit holds."""

import pytest

from gpufleet.codecs.batch import decode
from gpufleet.hub.receive.decode_cache import DecodedBatchCache
from tests.fakes.batches import body

NOW = 10**18
BATCHES = [decode(body(seq, NOW)) for seq in (1, 2, 3)]


def test_cached_batch_is_taken_once() -> None:
    cache = DecodedBatchCache()
    cache.keep(7, BATCHES[0], 70, 1000)
    assert cache.take(6) is None
    batch, digest = cache.take(7) or (None, 0)
    assert (batch, digest) == (BATCHES[0], 70)
    assert cache.take(7) is None


def test_cached_batch_has_its_numbers_in_arrays() -> None:
    cache = DecodedBatchCache()
    cache.keep(1, decode(body(1, NOW)), 1, 1000)
    batch, _ = cache.take(1) or pytest.fail("not in the cache")
    assert "array" in {type(column).__name__ for block in batch.samples for column in block.columns}


def test_newest_batch_is_not_cached_when_full() -> None:
    cache = DecodedBatchCache(max_bytes=2000)
    for number, batch in enumerate(BATCHES, 1):
        cache.keep(number, batch, number, 1000)
    assert [cache.take(number) is not None for number in (1, 2, 3)] == [True, True, False]


def test_skipped_numbers_free_memory_in_any_order() -> None:
    cache = DecodedBatchCache(max_bytes=3000)
    for number in (3, 2, 4):
        cache.keep(number, BATCHES[0], number, 1000)
    assert cache.take(4) is not None
    for number in (5, 6, 7):
        cache.keep(number, BATCHES[0], number, 1000)
    assert [cache.take(number) is not None for number in (5, 6, 7)] == [True] * 3


def test_taken_batch_frees_memory() -> None:
    cache = DecodedBatchCache(max_bytes=1000)
    for number, batch in enumerate(BATCHES, 1):
        cache.keep(number, batch, number, 1000)
        assert cache.take(number) is not None


def test_batch_larger_than_the_cache_is_not_cached() -> None:
    cache = DecodedBatchCache(max_bytes=999)
    cache.keep(1, BATCHES[0], 1, 1000)
    assert cache.take(1) is None
