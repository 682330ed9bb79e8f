"""Cost of an agent on a node with 8 fake H200s, with all readers and real processes.

Method: a real `gpufleet agent` over the fake driver library, fast lane every second (ten times its default) so that
many rounds fit into the run, no hub. Processor time is what agent and NVML child used over the run, divided by fast
rounds; the slow and static lanes at a sixth and a sixtieth of the rounds are in it, as are assembly and rendering:
first without requests, then with a request for `/metrics`, packed, after each round. The fake driver
answers at once and looks for events 50 times a second, which is in the child's time: this is gpufleet's own cost, the
real driver's comes on top. Then `/metrics` is requested 1,000 times over one kept connection while rounds go on, plain
and packed.
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
    """Request the page repeatedly; return the latencies in seconds, sorted, and its size."""
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
    """Return the processor seconds that each process used during some work."""
    before = [cpu_seconds(pid) for pid in processes]
    work()
    return [cpu_seconds(pid) - start for pid, start in zip(processes, before, strict=True)]


def measure(title: str, scenario: Scenario) -> None:
    """Run an agent over a scenario, and print what it took."""
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
    table.row("processor time a round, agent", f"{alone[0] / SECONDS * 1e3:.1f} ms")
    table.row("the same with one request per round", f"{scraped[0] / SECONDS * 1e3:.1f} ms")
    table.row("processor time a round, NVML child", f"{sum(alone[1:]) / SECONDS * 1e3:.1f} ms")
    table.row("resident, agent + child", f"{resident[0]:.0f} + {sum(resident[1:]):.0f} MiB")
    table.row("proportional, agent + child", f"{proportional[0]:.0f} + {sum(proportional[1:]):.0f} MiB")
    table.row("/metrics", f"{series} series, {size} bytes, {packed} packed")
    for label, found in (("/metrics", spans), ("/metrics, packed,", packed_spans)):
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
