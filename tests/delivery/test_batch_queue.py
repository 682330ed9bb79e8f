"""Batch queue whose files are deleted while it is open."""

import shutil
from pathlib import Path

import pytest

from gpufleet.codecs.batch import decode, encode
from gpufleet.delivery.batch_queue import BatchQueue, MemoryQueue
from gpufleet.spool import Spool, SpoolGoneError
from tests.fakes.batches import make_batch


def make(epoch: str, seq: int) -> bytes:
    return encode(make_batch(seq, 1_700_000_000_000_000_000, epoch=epoch))


async def test_deleted_spool_is_counted_and_replaced(tmp_path: Path) -> None:
    queue = BatchQueue(lambda: Spool.open(tmp_path / "spool", max_bytes=1 << 20), MemoryQueue())
    await queue.open()
    await queue.put(make, 7)
    await queue.put(make, 7)
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(SpoolGoneError):
        await queue.live()
    await queue.put(make, 7)
    assert (queue.lost, queue.records, queue.memory_records) == (2, None, 1)
    await queue.put(make, 7)  # into the new spool
    assert (queue.lost, queue.records, queue.memory_records) == (2, 2, 1)
    oldest = await queue.oldest()
    assert oldest is not None
    assert decode(oldest.body).epoch == oldest.epoch
    assert list((tmp_path / "spool").glob("*.seg"))
    queue.close()
