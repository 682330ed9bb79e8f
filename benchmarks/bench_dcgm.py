"""Reading DCGM host engines: passes a second, and the processor time of each.

Method: the simulated engine in a process of its own, on a Unix socket; this process reads it as an agent does, one lane
again and again over one kept connection. A fast pass is two questions (device fields live, profiling as sampled); each
answer has a record with a status and a time for every field of every GPU. Processor time is this process's alone, so
passes a second of a core are what one core could read from engines that answer at once. Then 64 readers at once, with
a connection each, one fast pass: a host's guests in steady state.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.table import Table
from gpufleet.channels.stream.dialers import UnixDialer
from gpufleet.model.catalogue import Lane
from gpufleet.model.view import Side
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.runtime import SystemClock

SECONDS, GUESTS = 3.0, 64


async def steady(address: Path, lane: Lane) -> tuple[float, float, int]:
    """Read a lane for a while; return seconds of time and of processor time a pass, and readings of a pass."""
    reader = DcgmReader(UnixDialer(address), SystemClock())
    count = 0
    found = await reader.read(lane)
    began, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < SECONDS:
        found = await reader.read(lane)
        count += 1
    took, cost = time.perf_counter() - began, time.process_time() - used
    await reader.close()
    readings = sum(len(sample.values) + len(sample.dims) for sample in found.samples)
    return took / count, cost / count, readings


async def guests(address: Path) -> tuple[float, float]:
    """Read as many guests as a host may have, once, their connections being open; return time and processor time."""
    readers = [DcgmReader(UnixDialer(address), SystemClock(), side=Side.GUEST) for _ in range(GUESTS)]
    for reader in readers:
        await reader.read(Lane.FAST)
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(reader.read(Lane.FAST) for reader in readers))
    took, cost = time.perf_counter() - began, time.process_time() - used
    await asyncio.gather(*(reader.close() for reader in readers))
    return took, cost


def measure(table: Table, what: str, *options: str) -> None:
    """Run an engine, and print what reading it takes."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as scratch:
        address = Path(scratch, "engine")
        command = [sys.executable, "-m", "gpufleet.cli.main", "simulate", "dcgm", f"unix://{address}", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as engine:
            try:
                assert engine.stdout is not None
                engine.stdout.readline()
                for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC, Lane.EVENT):
                    took, cost, readings = asyncio.run(steady(address, lane))
                    table.row(what, lane, str(readings), f"{took * 1e3:.2f}", f"{cost * 1e3:.2f}", f"{1 / cost:,.0f}")
                if "--gpus=1" in options:
                    took, cost = asyncio.run(guests(address))
                    each = f"{cost * 1e3 / GUESTS:.2f}"
                    table.row(f"{GUESTS} of them at once", Lane.FAST, "", f"{took * 1e3:.0f}", each, "")
            finally:
                engine.terminate()


def main() -> int:
    """Run and print."""
    table = Table("DCGM", "engine", "lane", "readings", "ms a pass", "own CPU ms a pass", "passes/s of a core")
    measure(table, "1 GPU", "--gpus=1")
    measure(table, "8 GPUs", "--gpus=8")
    measure(table, "8 GPUs, one cut in three", "--gpus=8", "--mig")
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
