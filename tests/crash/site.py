"""Small fleet on loopback: two agents and light senders, a relay, a hub with the embedded store.

    agent-a, agent-b ──agents──> relay ──upstream──> hub ──> store
    light senders    ──senders──>  │                  ↑
    light senders    ──direct─────────────────────────┘

Every arrow is a `proxy.Link`. Each data folder is on a separate disk.
"""

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.crash.daemon import Daemon
from tests.crash.disk import MIB, Disk, Limited, Tmpfs, may_mount
from tests.crash.proxy import Network
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.processes import answers, free_port, get_json, get_text
from tests.support.store_folders import copy_empty_store

AGENTS = {"agent-a": 8, "agent-b": 4}
SPOOL_SECONDS = {"agent-a": 604_800, "agent-b": 60}
"""Maximum age of spooled batches by agent. `AGENTS` is the number of GPUs by agent.

Each agent has its own cluster: two agents on one host would be one machine.
"""

AGENT = """
node = "{name}"
cluster = "{name}"
listen = "127.0.0.1:{port}"
state = "{state}"

[lanes]
fast = 1.0
slow = 2.0
static = 10.0

[hub]
url = "http://127.0.0.1:{hub}"
heartbeat_seconds = 2.0
timeout_seconds = 3.0

[spool]
max_age_seconds = {age}
backfill_per_second = 100.0
"""

HUB = """
listen = "127.0.0.1:{port}"
state = "{state}"
clusters = ["local", {clusters}]

[ingest]
max_body_bytes = 1048576
"""

_QUERY = """
import json, sys, clickhouse_connect
client = clickhouse_connect.get_client(dsn=sys.argv[1])
for statement in sys.argv[2:]:
    if statement.startswith("SELECT"):
        print(json.dumps([list(column) for column in client.query(statement).result_columns]))
    else:
        client.command(statement)
"""


class Site:
    """Daemons, links and disks of one run."""

    def __init__(self, folder: Path) -> None:
        """Create the links and describe the daemons. No daemon is started."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.is_mounted = may_mount()
        self.disks: dict[str, Disk] = {
            name: self._disk(name, size)
            for name, size in (*((agent, 64) for agent in AGENTS), ("relay", 256), ("hub", 256), ("store", 1024))
        }
        self._ports = {name: free_port() for name in (*AGENTS, "relay", "hub")}
        self.network = Network()
        self.links = {
            "agents": self.network.link(self._ports["relay"], record=True),
            "senders": self.network.link(self._ports["relay"]),
            "direct": self.network.link(self._ports["hub"]),
            "upstream": self.network.link(self._ports["hub"]),
        }
        self.store = self.disks["store"].folder / "store"
        self.daemons = {"hub": self._hub(), "relay": self._relay()}
        for name, gpus in AGENTS.items():
            self.daemons[name] = self._agent(name, gpus)

    def open(self) -> None:
        """Create the disks. Daemons can be started afterwards."""
        for disk in self.disks.values():
            disk.open()

    def url(self, daemon: str) -> str:
        """Return the URL of a daemon, without a link in between."""
        return f"http://127.0.0.1:{self._ports[daemon]}"

    def answers(self, daemon: str) -> bool:
        """Return whether a daemon answers `/healthz`."""
        return answers(f"{self.url(daemon)}/healthz")

    def senders(self) -> dict[str, Any] | None:
        """Return the hub's `/v1/senders` by name, or None if it does not answer."""
        try:
            return {one["sender"]: one for one in get_json(f"{self.url('hub')}/v1/senders", timeout=5)}
        except OSError:
            return None

    def gauge(self, daemon: str, name: str) -> float | None:
        """Return a value of a daemon's `/metrics`, or None if it does not answer or has no such series."""
        with contextlib.suppress(OSError):
            page = get_text(f"{self.url(daemon)}/metrics", timeout=5)
            found = re.search(rf"^{name}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE)
            return float(found[1]) if found else None
        return None

    def make_store(self) -> None:
        """Create a store that never merges parts of `samples`, so that every written row can be counted."""
        limits = {
            "max_bytes_to_merge_at_max_space_in_pool": 1,
            "max_bytes_to_merge_at_min_space_in_pool": 1,
            "parts_to_delay_insert": 1_000_000,
            "parts_to_throw_insert": 1_000_000,
        }
        settings = ", ".join(f"{name} = {value}" for name, value in limits.items())
        copy_empty_store(self.store)
        run_python(_QUERY, f"chdb://{self.store}", f"ALTER TABLE samples MODIFY SETTING {settings}")

    def query(self, statement: str) -> list[list[Any]]:
        """Query the stopped hub's store in a separate process. Return the columns."""
        columns: list[list[Any]] = json.loads(run_python(_QUERY, f"chdb://{self.store}", statement))
        return columns

    def close(self) -> None:
        """End all running processes, and unmount."""
        for daemon in self.daemons.values():
            daemon.end()
        self.network.close()
        for disk in self.disks.values():
            disk.close()

    def _disk(self, name: str, size_mib: int) -> Disk:
        folder = self.folder / "disks" / name
        return Tmpfs(folder, size_mib * MIB) if self.is_mounted else Limited(folder)

    def _hub(self) -> Daemon:
        clusters = ", ".join(f'"{name}"' for name in AGENTS)
        config = self._config("hub", HUB, clusters=clusters, state=self.disks["hub"].folder)
        arguments = ["hub", "--config", config, "--store", f"chdb://{self.store}"]
        disks = [self.disks["hub"], self.disks["store"]]
        return Daemon("hub", arguments, self.folder, env={}, disks=disks)

    def _relay(self) -> Daemon:
        clusters = ", ".join(f'"{name}"' for name in AGENTS)
        config = self._config("relay", HUB, clusters=clusters, state=self.disks["relay"].folder)
        to = f"http://127.0.0.1:{self.links['upstream'].port}"
        arguments = ["hub", "--config", config, "--relay-to", to]
        env = {"GPUFLEET_HUB_RELAY__TIMEOUT_SECONDS": "3", "GPUFLEET_HUB_RELAY__CONNECTIONS": "4"}
        return Daemon("relay", arguments, self.folder, env=env, disks=[self.disks["relay"]])

    def _agent(self, name: str, gpus: int) -> Daemon:
        driver = self.folder / f"{name}-driver"
        driver.mkdir()
        env = FakeNvml(driver, Scenario.healthy(gpus)).environment
        age, state = SPOOL_SECONDS[name], self.disks[name].folder
        config = self._config(name, AGENT, name=name, hub=self.links["agents"].port, age=age, state=state)
        return Daemon(name, ["agent", "--config", config], self.folder, env=env, disks=[self.disks[name]])

    def _config(self, name: str, template: str, /, **values: object) -> str:
        path = self.folder / f"{name}.toml"
        path.write_text(template.format(port=self._ports[name], **values))
        return str(path)


def run_python(script: str, *arguments: str) -> str:
    """Run a script in a separate process. Return its output."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
