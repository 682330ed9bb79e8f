"""Events and device release in a real agent process."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.agent.collect.release import ANSWER, REQUEST
from tests.fakes.hub import FakeHub
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import wait_until

QUICK = {"GPUFLEET_AGENT_LANES__FAST": "1", "GPUFLEET_AGENT_LANES__SLOW": "1"}


RELEASED = "released by operator"
"""Detail of a reading that is absent because of a release."""


class Node:
    """Agent with a fake driver and a file as kernel log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fake = FakeNvml(folder, Scenario.healthy(2))
        self.kmsg = folder / "kmsg"
        self.kmsg.write_text("6,0,0,-;Linux version 6\n")
        self.device = folder / "nvidia0"
        self.device.touch()
        self.url = f"http://127.0.0.1:{free_port()}"
        self.seq = self.pid = 0

    def start(self, *arguments: str) -> Gpufleet:
        listen = self.url.removeprefix("http://")
        env = {
            **self.fake.environment,
            **QUICK,
            "GPUFLEET_AGENT_READERS__KMSG__PATH": str(self.kmsg),
            "FAKE_NVML_DEVICE": str(self.device),
        }
        state = ["--state", str(self.folder / "state")]
        process = Gpufleet(["agent", "--listen", listen, *state, *arguments], self.folder / "agent.log", env)
        self.pid = process.process.pid
        return process

    def ready(self, process: Gpufleet) -> None:
        process.wait_for(f"{self.url}/readyz")

    def log(self, code: int, pci: str) -> None:
        self.seq += 1
        with self.kmsg.open("a") as file:
            file.write(f"4,{self.seq},1,-;NVRM: Xid (PCI:{pci}): {code}, pid=7, name=x, text\n")

    def snapshot(self) -> Any:
        return get_json(f"{self.url}/v1/snapshot")

    def xids(self) -> list[Any]:
        return [event for event in self.snapshot()["events"] if event["kind"] == "xid"]

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.snapshot()["events"]]

    def gpu(self, index: int) -> Any:
        return next(device for device in self.snapshot()["devices"] if device.get("index") == index)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gpufleet.cli.main", "agent", *arguments, "--state", str(self.folder / "state")],
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip

    def holders(self) -> list[int]:
        """Return the IDs of processes that have the device file open."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    files = [link.readlink() for link in (process / "fd").iterdir()]
                except OSError:
                    continue
                if self.device in files:
                    found.append(int(process.name))
        return found


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Node with a running agent. Each test returns the GPUs to the agent."""
    node = Node(tmp_path_factory.mktemp("shared"))
    with node.start() as process:
        node.ready(process)
        yield node
        assert process.stop() == 0


async def test_xid_in_the_log_is_reported_once_over_a_restart(node: Node) -> None:
    """The XID appears in the snapshot, on /metrics and at the hub. The waits run in a thread."""
    async with FakeHub.running() as hub:
        await asyncio.to_thread(_report_xids_over_a_restart, node, hub)


def _report_xids_over_a_restart(node: Node, hub: FakeHub) -> None:
    def received() -> list[int]:
        """Return the XIDs of all batches. An agent stopped before the response sends its last batch again."""
        batches = {(batch.epoch, batch.seq): batch for batch in hub.taken}
        events = [event for batch in batches.values() for part in batch.parts for event in part.events]
        return [event.code for event in events if event.kind == "xid"]

    with node.start("--hub", hub.url) as process:
        node.ready(process)
        pci = node.gpu(1)["pci_address"].removesuffix(".0")
        node.log(79, pci)
        wait_until(lambda: len(node.xids()) == 1, what="the XID in the snapshot")
        (event,) = node.xids()
        assert event["code"] == 79
        assert event["uuid"] == node.gpu(1)["uuid"]
        assert (event["attributes"]["class"], event["attributes"]["action"]) == ("hardware", "reboot_node")
        assert "name=x" not in json.dumps(event)
        line = f'uuid="{node.gpu(1)["uuid"]}"'
        wait_until(lambda: 'xid="79"' in get_text(f"{node.url}/metrics"), what="the XID on /metrics")
        page = get_text(f"{node.url}/metrics").splitlines()
        counts = [row for row in page if row.startswith("gpufleet_gpu_xid_errors_total{")]
        assert [row.rsplit(" ", 1)[1] for row in counts if line in row] == ["1"]
        wait_until(lambda: received() == [79], seconds=40, what="the XID at the hub")
        process.stop()
    with node.start("--hub", hub.url) as process:
        node.ready(process)
        node.log(31, pci)
        wait_until(lambda: len(node.xids()) == 2, what="the second XID")
        assert [one["code"] for one in node.xids()] == [31, 79]
        wait_until(lambda: len(received()) >= 2, seconds=40, what="the second XID at the hub")
        process.stop()
    assert received() == [79, 31]


def test_xid_of_log_and_driver_is_one_event_with_both_sources(shared: Node) -> None:
    def watched() -> bool:
        return bool(shared.gpu(0)["readings"].get("gpu_driver_events_watched", {}).get("value"))

    wait_until(watched, what="the driver's events to be watched")
    shared.fake.scenario.devices[0].add_event(8, 79)
    shared.fake.scenario.devices[1].add_event(8, 31)
    shared.fake.apply()
    shared.log(79, shared.gpu(0)["pci_address"].removesuffix(".0"))
    wait_until(lambda: len(shared.xids()) == 2, what="both XIDs")
    found = {event["code"]: (event["uuid"], event["attributes"]["sources"]) for event in shared.xids()}
    assert found == {79: (shared.gpu(0)["uuid"], "kmsg,nvml"), 31: (shared.gpu(1)["uuid"], "nvml")}
    assert "count" not in shared.xids()[0]["attributes"]


def test_release_closes_the_devices_and_resume_opens_them(shared: Node) -> None:
    wait_until(lambda: len(shared.holders()) == 1, what="the agent to hold the GPUs")
    done = shared.command("release")
    assert (done.returncode, done.stderr) == (0, "")
    assert str(shared.pid) in done.stdout
    assert shared.holders() == []

    def released() -> bool:
        reading = shared.gpu(0)["readings"]["gpu_power_watts"]
        return (reading.get("absent"), reading.get("detail")) == ("not_collected", RELEASED)

    wait_until(released, what="the readings to be absent with their reason")
    snapshot = shared.snapshot()
    assert len(snapshot["devices"]) == 2
    assert snapshot["capabilities"]["nvml"] == f"not_collected: {RELEASED}"
    assert snapshot["host"]["readings"]["host_load_1m"]["value"] >= 0

    def on_page() -> bool:
        rows = get_text(f"{shared.url}/metrics").splitlines()
        return any(row.startswith("gpufleet_host_gpus_released{") and row.endswith(" 1") for row in rows)

    wait_until(on_page, what="the release on /metrics")
    assert shared.kinds().count("devices_released") == 1
    assert shared.holders() == []
    done = shared.command("resume")
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: "value" in shared.gpu(0)["readings"]["gpu_power_watts"], what="readings to come back")
    assert len(shared.holders()) == 1


def test_release_request_of_another_user_is_ignored(shared: Node) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of a file")
    wait_until(lambda: len(shared.holders()) == 1, what="the agent to hold the GPUs")
    request = shared.folder / "state" / "agent" / REQUEST
    request.write_text("{}")
    os.chown(request, 12345, 12345)
    log = shared.folder / "agent.log"
    wait_until(lambda: str(request) in log.read_text(), what="the agent to log the request's path")
    assert len(shared.holders()) == 1
    request.unlink()


def test_release_and_resume_survive_an_agent_restart(node: Node) -> None:
    with node.start() as process:
        node.ready(process)
        assert node.command("release").returncode == 0
        process.stop()
    with node.start() as process:
        node.ready(process)
        wait_until((node.folder / "state" / "agent" / ANSWER).exists, what="the new agent to acknowledge the release")
        assert node.holders() == []
        assert node.snapshot()["capabilities"]["nvml"] == f"not_collected: {RELEASED}"
        assert node.kinds().count("devices_released") == 1  # by the previous agent
        assert node.command("release", "--for", "2s").returncode == 0
        wait_until(lambda: len(node.holders()) == 1, what="the agent to take the GPUs after 2 s")
        assert not (node.folder / "state" / "agent" / REQUEST).exists()
        before = node.kinds().count("devices_resumed")
        assert node.command("release").returncode == 0
        process.stop()
    done = node.command("resume")  # no agent runs: the next agent reports it
    assert done.returncode == 0
    assert str(node.pid) not in done.stdout
    with node.start() as process:
        node.ready(process)
        wait_until(lambda: node.kinds().count("devices_resumed") == before + 1, what="the event")
        wait_until(lambda: len(node.holders()) == 1, what="the agent to take the GPUs")
        assert node.kinds().count("devices_released") == 2


def test_release_without_an_agent_fails(node: Node) -> None:
    done = node.command("release")
    assert done.returncode == 1
    assert str(node.folder / "state") in done.stderr
