"""`gpufleet events`: events of this machine as text and JSON."""

import json
from pathlib import Path

import pytest

from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.command import gpufleet

LOG = (
    "6,1,1000000,-;Linux version 6\n"
    "4,2,2000000,-;NVRM: Xid (PCI:0000:{bus}:00): 31, pid=7, name=x, Ch 00000008\n"
    "4,3,9000000,-;NVRM: Xid (PCI:0000:{bus}:00): 79, pid=7, name=x, GPU has fallen off the bus.\n"
    "4,4,9500000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed\n"
)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    fake = FakeNvml(tmp_path, Scenario.healthy(2))
    bus = (fake.scenario.devices[1].texts["nvmlDeviceGetPciInfo"] or "").split(":")[1]
    (tmp_path / "kmsg").write_text(LOG.format(bus=bus))
    return {**fake.environment, "GPUFLEET_AGENT_READERS__KMSG__PATH": str(tmp_path / "kmsg")}


def test_newest_events_come_first_with_their_action(env: dict[str, str]) -> None:
    page = gpufleet("events", env=env).stdout
    assert page.index("driver_loaded") < page.index("xid 79") < page.index("xid 31")
    assert "advised: reboot_node" in " ".join(page.split())


def test_events_are_filtered_by_device_and_kind(env: dict[str, str]) -> None:
    found = json.loads(gpufleet("events", "1", "--kind", "xid", "--json", env=env).stdout)
    assert [event["code"] for event in found] == [79, 31]
    assert json.loads(gpufleet("events", "0", "--json", env=env).stdout) == []
    assert json.loads(gpufleet("events", "--kind", "gpu_lost", "--json", env=env).stdout) == []


def test_unknown_device_is_reported(env: dict[str, str]) -> None:
    done = gpufleet("events", "GPU-none", env=env)
    assert done.returncode == 1
    assert "has no device" in done.stderr
