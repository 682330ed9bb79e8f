"""The flusher's loop beside a writer that takes fewer records than the log gives."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufleet.hub.flush.flusher import Flusher
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.log import Wal, WalRecord
from gpufleet.runtime import SystemClock
from tests.support.waiting import wait_until_async


class Cut:
    """A writer that takes so many records at once, as they unpack to too much."""

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


async def flushed(wal: Wal, writer: Cut, count: int, later: int = 0) -> list[list[int]]:
    """Have so many records written by a flusher that would wait for an hour between groups, and `later` at the end."""
    await wal.append_all(0, [b"body"] * count, [0] * count)
    with ThreadPoolExecutor(1) as thread:
        flusher = Flusher(
            wal=wal,
            writer=writer,  # type: ignore[arg-type]
            thread=thread,
            counters=Counters(),
            clock=SystemClock(),
            interval_seconds=3600,
            max_records=10,
            max_bytes=1 << 20,
        )
        running = asyncio.create_task(flusher.run())

        async def nearly_all() -> bool:
            return sum(map(len, writer.taken)) >= count - 2

        await wait_until_async(nearly_all)
        await wal.append_all(0, [b"body"] * later, [0] * later)
        flusher.stop()
        await running
    return writer.taken


async def test_a_small_rest_waits_for_company(wal: Wal) -> None:
    assert await flushed(wal, Cut(9), 10, later=3) == [[*range(1, 10)], [10, 11, 12, 13]]


async def test_what_is_left_of_much_is_written_at_once(wal: Wal) -> None:
    assert await flushed(wal, Cut(3), 10) == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10]]
    assert wal.waiting_records == 0


async def test_a_backlog_is_written_without_a_pause(wal: Wal) -> None:
    assert await flushed(wal, Cut(100), 32) == [[*range(1, 11)], [*range(11, 21)], [*range(21, 31)], [31, 32]]
