"""Exposition and parsing of metrics, compared with common libraries in the same run.

Method:

- `/metrics`: an agent with its NVML child over a fake driver with 8 GPUs x 16 vGPUs, one round per second, requested
  400 times about 15 ms apart. Wall time is measured by a client in a separate process over a persistent connection.
  Loop CPU is the processor time of the event loop's thread between request and response, with a client on the same
  loop. It contains the client, the agent, and other work of the agent in between. `prometheus_client` serves the same
  series as finished samples with its ASGI application on the same server, requested 60 times. "Every third round" has
  20 requests several rounds apart, as Prometheus would send them. Its slowest request stands for the 99th percentile.
- Parsing: processor time, as in `bench_text`, but the page changes with every scrape. With "own instants" each line has
  a different timestamp.
- OTLP: 5,440 points with 5 attributes each, from records to protobuf. The SDK's encoder gets SDK records of the same
  points.

The load average is printed at the end: wall time is meaningful only on a quiet machine. On a busy machine, `chrt -f 20
python -m benchmarks exposition` gives the agent and its client priority.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec
import uvloop
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics as sdk_encode
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.bench_codec import best_seconds
from benchmarks.bench_page import PageCollector
from benchmarks.bench_text import DEVICES, METRICS, make_page, otlp_resources
from benchmarks.table import Table
from gpufleet.cli.daemon import SWITCH_INTERVAL_SECONDS, tune_garbage_collector
from gpufleet.codecs.otlp.encode import encode_metrics
from gpufleet.codecs.otlp.records import Kind, ResourceMetrics
from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.config.agent import AgentConfig
from gpufleet.web.server import serve
from gpufleet.wiring.agent import running_agent
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.parts import share_as_vgpus
from tests.fakes.nvml.scenario import Scenario

GPUS, VGPUS, REQUESTS, PEER_REQUESTS, PAUSE, WARM_UP = 8, 16, 400, 60, 0.01, 8.0
RARE_REQUESTS, RARE_PAUSE = 20, 2.5
CONFIG = b'node = "bench"\nlisten = "127.0.0.1:0"\n[lanes]\nfast = 1.0\nslow = 6.0\nstatic = 60.0\n'
GOAL_MS, GOAL_PARSED = 3.0, 500_000
FORMS = {
    "text": {"Accept-Encoding": "identity"},
    "text, gzip": {"Accept-Encoding": "gzip"},
    "OpenMetrics, gzip": {"Accept-Encoding": "gzip", "Accept": "application/openmetrics-text"},
}


class Spans(NamedTuple):
    """Sorted milliseconds of one form of a page."""

    size: int
    wall: list[float]
    loop: list[float]

    def cells(self) -> tuple[str, ...]:
        """Return median and 99th percentile of wall time and loop CPU."""
        return tuple(
            f"{found[min(len(found) * share // 100, len(found) - 1)]:.2f} ms"
            for found in (self.wall, self.loop)
            for share in (50, 99)
        )


async def loop_milliseconds(url: str, headers: dict[str, str], requests: int) -> list[float]:
    """Request the page from this loop. Return this thread's processor time per request in milliseconds."""
    used = []
    async with aiohttp.ClientSession(auto_decompress=False, headers=headers) as session:
        for number in range(requests):
            await asyncio.sleep(PAUSE * (1 + number % 7 / 7))
            began = time.thread_time()
            async with session.get(url) as answer:
                await answer.read()
            used.append((time.thread_time() - began) * 1e3)
    return sorted(used)


async def wall_milliseconds(
    url: str, headers: dict[str, str], requests: int, pause: float = PAUSE
) -> tuple[int, list[float]]:
    """Request the page from another process. Return the size of a response, and the latencies in milliseconds."""
    arguments = [text for pair in headers.items() for text in pair]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.scraper", url, str(requests), str(pause), *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    answer, _ = await process.communicate()
    size, lasted = json.loads(answer)
    return size, sorted(lasted)


async def spans_of(url: str, headers: dict[str, str], requests: int) -> Spans:
    size, wall = await wall_milliseconds(url, headers, requests)
    return Spans(size, wall, await loop_milliseconds(url, headers, requests))


@contextlib.asynccontextmanager
async def serving(page: bytes) -> AsyncIterator[str]:
    """Serve the series of a page with `prometheus_client`. Yield the address."""
    registry = CollectorRegistry()
    registry.register(PageCollector(page))
    async with serve(make_asgi_app(registry), "127.0.0.1", 0, connections=8, stop_seconds=1) as port:
        yield f"http://127.0.0.1:{port}/metrics"


async def pages(state: str) -> Table:
    """Run an agent, and measure its page and the page of `prometheus_client`."""
    config = msgspec.structs.replace(msgspec.toml.decode(CONFIG, type=AgentConfig), state=state)
    columns = ("form", "server", "bytes", "wall p50", "wall p99", "loop CPU p50", "p99", "goal, wall p99")
    table = Table(f"/metrics of {GPUS} GPUs x {VGPUS} vGPUs, during rounds", *columns)
    async with running_agent(config) as agent:
        tune_garbage_collector()  # like the command
        await asyncio.sleep(WARM_UP)
        ours = f"{agent.url}/metrics"
        async with aiohttp.ClientSession(headers=FORMS["text"]) as session, session.get(ours) as answer:
            page = await answer.read()
        found = {form: await spans_of(ours, headers, REQUESTS) for form, headers in FORMS.items()}
        size, rare = await wall_milliseconds(ours, FORMS["text, gzip"], RARE_REQUESTS, RARE_PAUSE)
        async with serving(page) as theirs:
            peer = {form: await spans_of(theirs, headers, PEER_REQUESTS) for form, headers in FORMS.items()}
    for form in FORMS:
        reached = "reached" if found[form].wall[REQUESTS * 99 // 100] <= GOAL_MS else "missed"
        table.row(form, "gpufleet", str(found[form].size), *found[form].cells(), f"{GOAL_MS:g} ms: {reached}")
        table.row(form, "prometheus_client", str(peer[form].size), *peer[form].cells(), "")
    latencies = f"{rare[RARE_REQUESTS // 2]:.2f} ms", f"{rare[-1]:.2f} ms"
    table.row("text, gzip, every third round", "gpufleet", str(size), *latencies, "-", "-", "")
    return table


def parsing() -> Table:
    """Parse pages of a source that has been parsed before."""
    table = Table("Samples parsed per second, steady state", "page", "gpufleet", "prometheus_client", "times", "goal")
    for name, instants in (("values", 0), ("one instant per scrape", 1), ("own instants", DEVICES * METRICS)):
        scrapes = [make_page(instants=instants, scrape=scrape) for scrape in range(4)]
        text, parser, turn = scrapes[0].decode(), TextParser(), iter(range(1 << 30))
        assert not any(parser.parse(page).problems for page in scrapes)
        ours = best_seconds(lambda scrapes=scrapes, parser=parser, turn=turn: parser.parse(scrapes[next(turn) % 4]))  # type: ignore[misc]
        theirs = best_seconds(lambda text=text: list(text_string_to_metric_families(text)))  # type: ignore[misc]
        rate = METRICS * DEVICES / ours
        goal = f"{GOAL_PARSED:,}: {'reached' if rate >= GOAL_PARSED else 'missed'}"
        table.row(name, f"{rate:,.0f}", f"{METRICS * DEVICES / theirs:,.0f}", f"{theirs / ours:.1f}", goal)
    return table


def to_sdk(resources: list[ResourceMetrics]) -> sdk.MetricsData:
    """Convert the points to records of the SDK."""
    scope = InstrumentationScope("gpufleet")

    def points(metric: str, kind: Kind) -> sdk.Gauge | sdk.Sum:
        (series,) = [one for one in resources[0].metrics if one.name == metric]
        found = [sdk.NumberDataPoint(one.attributes, one.start, one.at, one.value or 0) for one in series.points]
        if kind is Kind.GAUGE:
            return sdk.Gauge(found)
        return sdk.Sum(found, sdk.AggregationTemporality.CUMULATIVE, is_monotonic=True)

    metrics = [
        sdk.Metric(one.name, one.description, one.unit, points(one.name, one.kind)) for one in resources[0].metrics
    ]
    of_scope = sdk.ScopeMetrics(scope, metrics, "")
    return sdk.MetricsData([sdk.ResourceMetrics(Resource(dict(resources[0].attributes)), [of_scope], "")])


def encoding() -> Table:
    """Encode the same points with gpufleet and with the SDK."""
    resources = otlp_resources()
    theirs = to_sdk(resources)
    count = sum(len(metric.points) for metric in resources[0].metrics)
    table = Table("OTLP points encoded per second", "encoder", "points/s", "bytes/point")
    encoders: dict[str, Callable[[], bytes]] = {
        "gpufleet": lambda: encode_metrics(resources),
        "OpenTelemetry SDK": lambda: sdk_encode(theirs).SerializeToString(),
    }
    for name, encode in encoders.items():
        table.row(name, f"{count / best_seconds(encode):,.0f}", f"{len(encode()) / count:.1f}")
    return table


def main() -> int:
    """Run and print, in a process that is restarted with the fake driver."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        if "FAKE_NVML" not in os.environ:
            scenario = Scenario.healthy(GPUS)
            for gpu in range(GPUS):
                share_as_vgpus(scenario, gpu, VGPUS)
            environment = FakeNvml(Path(folder), scenario).environment
            return os.spawnve(os.P_WAIT, sys.executable, [sys.executable, "-m", __spec__.name], environment)
        loads = [f"{os.getloadavg()[0]:.1f} before"]
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(pages(folder)).print()
        loads.append(f"{os.getloadavg()[0]:.1f} after the pages")
    parsing().print()
    encoding().print()
    print(f"load average {', '.join(loads)}, {os.getloadavg()[0]:.1f} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
