"""Cost of a pass of the NVML reader by lane, for 8 fake H200s with real processes.

Method: a reader with its child makes passes 0.12 s apart, the minimum interval of GPM. It also makes fast passes back
to back, without GPM data, because caches are cold after a pause. Reported is the processor time of this process per
pass, and that of all threads of the child, less the child's idle use: the fake driver polls for events 50 times a
second, where a real driver sleeps. The fake driver's share is reported separately. Its calls per pass are counted in
its log, and one call is timed against an empty C function through the same binding (ctypes). The fake driver does not
check for another scenario at each call as it does in tests: these system calls would evict the caches. The time of a
real driver replaces this share.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Table
from benchmarks.yardstick import yardstick_ms
from gpufleet.cli.daemon import tune_garbage_collector
from gpufleet.model.catalogue import Lane
from gpufleet.readers.nvml.reader import NvmlReader
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario

GPUS, PASSES, PAUSE = 8, 40, 0.12
LANES = (Lane.FAST, Lane.SLOW, Lane.STATIC)

PROBE = """
import ctypes, time, pynvml
pynvml.nvmlInitWithFlags(0)
handle, value = pynvml.nvmlDeviceGetHandleByIndex(0), ctypes.c_uint()
def seconds(call, count=20000):
    began = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - began) / count
power, empty = pynvml.nvmlLib.nvmlDeviceGetPowerUsage, ctypes.CDLL(None).labs
best = min(seconds(lambda: power(handle, ctypes.byref(value))) for _ in range(5))
print(best - min(seconds(lambda: empty(handle, ctypes.byref(value))) for _ in range(5)))
"""
"""Prints the seconds of one call of the fake driver, less the cost of the binding."""


@contextlib.contextmanager
def real_processes(scenario: Scenario) -> Iterator[None]:
    """Start a process for each process of the scenario, and put its real process id into the scenario."""
    with contextlib.ExitStack() as ends:
        numbers: dict[int, int] = {0: 0}
        for device in scenario.devices:
            for name in [name for name in device.rows if "Process" in name]:
                for number in {row[0] for row in device.rows[name]} - numbers.keys():
                    process = subprocess.Popen(["sleep", "infinity"])
                    ends.callback(process.wait)
                    ends.callback(process.kill)
                    numbers[number] = process.pid
                device.rows[name] = [(numbers[row[0]], *row[1:]) for row in device.rows[name]]
        yield


def thread_seconds(pid: int) -> float:
    """Return the processor time of a process in nanosecond resolution (/proc/PID/task/TID/schedstat)."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


async def passes(reader: NvmlReader, lane: Lane, count: int, pause: float) -> tuple[float, float]:
    """Make passes with pauses. Return the processor seconds per pass in this process and in the child."""
    own, child = 0.0, reader.child_pid
    assert child is not None
    before, began_at = thread_seconds(child), time.monotonic()
    for _ in range(count):
        await asyncio.sleep(pause)
        began = time.process_time()
        await reader.read(lane)
        own += time.process_time() - began
    used, lasted = thread_seconds(child) - before, time.monotonic() - began_at
    before, began_at = thread_seconds(child), time.monotonic()
    await asyncio.sleep(lasted / 2)
    idle = (thread_seconds(child) - before) / (time.monotonic() - began_at)
    return own / count, (used - idle * lasted) / count


async def calls(folder: Path, lane: Lane) -> int:
    """Return the number of driver calls of a pass."""
    log = folder / "calls.txt"
    reader = NvmlReader(environment=FakeNvml(folder, Scenario.healthy(GPUS), log=True).environment)
    try:
        for first in (Lane.STATIC, lane, lane):
            await reader.read(first)
            await asyncio.sleep(PAUSE)
        before = log.read_text().splitlines()
        await reader.read(lane)
        lines = log.read_text().splitlines()[len(before) :]
        return sum("nvmlEventSetWait" not in line for line in lines)
    finally:
        await reader.close()


async def measure(folder: Path, scenario: Scenario) -> Table:
    """Measure all lanes."""
    environment = FakeNvml(folder, scenario, still=True).environment
    probe = subprocess.run(  # noqa: ASYNC221 - nothing else runs
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    call = float(probe.stdout)
    table = Table(
        f"pass over {GPUS} fake GPUs", "lane", "agent", "child", "calls", "fake driver's share", "without it, together"
    )
    counts = {lane: await calls(folder, lane) for lane in LANES}
    reader = NvmlReader(environment=environment)
    try:
        for lane in (Lane.STATIC, Lane.SLOW, Lane.FAST):
            await reader.read(lane)
        tune_garbage_collector()  # like an agent
        for lane, pause in (*[(lane, PAUSE) for lane in LANES], (Lane.FAST, 0.0)):
            own, child = await passes(reader, lane, PASSES if pause else 10 * PASSES, pause)
            fake = counts[lane] * call
            table.row(
                lane.value if pause else f"{lane.value}, back to back",
                f"{own * 1e3:.2f} ms",
                f"{child * 1e3:.2f} ms",
                str(counts[lane]),
                f"{fake * 1e3:.2f} ms",
                f"{(own + child - fake) * 1e3:.2f} ms",
            )
    finally:
        await reader.close()
    return table


def main() -> int:
    """Run and print."""
    scenario = Scenario.healthy(GPUS)
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder, real_processes(scenario):
        asyncio.run(measure(Path(folder), scenario)).print()
    print(f"load average {os.getloadavg()[0]:.1f}, yardstick {yardstick_ms():.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
