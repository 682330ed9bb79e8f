"""Spool on a failing disk and after SIGKILL."""

import asyncio
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpufleet.model.errors import SpoolError
from gpufleet.spool import Spool, SpoolGoneError
from tests.support.profiles import examples
from tests.support.waiting import wait_until

KILLS = examples(8, 150)


def open_spool(folder: Path) -> Spool:
    return Spool.open(folder, max_bytes=64 << 20, segment_bytes=1 << 20)


def everything(spool: Spool) -> list[tuple[int, bytes]]:
    return [(one.seq, one.body) for one in spool.read(max_records=1_000_000, max_bytes=1 << 40)]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Make writes past `size` bytes of a file fail partly and then wholly, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_rejects_a_record_and_keeps_the_others(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    assert spool.append(b"before") == 1
    with largest_file(1000):
        with pytest.raises(SpoolError, match="cannot append to it: File too large"):
            spool.append(bytes(2000))
        assert spool.append(b"small") == 2
        spool.sync()
    assert spool.append(bytes(2000)) == 3
    spool.sync()
    assert everything(spool) == [(1, b"before"), (2, b"small"), (3, bytes(2000))]
    spool.close()
    spool = open_spool(tmp_path)
    assert [seq for seq, _ in everything(spool)] == [1, 2, 3]
    assert spool.recovery.torn_bytes == 0
    spool.close()


async def test_full_disk_fails_puts_but_not_acknowledgements(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    await spool.put(b"before")
    with largest_file(10):
        with pytest.raises(SpoolError, match="File too large"):
            await spool.put(b"after")
        spool.acknowledge([1])
        assert spool.depth.records == 0
    assert await spool.put(b"again") == 2
    spool.close()


def test_segment_that_cannot_be_created_is_created_later(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append(bytes(1_000_000))
    with largest_file(0), pytest.raises(SpoolError, match="File too large"):
        spool.append(bytes(100_000))
    assert spool.append(bytes(100_000)) == 2
    spool.sync()
    assert [seq for seq, _ in everything(spool)] == [1, 2]
    spool.close()


@contextmanager
def sync_fails(path: Path) -> Iterator[None]:
    """Replace an open file with a pipe, which cannot be synced."""
    (fd,) = [
        int(link.name) for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and link.readlink() == path
    ]
    kept = os.dup(fd)
    reading, writing = os.pipe()
    os.dup2(writing, fd)
    try:
        yield
    finally:
        os.dup2(kept, fd)
        for end in (kept, reading, writing):
            os.close(end)


async def test_failed_sync_discards_records_that_are_not_durable(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    await spool.put(b"durable")
    path = tmp_path / f"{1:020d}.seg"
    puts = [asyncio.create_task(spool.put(b"lost")) for _ in range(5)]
    await asyncio.sleep(0)  # all are appended and the sync has not begun
    with sync_fails(path):
        results = await asyncio.gather(*puts, return_exceptions=True)
    assert all(isinstance(result, SpoolError) for result in results)
    assert "cannot make it durable: Invalid argument" in str(results[0])
    assert spool.next_seq == 2
    assert await spool.put(b"new") == 2
    assert everything(spool) == [(1, b"durable"), (2, b"new")]
    spool.close()
    spool = open_spool(tmp_path)
    assert everything(spool) == [(1, b"durable"), (2, b"new")]
    spool.close()


async def test_deleted_files_fail_reads_puts_and_checks(tmp_path: Path) -> None:
    spool = open_spool(tmp_path / "spool")
    await spool.put(b"queued")
    spool.check_files()
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(SpoolGoneError):
        spool.check_files()
    with pytest.raises(SpoolGoneError):
        everything(spool)
    with pytest.raises(SpoolGoneError):
        await spool.put(b"never durable")
    with pytest.raises(SpoolGoneError):  # needs a new segment
        await spool.put(bytes((1 << 20) - 100))
    assert spool.depth.records == 1
    spool.close()


async def test_replaced_file_is_not_taken_for_the_open_one(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    await spool.put(b"queued")
    path = tmp_path / f"{1:020d}.seg"
    shutil.copy(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)
    with pytest.raises(SpoolGoneError):
        await spool.put(b"never durable")
    spool.close()


WRITER = """
import asyncio, os, sys
from pathlib import Path
from gpufleet.spool import Spool

def body(seq):
    return b"%d " % seq * (seq % 97 + 1)

async def main():
    spool = Spool.open(Path(sys.argv[1]), max_bytes=64 << 20, segment_bytes=20_000)
    expected = spool.next_seq
    async def write():
        nonlocal expected
        while True:
            seq, expected = expected, expected + 1
            assert await spool.put(body(seq)) == seq
            os.write(1, b"%d\\n" % seq)
            if seq % 5 == 0:
                spool.acknowledge([seq])
                os.write(1, b"-%d\\n" % seq)
    await asyncio.gather(*(write() for _ in range(8)))

asyncio.run(main())
"""


def body(seq: int) -> bytes:
    return b"%d " % seq * (seq % 97 + 1)


def test_durable_records_survive_a_kill_at_any_time(tmp_path: Path) -> None:
    folder, log = tmp_path / "spool", tmp_path / "log"
    chance = random.Random(7)
    durable: set[int] = set()
    acknowledged: set[int] = set()
    epochs = set()
    for _ in range(KILLS):
        with log.open("wb") as out:
            writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=out)
        size = chance.randrange(1, 4000)
        wait_until(lambda size=size: log.stat().st_size >= size, what="records")  # type: ignore[misc]
        writer.kill()
        writer.wait()
        logged = [int(line) for line in log.read_text().split("\n")[:-1]]
        durable.update(seq for seq in logged if seq > 0)
        acknowledged.update(-seq for seq in logged if seq < 0)
        spool = Spool.open(folder, max_bytes=64 << 20, segment_bytes=20_000)
        records = everything(spool)
        epochs.add(spool.epoch)
        assert spool.recovery.lost_records == spool.recovery.damaged_bytes == 0
        assert spool.next_seq > max(durable)
        spool.close()
        seqs = [seq for seq, _ in records]
        assert seqs == sorted(seqs)
        assert all(content == body(seq) for seq, content in records)
        in_doubt = {seq for seq in durable if seq % 5 == 0} - acknowledged
        assert durable - acknowledged - in_doubt <= set(seqs)
        assert not acknowledged & set(seqs)
    assert len(epochs) == 1
