"""Recording rules and alerts in a Prometheus: time of an evaluation, and recorded series.

Method: the page of an agent over a fake driver with 8 GPUs, repeated for `NODES` nodes with names and UUIDs of their
own, and a pod for each GPU. A Prometheus scrapes all of it as one page, and evaluates the rules of `gpufleet rules
print` for `SECONDS`. Times are those of the last evaluation, from `/api/v1/rules`. Needs the Prometheus that `make
fetch` gets.
"""

import asyncio
import contextlib
import http.server
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.table import Table
from gpufleet.config.agent import AgentConfig
from gpufleet.exporters.holders import HOLDER_INFO
from gpufleet.rules.render import render_rules
from gpufleet.rules.rule import RuleInput
from gpufleet.rules.selection import rule_groups
from gpufleet.wiring.agent import running_agent
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support import peers, tsdb
from tests.support.processes import get_text

GPUS, NODES, SECONDS, SCRAPE_SECONDS, WARM_UP = 8, 125, 150, 15, 8.0
CONFIG = b'node = "bench"\nlisten = "127.0.0.1:0"\n[lanes]\nfast = 1.0\nslow = 6.0\nstatic = 60.0\n'
_UUID = re.compile(r'uuid="GPU-([0-9a-f]{8})')


async def node_page(state: str) -> str:
    """Return the series of one node, without comments."""
    config = msgspec.structs.replace(msgspec.toml.decode(CONFIG, type=AgentConfig), state=state)
    async with running_agent(config) as agent:
        await asyncio.sleep(WARM_UP)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{agent.url}/metrics", headers={"Accept-Encoding": "identity"}) as answer,
        ):
            lines = (await answer.text()).splitlines()
    return "".join(f"{line}\n" for line in lines if not line.startswith("#"))


def fleet_page(node: str) -> str:
    """Return the series of all nodes, with a pod for each GPU."""
    found = []
    for number in range(NODES):
        page = node.replace('node="bench"', f'node="node-{number}"')
        page = _UUID.sub(rf'uuid="GPU-{number:04x}\1', page)
        found.append(page)
        devices = sorted(
            {line.partition("{")[2].partition("}")[0] for line in page.splitlines() if "_power_watts{" in line}
        )
        found += [
            f'{HOLDER_INFO}{{{labels},holder_kind="pod",namespace="ns-{number % 20}",pod="pod-{number}-{place}",'
            f'container="main",share="exclusive"}} 1\n'
            for place, labels in enumerate(devices)
        ]
    return "".join(found)


@contextlib.contextmanager
def serving(page: bytes) -> Iterator[str]:
    """Serve a page. Yield its host and port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


def main() -> int:
    """Run and print, in a process that is restarted with the fake driver."""
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        if "FAKE_NVML" not in os.environ:
            environment = FakeNvml(Path(folder), Scenario.healthy(GPUS)).environment
            return os.spawnve(os.P_WAIT, sys.executable, [sys.executable, "-m", __spec__.name], environment)
        program = peers.find("prometheus")
        if program is None:
            print("prometheus is not installed: run `make fetch`", file=sys.stderr)
            return 2
        page = fleet_page(asyncio.run(node_page(folder)))
        rules = render_rules(rule_groups([RuleInput.NATIVE]))
        with (
            serving(page.encode()) as target,
            tsdb.prometheus(program, Path(folder) / "tsdb", target, rules, SCRAPE_SECONDS) as store,
        ):
            time.sleep(SECONDS)
            groups = json.loads(get_text(f"{store.url}/api/v1/rules"))["data"]["groups"]
            title = f"{GPUS * NODES} GPUs on {NODES} nodes, {page.count(chr(10)):,} input series, one pod for each GPU"
            table = Table(title, "group", "evaluation", "recorded series")
            for one in groups:
                records = [rule["name"] for rule in one["rules"] if rule["type"] == "recording"]
                series = sum(
                    float(row["value"][1])
                    for name in set(records)
                    for row in store.query(f'count({{__name__="{name}"}})')
                )
                table.row(one["name"], f"{one['evaluationTime']:.2f} s", f"{series:,.0f}")
    table.print()
    print(f"load average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
