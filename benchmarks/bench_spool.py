"""Speed of the spool: durable puts with group commit, reads, and opening of a full spool.

Method: a folder below the working directory, so that it is on a disk and not in memory. Bodies are 2 KiB of random
bytes. Puts: 1 to 256 writers on one event loop for 3 seconds, each waiting until its record is durable. The baseline is
a plain append and `fsync` of 2 KiB in the same run. Opening: 256 MiB, read from the page cache and verified, best of
three.
"""

import asyncio
import os
import tempfile
import time
from pathlib import Path

from benchmarks.table import Table
from gpufleet.spool import Spool

BODY = os.urandom(2048)
GIB = 1 << 30


def fsyncs_a_second(folder: Path) -> float:
    fd = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < 1:
        os.write(fd, BODY)
        os.fsync(fd)
        count += 1
    os.close(fd)
    return count / (time.perf_counter() - start)


async def puts_a_second(spool: Spool, writers: int) -> float:
    count = 0
    start = time.perf_counter()

    async def write() -> None:
        nonlocal count
        while time.perf_counter() - start < 3:
            spool.acknowledge([await spool.put(BODY)])
            count += 1

    await asyncio.gather(*(write() for _ in range(writers)))
    return count / (time.perf_counter() - start)


def fill(folder: Path, size: int) -> int:
    spool = Spool.open(folder, max_bytes=GIB)
    while spool.depth.bytes < size:
        for _ in range(1000):
            spool.append(BODY)
        spool.sync()
    records = spool.depth.records
    spool.close()
    return records


def main() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-spool-") as name:
        folder = Path(name)
        table = Table("Spool", "what", "figure")
        table.row("plain append and fsync", f"{fsyncs_a_second(folder):.0f} /s")
        for writers in (1, 16, 64, 256):
            spool = Spool.open(folder / f"puts-{writers}", max_bytes=GIB)
            table.row(f"durable puts, {writers} writers", f"{asyncio.run(puts_a_second(spool, writers)):.0f} /s")
            spool.close()
        records = fill(folder / "full", 256 << 20)
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            spool = Spool.open(folder / "full", max_bytes=GIB)
            best = min(best, time.perf_counter() - start)
            start = time.perf_counter()
            read = sum(len(spool.read(after, max_records=1000, max_bytes=GIB)) for after in range(0, records, 1000))
            reading = time.perf_counter() - start
            start = time.perf_counter()
            for _ in range(100):
                spool.read_newest(max_records=8, max_bytes=GIB)
            newest = (time.perf_counter() - start) / 100
            assert read == spool.recovery.records == records
            spool.close()
        table.row(f"opening 256 MiB of {records} records", f"{best:.2f} s")
        table.row("reading all records", f"{records / reading:.0f} /s")
        table.row("reading the newest 8 records", f"{newest * 1e6:.0f} us")
        table.print()


if __name__ == "__main__":
    main()
