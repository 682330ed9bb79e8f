"""How long a request for `/metrics` takes beside rounds: 8 GPUs x 16 vGPUs, agent and client in one process.

Method: an agent with its real NVML child over the fake driver, a round a second, and a client on the same event loop
that asks 400 times, 10 ms apart. Told is the processor time of that one thread between question and answer: the
client's part, the agent's, and all of the agent's other work that came between. Unlike wall time (told beside it) it
means the same on a machine that is busy with something else.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.table import Table
from gpufleet.cli.daemon import SWITCH_SECONDS, spare_collector
from gpufleet.config.agent import AgentConfig
from gpufleet.wiring.agent import running_agent
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.parts import share_as_vgpus
from tests.fakes.nvml.scenario import Scenario

GPUS, VGPUS, REQUESTS, PAUSE, WARM_UP = 8, 16, 400, 0.01, 8.0
CONFIG = b'node = "bench"\nlisten = "127.0.0.1:0"\n[lanes]\nfast = 1.0\nslow = 6.0\nstatic = 60.0\n'
FORMS = {
    "text": {"Accept-Encoding": "identity"},
    "text, packed": {"Accept-Encoding": "gzip"},
    "OpenMetrics, packed": {"Accept-Encoding": "gzip", "Accept": "application/openmetrics-text"},
}


async def ask(url: str, headers: dict[str, str]) -> tuple[int, list[float], list[float]]:
    """Return the bytes of an answer, and the sorted milliseconds of processor and of wall time."""
    used, lasted, size = [], [], 0
    async with aiohttp.ClientSession(auto_decompress=False, headers=headers) as session:
        for _ in range(REQUESTS):
            began, began_at = time.thread_time(), time.perf_counter()
            async with session.get(url) as answer:
                size = len(await answer.read())
            used.append((time.thread_time() - began) * 1e3)
            lasted.append((time.perf_counter() - began_at) * 1e3)
            await asyncio.sleep(PAUSE)
    return size, sorted(used), sorted(lasted)


async def measure(state: str) -> Table:
    """Run an agent, and ask it."""
    config = msgspec.structs.replace(msgspec.toml.decode(CONFIG, type=AgentConfig), state=state)
    table = Table(f"/metrics of {GPUS} GPUs x {VGPUS} vGPUs", "form", "bytes", "p50", "p99", "wall p50", "wall p99")
    async with running_agent(config) as agent:
        spare_collector()  # as the command does
        await asyncio.sleep(WARM_UP)
        for form, headers in FORMS.items():
            size, *spans = await ask(f"{agent.url}/metrics", headers)
            told = [f"{found[REQUESTS * share // 100]:.2f} ms" for found in spans for share in (50, 99)]
            table.row(form, str(size), *told)
    return table


def main() -> int:
    """Run and print; in a process that was started with the fake driver."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        if "FAKE_NVML" not in os.environ:
            scenario = Scenario.healthy(GPUS)
            for gpu in range(GPUS):
                share_as_vgpus(scenario, gpu, VGPUS)
            environment = FakeNvml(Path(folder), scenario).environment
            command = [sys.executable, "-m", "benchmarks.bench_scrape"]
            return os.spawnve(os.P_WAIT, sys.executable, command, environment)
        import uvloop

        sys.setswitchinterval(SWITCH_SECONDS)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(measure(folder)).print()
    print(f"load average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
