"""Reading of DCGM host engines: passes per second, and processor time per pass.

Method: the simulated engine runs in a separate process on a Unix socket. This process reads it like an agent, one lane
repeatedly over one persistent connection. A fast pass has two requests: live device fields and sampled profiling. Each
response has a record with status and time for every field of every GPU. Processor time is that of this process only, so
"passes/s per core" is the rate of one core with engines that respond immediately. Then 64 readers with one connection
each make one fast pass at once, like the guests of a host in steady state.
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
    """Read a lane for a while. Return wall time, processor time and readings per pass."""
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
    """Read all guests of a host once over open connections. Return wall time and processor time."""
    readers = [DcgmReader(UnixDialer(address), SystemClock(), side=Side.GUEST) for _ in range(GUESTS)]
    for reader in readers:
        await reader.read(Lane.FAST)
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(reader.read(Lane.FAST) for reader in readers))
    took, cost = time.perf_counter() - began, time.process_time() - used
    await asyncio.gather(*(reader.close() for reader in readers))
    return took, cost


def measure(table: Table, what: str, *options: str) -> None:
    """Run an engine, and add the cost of reading it to the table."""
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
                    table.row(f"{GUESTS} engines at once", Lane.FAST, "", f"{took * 1e3:.0f}", each, "")
            finally:
                engine.terminate()


def main() -> int:
    """Run and print."""
    table = Table("DCGM", "engine", "lane", "readings", "ms/pass", "own CPU ms/pass", "passes/s per core")
    measure(table, "1 GPU", "--gpus=1")
    measure(table, "8 GPUs", "--gpus=8")
    measure(table, "8 GPUs, one with three MIG devices", "--gpus=8", "--mig")
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
