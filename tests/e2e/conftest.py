"""Site of an agent, a hub and a fake driver on loopback, with real processes."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.hub_state import prepare_state
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import PATIENCE, wait_until

AGENT_CONFIG = """
node = "node-1"

[lanes]
fast = 1.0
slow = 2.0
static = 5.0

[readers.nvml]
timeout_seconds = 8.0
"""


class Site:
    """Ports, folders and processes of one agent and one hub.

    Attributes:
        agent_environment: variables of the agent in addition to those of the driver.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.hub_port, self.agent_port = free_port(), free_port()
        self.hub_url, self.agent_url = f"http://127.0.0.1:{self.hub_port}", f"http://127.0.0.1:{self.agent_port}"
        self.driver = FakeNvml(folder, Scenario.healthy(8))
        self.agent_environment: dict[str, str] = {}
        self._running: list[Gpufleet] = []
        (folder / "agent.toml").write_text(AGENT_CONFIG)

    def start_hub(self, *more: str) -> Gpufleet:
        """Start the hub, and wait until it accepts batches."""
        if not (self.state / "hub").exists():
            prepare_state(self.state)
        hub = self._start("hub", "--listen", f"127.0.0.1:{self.hub_port}", "--state", str(self.state), *more)
        hub.wait_for(f"{self.hub_url}/readyz", 100)
        return hub

    def start_agent(self) -> Gpufleet:
        """Start the agent over the fake driver and wait until it has completed a round."""
        agent = self._start(
            "agent",
            "--config",
            str(self.folder / "agent.toml"),
            "--hub",
            self.hub_url,
            "--listen",
            f"127.0.0.1:{self.agent_port}",
            "--state",
            str(self.state),
        )
        agent.wait_for(f"{self.agent_url}/readyz", 100)
        return agent

    def hub(self, path: str) -> Any:
        """GET a document of the hub."""
        return get_json(self.hub_url + path)

    def put(self, path: str, document: object) -> Any:
        """PUT a document to the hub."""
        return self._send("PUT", path, document)

    def sql(self, statement: str) -> list[list[Any]]:
        """Return the rows of a statement on the hub's views."""
        rows: list[list[Any]] = self._send("POST", "/v1/query", {"sql": statement})["rows"]
        return rows

    def _send(self, method: str, path: str, document: object) -> Any:
        request = urllib.request.Request(
            self.hub_url + path,
            data=json.dumps(document).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20 * PATIENCE) as answer:
            return json.load(answer)

    def metrics(self) -> str:
        """GET the agent's `/metrics`."""
        return get_text(f"{self.agent_url}/metrics")

    def drained(self) -> bool:
        """Return whether every batch that the hub acknowledged is in the store."""
        page = get_text(f"{self.hub_url}/metrics")
        lines = [line for line in page.splitlines() if line.startswith("gpufleet_hub_wal_records")]
        return [float(line.split()[-1]) for line in lines] == [0.0]

    def hub_metric(self, series: str) -> float:
        """Return the sum of the hub's series with this prefix; 0 if there is none."""
        page = get_text(f"{self.hub_url}/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(series))

    def this_machine(self) -> dict[str, Any]:
        """Wait for the hub's record of the agent's machine, and return it."""
        wait_until(lambda: self.hub("/v1/nodes")["items"], what="the hub to know the node")
        machine: dict[str, Any] = self.hub("/v1/nodes")["items"][0]["machine"]
        return machine

    def rows(self, query: str) -> list[list[Any]]:
        """Query the stopped hub's store in a separate process, as only one process can own the engine."""
        script = (
            "import json, sys, clickhouse_connect\n"
            "client = clickhouse_connect.get_client(dsn=sys.argv[1])\n"
            "print(json.dumps(client.query(sys.argv[2]).result_rows, default=str))\n"
        )
        store = self.state / "hub" / "store"
        done = subprocess.run(
            [sys.executable, "-c", script, f"chdb://{store}", query],
            capture_output=True,
            text=True,
            check=True,
            timeout=60 * PATIENCE,
        )
        rows: list[list[Any]] = json.loads(done.stdout)
        return rows

    def stop(self) -> None:
        """Kill all running processes."""
        for process in self._running:
            process.kill()

    def _start(self, name: str, *arguments: str) -> Gpufleet:
        environment = self.driver.environment
        if name == "agent":
            environment |= self.agent_environment
        process = Gpufleet([name, *arguments], self.folder / f"{name}.log", environment)
        self._running.append(process)
        return process


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield a site without running processes, and kill its processes afterwards."""
    made = Site(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a site with a running hub, shared by the tests of a module."""
    made = Site(tmp_path_factory.mktemp("shared"))
    made.start_hub()
    yield made
    made.stop()
