"""docs/operations/: documented commands work, and tables match the daemons' metrics."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.dialects.native import NATIVE
from gpufleet.model.catalogue import CATALOGUE
from tests.fakes.batches import body
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.command import gpufleet
from tests.support.hub_state import prepare_state
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import PATIENCE, wait_until

DOCS = Path(__file__).resolve().parents[2] / "docs"
BACKUP, MONITORING = (
    (DOCS / "operations" / name).read_text(encoding="utf-8") for name in ("backup.md", "monitoring.md")
)
FAMILY = re.compile(r"`(gpufleet_[a-z0-9_]+)(?:\{[a-z,]+\})?`")
DECLARED = re.compile(r"^# TYPE (\S+) ", re.MULTILINE)
RARE = {
    "gpufleet_contract_items",
    "gpufleet_export_last_success_timestamp_seconds",
    "gpufleet_findings",
    "gpufleet_hub_findings_errors_total",
    "gpufleet_hub_forward_last_success_timestamp_seconds",
    "gpufleet_hub_notify_last_success_timestamp_seconds",
    "gpufleet_hub_rejected_batches_total",
    "gpufleet_hub_rejected_samples_total",
    "gpufleet_hub_unknown_metrics_total",
    "gpufleet_hub_unknown_labels_total",
    "gpufleet_hub_uncached_series_total",
    "gpufleet_hub_unrecognised_metrics_total",
    "gpufleet_hub_invalid_values_total",
    "gpufleet_hub_quarantined_batches_total",
    "gpufleet_hub_unauthenticated_requests_total",
    "gpufleet_hub_task_restarts_total",
    "gpufleet_relay_rejected_batches_total",
    "gpufleet_relay_task_restarts_total",
}
"""Families without a series until their first event."""


def commands(name: str) -> str:
    """Return the marked block of the backup page."""
    found = re.search(rf"<!-- tested: {name} -->\n```sh\n(.*?)```", BACKUP, re.DOTALL)
    assert found, f"backup.md has no block {name!r}"
    return found[1]


class Host:
    """Machine with a hub as its service. Documented commands run with their paths moved into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "var/lib/gpufleet"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.hub: Gpufleet | None = None
        self.bin = folder / "bin"
        self.bin.mkdir()
        prepare_state(self.state)
        # `sudo [-u USER] COMMAND` runs COMMAND. `systemctl` writes its request to a file: the hub is a child process.
        self._program("sudo", 'if [ "$1" = -u ]; then shift 2; fi; exec "$@"')
        self._program("systemctl", f'echo "$1" > {folder}/request; while [ -e {folder}/request ]; do sleep 0.05; done')

    def _program(self, name: str, script: str) -> None:
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def start(self, *more: str) -> None:
        arguments = ["hub", "--listen", f"127.0.0.1:{self.port}", "--state", str(self.state), *more]
        self.hub = Gpufleet(arguments, self.folder / "log")
        self.hub.wait_for(f"{self.url}/readyz", 100)

    def stop(self) -> None:
        assert self.hub is not None
        assert self.hub.stop(60) == 0

    def run(self, name: str) -> None:
        """Run a marked block of the page."""
        script = commands(name).replace("/var/", f"{self.folder}/var/")
        script = script.replace("/opt/gpufleet/bin/python", sys.executable)
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        request = self.folder / "request"
        with subprocess.Popen(["sh", "-eu", "-c", script], env=environment) as shell:
            while shell.poll() is None:
                wait_until(lambda: shell.poll() is not None or (request.exists() and request.read_text()), seconds=60)
                if request.exists():
                    {"stop\n": self.stop, "start\n": self.start}[request.read_text()]()
                    request.unlink()
        assert shell.returncode == 0

    def get(self, path: str) -> Any:
        return get_json(f"{self.url}{path}")

    def send(self, path: str, method: str, content: bytes, content_type: str) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}", data=content, method=method, headers={"Content-Type": content_type}
        )
        with urllib.request.urlopen(request, timeout=20 * PATIENCE) as answer:
            return json.load(answer)

    def measure(self, *seqs: int) -> None:
        """Post batches, and wait until they are stored."""
        for seq in seqs:
            self.send("/v1/batches", "POST", body(seq, time.time_ns()), CONTENT_TYPE)
        wait_until(lambda: "\ngpufleet_hub_wal_records 0\n" in get_text(f"{self.url}/metrics"), what="the store")

    def allocate(self, name: str) -> None:
        spec = {"kind": "bare_metal", "target": {"cluster": "local", "machine": "node-a"}}
        self.send(f"/v1/allocations/{name}", "PUT", json.dumps(spec).encode(), "application/json")

    def missing(self) -> int:
        (sender,) = self.get("/v1/senders")
        count: int = sender["missing"]
        return count


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    if made.hub is not None:
        made.hub.kill()


@pytest.mark.timeout(300)
def test_documented_backup_and_restore_work(host: Host) -> None:
    host.start()
    host.measure(1, 2, 3)
    host.allocate("kept")
    made = gpufleet("token", "create", "--role", "admin", "--state", str(host.state))
    (node,) = host.get("/v1/nodes")["items"]
    host.run("backup")
    host.measure(4, 5)
    host.allocate("later")
    host.run("restore")
    assert [one["id"] for one in host.get("/v1/allocations")] == ["kept"]
    assert made.stderr.split()[2].rstrip(":") in gpufleet("token", "list", "--state", str(host.state)).stdout
    (restored,) = host.get("/v1/nodes")["items"]
    assert (restored["machine"]["id"], restored["gpus"]) == (node["machine"]["id"], 2)
    host.measure(6)  # the sender continues; lost batches count as missing
    assert host.missing() == 2
    assert host.get("/v1/allocations/kept/metrics")["source"] == "host_local_probe"


@pytest.mark.timeout(300)
def test_documented_registry_restore_works(host: Host) -> None:
    host.start()
    host.measure(1)
    host.allocate("kept")
    (node,) = host.get("/v1/nodes")["items"]
    host.run("registry")
    host.allocate("later")
    host.measure(2)
    (host.state / "hub" / "registry.sqlite").write_bytes(b"unreadable")
    host.run("restore the registry")
    assert [one["id"] for one in host.get("/v1/allocations")] == ["kept"]
    host.measure(3)
    assert host.missing() == 1, "documented: the batch was flushed after the copy"
    assert [one["machine"]["id"] for one in host.get("/v1/nodes")["items"]] == [node["machine"]["id"]]


@pytest.mark.timeout(300)
def test_hub_starts_without_registry_or_store_if_the_loss_is_accepted(host: Host) -> None:
    host.start()
    host.measure(1, 2)
    host.allocate("a")
    (node,) = host.get("/v1/nodes")["items"]
    host.stop()
    (host.state / "hub" / "store").rename(host.folder / "store")
    host.start("--accept-data-loss")
    host.measure(3)
    assert host.missing() == 0
    (after,) = host.get("/v1/nodes")["items"]
    assert after["machine"]["id"] == node["machine"]["id"]
    assert host.get("/v1/allocations/a/metrics")["source"] == "host_local_probe"
    host.stop()
    for file in (host.state / "hub").glob("registry.sqlite*"):
        file.unlink()
    host.start("--accept-data-loss")
    host.measure(4)
    assert host.missing() == 3
    assert host.get("/v1/allocations") == []
    assert host.get("/v1/nodes")["items"][0]["machine"]["id"] != node["machine"]["id"]


def monitoring(title: str) -> str:
    """Return a section of the monitoring page."""
    section = MONITORING.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert section, f"monitoring.md has no section {title!r}"
    return section


def documented(title: str) -> set[str]:
    section = monitoring(title)
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in FAMILY.findall(row)}


@pytest.mark.timeout(300)
def test_own_metrics_of_every_daemon_are_documented(tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("hub", "relay", "agent")}
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    driver = FakeNvml(tmp_path, Scenario.healthy(1))
    targets, config = tmp_path / "targets.json", tmp_path / "hub.toml"
    targets.write_text(json.dumps([{"targets": [at["agent"]], "labels": {"node": "pulled"}}]))
    config.write_text(
        f'[forward]\nurl = "http://127.0.0.1:1/"\n[[discovery]]\ncluster = "local"\nfiles = ["{targets}"]\n'
    )
    runs = {
        "hub": ("hub", "--listen", at["hub"], "--config", str(config)),
        "relay": ("hub", "--listen", at["relay"], "--relay-to", f"http://{at['hub']}"),
        "agent": ("agent", "--listen", at["agent"], "--hub", f"http://{at['relay']}"),
    }
    running: list[Gpufleet] = []
    try:
        prepare_state(tmp_path / "hub")
        for name, arguments in runs.items():
            state = str(tmp_path / name)
            environment = {**driver.environment, "GPUFLEET_AGENT_PUSH__REMOTE_WRITE__URL": "http://127.0.0.1:1/"}
            running.append(Gpufleet([*arguments, "--state", state], tmp_path / f"{name}.log", environment))
        for name, process in zip(runs, running, strict=True):
            process.wait_for(f"http://{at[name]}/readyz", 100)
        for name, series in (("hub", "last_flush_timestamp"), ("hub", "pull_up{"), ("agent", "push_last_success")):
            wait_until(lambda series=series, name=name: series in get_text(f"http://{at[name]}/metrics"), seconds=60)  # type: ignore[misc]
        pages = {name: set(DECLARED.findall(get_text(f"http://{at[name]}/metrics"))) for name in runs}
    finally:
        for process in running:
            process.kill()
    of_devices = (*CATALOGUE, "gpu_info", "host_info", "gpu_holder_info", "gpu_holder_state")
    measured = {f"gpufleet_{name}" for name in of_devices}
    of_agent = pages["agent"] - measured
    for title, served in (
        ("Hub metrics", pages["hub"]),
        ("Relay metrics", pages["relay"]),
        ("Agent metrics", of_agent),
    ):
        assert served - documented(title) == set(), f"{title}: served but not documented"
        assert documented(title) - served <= RARE, f"{title}: documented but not served"


def test_own_metrics_are_known_to_the_native_dialect() -> None:
    titles = ("Hub metrics", "Relay metrics", "Agent metrics")
    names = {name for title in titles for name in documented(title)}
    assert names
    assert {name for name in names if not NATIVE.knows(name)} == {NATIVE.measured}  # read separately


def test_metrics_of_alerts_are_documented() -> None:
    rules = monitoring("Alerts")
    named = set(re.findall(r"gpufleet_[a-z_]+", rules)) - {"gpufleet"}
    assert named
    known = documented("Hub metrics") | documented("Relay metrics")
    assert named <= known | documented("Agent metrics")


@pytest.mark.system
def test_promtool_accepts_the_alerts(peer: Callable[[str], Path], tmp_path: Path) -> None:
    block = monitoring("Alerts").partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "rules.yml").write_text(block)
    done = subprocess.run(
        [peer("promtool"), "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 rules found" in done.stdout


def test_documented_log_messages_are_in_the_code() -> None:
    section = monitoring("Log messages")
    code = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS.parent / "src").rglob("*.py"))
    messages = [
        text for line in section.splitlines() if line.startswith("| `") for text in re.findall(r"`([^`]+)`", line)
    ]
    assert len(messages) > 10
    for message in messages:
        if "/" in message:
            continue
        for part in filter(None, (part.strip(" ,:") for part in re.split("…|\\bN\\b", message))):
            assert part in code, message
