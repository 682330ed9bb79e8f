"""Cost of an agent on a node with 8 fake H200s, with all readers and real processes.

Method: a real `gpufleet agent` over the fake driver library, without a hub. The fast lane runs every second, ten times
its default rate, so that many rounds fit into the run. Processor time is that of agent and NVML child over the run,
divided by the number of fast rounds. It contains the slow and static lanes, at a sixth and a sixtieth of the rounds,
and assembly and rendering. It is measured without requests, then with a gzip request for `/metrics` after each round.
The fake driver responds immediately and polls for events 50 times a second, which is part of the child's time. The cost
of a real driver is added to these figures. Then `/metrics` is requested 1,000 times over one persistent connection
during rounds, plain and with gzip.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from benchmarks.processes import children, cpu_seconds, proportional_mib, resident_mib
from benchmarks.table import Table
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.parts import cut_into_mig, share_as_vgpus
from tests.fakes.nvml.scenario import Scenario
from tests.support.processes import Gpufleet, free_port, get_text

GPUS, VGPUS, SECONDS, REQUESTS = 8, 16, 24, 1000
CONFIG = 'node = "bench"\n[lanes]\nfast = 1.0\nslow = 6.0\nstatic = 60.0\n'


async def request_page(
    url: str, encoding: str, *, count: int = REQUESTS, pause: float = 0.002
) -> tuple[list[float], int]:
    """Request the page repeatedly. Return the sorted latencies in seconds, and its size."""
    spans, size = [], 0
    async with aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": encoding}) as session:
        for _ in range(count):
            began = time.perf_counter()
            async with session.get(url) as answer:
                size = len(await answer.read())
            spans.append(time.perf_counter() - began)
            await asyncio.sleep(pause)
    return sorted(spans), size


def used_while(processes: list[int], work: Callable[[], object]) -> list[float]:
    """Return the processor seconds of each process during a function call."""
    before = [cpu_seconds(pid) for pid in processes]
    work()
    return [cpu_seconds(pid) - start for pid, start in zip(processes, before, strict=True)]


def measure(title: str, scenario: Scenario) -> None:
    """Run an agent over a scenario, and print its cost."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as scratch:
        folder = Path(scratch)
        driver = FakeNvml(folder, scenario)
        (folder / "agent.toml").write_text(CONFIG)
        port = free_port()
        arguments = ["agent", "--config", str(folder / "agent.toml"), "--listen", f"127.0.0.1:{port}"]
        arguments += ["--state", str(folder / "state")]
        with Gpufleet(arguments, folder / "log", driver.environment) as agent:
            url = f"http://127.0.0.1:{port}/metrics"
            agent.wait_for(f"http://127.0.0.1:{port}/readyz")
            processes = [agent.process.pid, *children(agent.process.pid)]
            alone = used_while(processes, lambda: time.sleep(SECONDS))
            scraped = used_while(processes, lambda: asyncio.run(request_page(url, "gzip", count=SECONDS, pause=1.0)))
            spans, size = asyncio.run(request_page(url, "identity"))
            packed_spans, packed = asyncio.run(request_page(url, "gzip"))
            resident = [resident_mib(pid) for pid in processes]
            proportional = [proportional_mib(pid) for pid in processes]
            series = sum(not line.startswith("#") for line in get_text(url).splitlines())
            agent.stop()
    table = Table(f"agent: {title}, all readers", "what", "figure")
    table.row("processor time per round, agent", f"{alone[0] / SECONDS * 1e3:.1f} ms")
    table.row("processor time per round, agent, with one request", f"{scraped[0] / SECONDS * 1e3:.1f} ms")
    table.row("processor time per round, NVML child", f"{sum(alone[1:]) / SECONDS * 1e3:.1f} ms")
    table.row("resident, agent + child", f"{resident[0]:.0f} + {sum(resident[1:]):.0f} MiB")
    table.row("proportional, agent + child", f"{proportional[0]:.0f} + {sum(proportional[1:]):.0f} MiB")
    table.row("/metrics", f"{series} series, {size} bytes, {packed} with gzip")
    for label, found in (("/metrics", spans), ("/metrics, gzip,", packed_spans)):
        table.row(f"{label} p50", f"{found[len(found) // 2] * 1e3:.2f} ms")
        table.row(f"{label} p99", f"{found[len(found) * 99 // 100] * 1e3:.2f} ms")
    table.print()


def main() -> int:
    """Run and print."""
    measure(f"{GPUS} fake GPUs", Scenario.healthy(GPUS))
    shared = Scenario.healthy(GPUS)
    for gpu in range(GPUS):
        share_as_vgpus(shared, gpu, VGPUS)
    measure(f"{GPUS} fake GPUs x {VGPUS} vGPUs", shared)
    cut = Scenario.healthy(GPUS)
    for gpu in range(GPUS):
        cut_into_mig(cut, gpu)
    measure(f"{GPUS} fake GPUs x 7 MIG devices", cut)
    return 0


if __name__ == "__main__":
    sys.exit(main())
