"""Flusher loop with a writer that takes fewer records than the log offers."""

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufleet.hub.flush.flusher import Flusher
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.log import Wal, WalRecord
from gpufleet.runtime import SystemClock
from gpufleet.spool import SpoolGoneError
from tests.support.waiting import PATIENCE, wait_until_async


class BoundedWriter:
    """Writer that takes at most `most` records at once, as large records require."""

    repeats: range | None = None
    needs_more_records = False

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: list[list[int]] = []

    def flush(self, records: Sequence[WalRecord]) -> list[int]:
        seqs = [record.seq for record in records[: self.most]]
        if seqs:
            self.taken.append(seqs)
        return seqs


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Wal]:
    wal = Wal.open(tmp_path / "wal", max_bytes=1 << 20, max_body_bytes=1 << 19)
    yield wal
    wal.close()


def make_flusher(
    wal: Wal, writer: BoundedWriter, thread: ThreadPoolExecutor, *, interval_seconds: float = 3600
) -> Flusher:
    return Flusher(
        wal=wal,
        writer=writer,  # type: ignore[arg-type]
        thread=thread,
        counters=Counters(),
        clock=SystemClock(),
        interval_seconds=interval_seconds,
        max_records=10,
        max_bytes=1 << 20,
    )


async def flushed(wal: Wal, writer: BoundedWriter, count: int, later: int = 0) -> list[list[int]]:
    """Flush `count` records and then `later` ones at the end, with an hour between groups."""
    await wal.append_all(0, [b"body"] * count, [0] * count)
    with ThreadPoolExecutor(1) as thread:
        flusher = make_flusher(wal, writer, thread)
        running = asyncio.create_task(flusher.run())

        async def nearly_all() -> bool:
            return sum(map(len, writer.taken)) >= count - 2

        await wait_until_async(nearly_all)
        await wal.append_all(0, [b"body"] * later, [0] * later)
        flusher.stop()
        await running
    return writer.taken


async def test_small_rest_waits_for_the_next_group(wal: Wal) -> None:
    assert await flushed(wal, BoundedWriter(9), 10, later=3) == [[*range(1, 10)], [10, 11, 12, 13]]


async def test_rest_of_a_large_group_is_written_at_once(wal: Wal) -> None:
    assert await flushed(wal, BoundedWriter(3), 10) == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]]
    assert wal.waiting_records == 0


async def test_backlog_is_written_without_a_pause(wal: Wal) -> None:
    assert await flushed(wal, BoundedWriter(100), 32) == [[*range(1, 11)], [*range(11, 21)], [*range(21, 31)], [31, 32]]


@pytest.mark.parametrize("stopped", [False, True])
async def test_deleted_log_ends_the_loop(wal: Wal, tmp_path: Path, stopped: bool) -> None:
    await wal.append(0, b"body")
    with ThreadPoolExecutor(1) as thread:
        flusher = make_flusher(wal, BoundedWriter(10), thread)
        shutil.rmtree(tmp_path / "wal")
        if stopped:
            flusher.stop()
        with pytest.raises(SpoolGoneError):
            await asyncio.wait_for(flusher.run(), PATIENCE)


async def test_stop_ends_although_the_writer_finishes_nothing(wal: Wal) -> None:
    await wal.append(0, b"body")
    with ThreadPoolExecutor(1) as thread:
        flusher = make_flusher(wal, BoundedWriter(0), thread, interval_seconds=0.01)
        flusher.stop()
        await asyncio.wait_for(flusher.run(), PATIENCE)
    assert wal.waiting_records == 1
