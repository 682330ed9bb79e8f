"""What happened, and letting go of the devices, in a real agent process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufleet.agent.collect.release import ANSWER, REQUEST
from tests.fakes.hub import FakeHub
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import wait_until, wait_until_async

QUICK = {"GPUFLEET_AGENT_LANES__FAST": "1", "GPUFLEET_AGENT_LANES__SLOW": "1"}


class Node:
    """An agent on a fake driver and a file as the kernel's log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fake = FakeNvml(folder, Scenario.healthy(2))
        self.kmsg = folder / "kmsg"
        self.kmsg.write_text("6,0,0,-;Linux version 6\n")
        self.device = folder / "nvidia0"
        self.device.touch()
        self.url = f"http://127.0.0.1:{free_port()}"
        self.seq = 0

    def start(self, *arguments: str) -> Gpufleet:
        listen = self.url.removeprefix("http://")
        env = {
            **self.fake.environment,
            **QUICK,
            "GPUFLEET_AGENT_READERS__KMSG__PATH": str(self.kmsg),
            "FAKE_NVML_DEVICE": str(self.device),
        }
        state = ["--state", str(self.folder / "state")]
        return Gpufleet(["agent", "--listen", listen, *state, *arguments], self.folder / "agent.log", env)

    def ready(self, process: Gpufleet) -> None:
        process.wait_for(f"{self.url}/readyz")

    def log(self, code: int, pci: str) -> None:
        self.seq += 1
        with self.kmsg.open("a") as file:
            file.write(f"4,{self.seq},1,-;NVRM: Xid (PCI:{pci}): {code}, pid=7, name=x, words\n")

    def snapshot(self) -> Any:
        return get_json(f"{self.url}/v1/snapshot")

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
        """Return the processes that have the device file open."""
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


def test_an_xid_in_the_log_is_seen_on_every_surface_and_once_over_a_restart(node: Node) -> None:
    def xids() -> list[Any]:
        return [event for event in node.snapshot()["events"] if event["kind"] == "xid"]

    with node.start() as process:
        node.ready(process)
        pci = node.gpu(1)["pci_address"].removesuffix(".0")
        node.log(79, pci)
        wait_until(lambda: len(xids()) == 1, what="the XID in the snapshot")
        (event,) = xids()
        assert event["code"] == 79
        assert event["uuid"] == node.gpu(1)["uuid"]
        assert (event["attributes"]["class"], event["attributes"]["action"]) == ("hardware", "reboot_node")
        assert "name=x" not in json.dumps(event)
        line = f'uuid="{node.gpu(1)["uuid"]}"'
        wait_until(lambda: 'xid="79"' in get_text(f"{node.url}/metrics"), what="the XID on /metrics")
        page = get_text(f"{node.url}/metrics").splitlines()
        counts = [row for row in page if row.startswith("gpufleet_gpu_xid_errors_total{")]
        assert [row.rsplit(" ", 1)[1] for row in counts if line in row] == ["1"]
        process.stop()
    with node.start() as process:
        node.ready(process)
        node.log(31, pci)
        wait_until(lambda: len(xids()) == 2, what="the second XID")
        assert [one["code"] for one in xids()] == [31, 79]


def test_an_xid_that_the_log_and_the_driver_tell_is_one_event_that_names_both(node: Node) -> None:
    def xids() -> list[Any]:
        return [event for event in node.snapshot()["events"] if event["kind"] == "xid"]

    def watched() -> bool:
        return bool(node.gpu(0)["readings"].get("gpu_driver_events_watched", {}).get("value"))

    with node.start() as process:
        node.ready(process)
        wait_until(watched, what="the driver's events to be watched")
        node.fake.scenario.devices[0].tell(8, 79)
        node.fake.scenario.devices[1].tell(8, 31)
        node.fake.apply()
        node.log(79, node.gpu(0)["pci_address"].removesuffix(".0"))
        wait_until(lambda: len(xids()) == 2, what="both XIDs")
        told = {event["code"]: (event["uuid"], event["attributes"]["sources"]) for event in xids()}
        assert told == {79: (node.gpu(0)["uuid"], "kmsg,nvml"), 31: (node.gpu(1)["uuid"], "nvml")}
        assert "count" not in xids()[0]["attributes"]
        process.stop()


async def test_events_travel_to_the_hub_once(node: Node) -> None:
    async with FakeHub.running() as hub:

        def told() -> list[int]:
            return [
                event.code
                for batch in hub.taken
                for part in batch.parts
                for event in part.events
                if event.kind == "xid"
            ]

        async def arrived() -> bool:
            return len(told()) >= count

        with node.start("--hub", hub.url) as process:
            node.log(79, "0000:00:05")
            count = 1
            await wait_until_async(arrived, seconds=40, what="the XID at the hub")
            process.stop()
        with node.start("--hub", hub.url) as process:
            node.log(31, "0000:00:05")
            count = 2
            await wait_until_async(arrived, seconds=40, what="the second XID at the hub")
            process.stop()
        assert told() == [79, 31]


def test_released_devices_are_closed_and_say_so_and_resume_takes_them_again(node: Node) -> None:
    with node.start() as process:
        node.ready(process)
        assert len(node.holders()) == 1
        done = node.command("release")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"(process {process.process.pid}) holds no GPU" in done.stdout
        assert node.holders() == []

        def released() -> bool:
            reading = node.gpu(0)["readings"]["gpu_power_watts"]
            return (reading.get("absent"), reading.get("detail")) == ("not_collected", "released by operator")

        wait_until(released, what="the readings to say why they are absent")
        snapshot = node.snapshot()
        assert len(snapshot["devices"]) == 2
        assert snapshot["capabilities"]["nvml"] == "not_collected: released by operator"
        assert snapshot["host"]["readings"]["host_load_1m"]["value"] >= 0
        released_metric = "gpufleet_host_gpus_released{"
        wait_until(
            lambda: any(
                row.startswith(released_metric) and row.endswith(" 1")
                for row in get_text(f"{node.url}/metrics").splitlines()
            ),
            what="the release on /metrics",
        )
        assert [e["kind"] for e in node.snapshot()["events"]].count("devices_released") == 1
        assert node.holders() == []
        done = node.command("resume")
        assert (done.returncode, done.stderr) == (0, "")
        assert "reads the GPUs again" in done.stdout
        wait_until(lambda: "value" in node.gpu(0)["readings"]["gpu_power_watts"], what="readings to come back")
        assert len(node.holders()) == 1


def test_a_release_outlives_the_agent_and_ends_by_itself(node: Node) -> None:
    with node.start() as process:
        node.ready(process)
        assert node.command("release").returncode == 0
        process.stop()
    with node.start() as process:
        node.ready(process)
        wait_until(
            lambda: (node.folder / "state" / "agent" / ANSWER).exists(), what="the new agent to say that it holds none"
        )
        assert node.holders() == []
        assert node.snapshot()["capabilities"]["nvml"] == "not_collected: released by operator"
        assert node.kinds().count("devices_released") == 1  # told by the agent before
        assert node.command("release", "--for", "2s").returncode == 0
        wait_until(lambda: len(node.holders()) == 1, what="the agent to take the GPUs again")
        assert not (node.folder / "state" / "agent" / REQUEST).exists()


def test_what_was_resumed_while_no_agent_ran_is_told_by_the_next_one(node: Node) -> None:
    with node.start() as process:
        node.ready(process)
        assert node.command("release").returncode == 0
        process.stop()
    assert "no agent that runs had let go" in node.command("resume").stdout
    with node.start() as process:
        node.ready(process)
        wait_until(lambda: "devices_resumed" in node.kinds(), what="the event")
        wait_until(lambda: len(node.holders()) == 1, what="the agent to take the GPUs")
        assert sorted(kind for kind in node.kinds() if kind.startswith("devices_")) == [
            "devices_released",
            "devices_resumed",
        ]


def test_a_strangers_word_releases_nothing(node: Node) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can write a file as somebody else")
    with node.start() as process:
        node.ready(process)
        request = node.folder / "state" / "agent" / REQUEST
        request.write_text("{}")
        os.chown(request, 12345, 12345)
        wait_until(lambda: "passed over" in process.log.read_text(), what="the agent to say so")
        assert len(node.holders()) == 1


def test_without_an_agent_the_command_says_so(tmp_path: Path) -> None:
    done = Node(tmp_path).command("release")
    assert done.returncode == 1
    assert "no agent has used this state folder" in done.stderr
