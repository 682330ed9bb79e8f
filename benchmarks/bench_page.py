"""Cost of a metrics page with 8 GPUs x 16 vGPUs, for gpufleet and `prometheus_client` in the same run.

Method: passes of the NVML reader over the fake driver fill an agent's state. After each fast pass the document and the
page are updated, as in an agent that is scraped once per round. `prometheus_client` gets the same series as finished
samples, so that only its rendering counts. Processor time of one thread, median of the rounds.
"""

import asyncio
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from benchmarks.table import Table
from gpufleet.agent.collect.assemble import Assembler
from gpufleet.agent.collect.state import AgentState, Outcome
from gpufleet.agent.publish.pages import GZIP_LEVEL
from gpufleet.delivery.export import AgentStats
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.readers.nvml.reader import NvmlReader
from gpufleet.runtime import run_to_end
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.parts import share_as_vgpus
from tests.fakes.nvml.scenario import Scenario

T = TypeVar("T")

GPUS, VGPUS, ROUNDS, PAUSE = 8, 16, 30, 0.12
LANES = {Lane.STATIC: 600.0, Lane.SLOW: 60.0, Lane.FAST: 10.0}
STATS = AgentStats(started_at=0, lanes={})


class PageCollector(Collector):
    """Collector of the series of another page."""

    def __init__(self, page: bytes) -> None:
        self._metrics = list(text_string_to_metric_families(page.decode()))

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class Node:
    """Reader, and the agent state filled by its passes."""

    def __init__(self, reader: NvmlReader) -> None:
        self._reader = reader
        self.state = AgentState(Machine(name="bench"), [self._status(lane) for lane in LANES])

    def _status(self, lane: Lane) -> ReaderStatus:
        return ReaderStatus(reader="nvml", lane=lane, state=ReaderState.OK, interval_seconds=LANES[lane])

    async def read(self, lane: Lane) -> None:
        done = await self._reader.read(lane)
        ended, at = time.monotonic(), time.time_ns()
        status = self._status(lane)
        self.state.apply(Outcome(status=status, round=done, failure=None, ended_at=at, ended=ended))


class Spans:
    """Durations of steps, in milliseconds of processor time."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}

    def time(self, step: str, work: Callable[[], T]) -> T:
        began = time.process_time()
        done = work()
        self.of.setdefault(step, []).append((time.process_time() - began) * 1e3)
        return done


def page_of(pages: AgentPages, snapshot: Snapshot) -> bytes:
    run_to_end(pages.update(snapshot, STATS))
    return pages.page(openmetrics=False)


async def rounds(node: Node, spans: Spans) -> bytes:
    """Run the rounds. Return the last page."""
    for lane in LANES:
        await node.read(lane)
    assembler, pages, page = Assembler(), AgentPages(), b""

    def document() -> Snapshot:
        return run_to_end(assembler.steps(node.state, now=time.monotonic(), now_ns=time.time_ns(), capabilities={}))

    page = page_of(pages, document())
    registry = CollectorRegistry()
    registry.register(PageCollector(page))
    for _ in range(ROUNDS):
        await asyncio.sleep(PAUSE)
        await node.read(Lane.FAST)
        kept = spans.time("gpufleet, document per round", document)
        page = spans.time("gpufleet, page per round", partial(page_of, pages, kept))
        spans.time("gpufleet, page in OpenMetrics in addition", partial(pages.page, openmetrics=True))
        spans.time("gpufleet, first page", partial(page_of, AgentPages(), kept))
        spans.time("gpufleet, gzip", partial(zlib.compress, page, GZIP_LEVEL))
        spans.time("prometheus_client, page", partial(generate_latest, registry))
        spans.time("prometheus_client, page in OpenMetrics", partial(generate_openmetrics, registry))
    return page


async def measure(environment: dict[str, str], spans: Spans) -> bytes:
    reader = NvmlReader(environment=environment)
    try:
        return await rounds(Node(reader), spans)
    finally:
        await reader.close()


def main() -> int:
    """Run and print."""
    scenario, spans = Scenario.healthy(GPUS), Spans()
    for gpu in range(GPUS):
        share_as_vgpus(scenario, gpu, VGPUS)
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        page = asyncio.run(measure(FakeNvml(Path(folder), scenario).environment, spans))
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    packed = len(zlib.compress(page, GZIP_LEVEL))
    print(f"{series} series, {len(page)} bytes, {packed} packed")
    table = Table(f"metrics of {GPUS} GPUs x {VGPUS} vGPUs", "what", "ms")
    for step, found in spans.of.items():
        table.row(step, f"{statistics.median(found):.2f}")
    table.print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
