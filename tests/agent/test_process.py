"""Agent as a real process: the real NVML binding on a fake driver, real sockets and signals."""

import asyncio
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.model.time import NANOS, to_ns
from tests.fakes.hub import FakeHub
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.process_memory import memory_kib
from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import PATIENCE, wait_until, wait_until_async

FAST = {"GPUFLEET_AGENT_LANES__FAST": "1", "GPUFLEET_AGENT_LANES__SLOW": "2"}


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path, Scenario.healthy(8))


class RunningAgent:
    """Agent process and its URL."""

    def __init__(self, folder: Path, fake: FakeNvml, *arguments: str, port: int | None = None) -> None:
        port = port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        listen = f"127.0.0.1:{port}"
        self.process = Gpufleet(
            ["agent", "--listen", listen, "--state", str(folder / "state"), *arguments],
            folder / "agent.log",
            {**fake.environment, **FAST},
            own_interpreter=True,
        )

    def snapshot(self) -> Any:
        return get_json(f"{self.url}/v1/snapshot")

    def device(self, index: int) -> Any:
        return next(device for device in self.snapshot()["devices"] if device.get("index") == index)


@pytest.fixture
def agent(tmp_path: Path, fake: FakeNvml) -> Iterator[RunningAgent]:
    running = RunningAgent(tmp_path, fake)
    with running.process as process:
        process.wait_for(f"{running.url}/readyz")
        yield running


def test_hung_gpu_affects_only_itself_and_recovers(agent: RunningAgent, fake: FakeNvml) -> None:
    """The driver is then removed: no old value remains."""
    assert agent.snapshot()["aggregate"]["coverage"] == "8 of 8 devices"
    fake.scenario.hang("nvmlDeviceGetTemperatureV", gpu=5)
    fake.apply()

    def hung() -> bool:
        reading = agent.device(5)["readings"]["gpu_temperature_celsius"]
        return (reading.get("absent"), reading.get("detail")) == ("timeout", "nvmlDeviceGetTemperatureV")

    wait_until(hung, what="the timeout of GPU 5 with the call's name")
    before = {number: agent.device(number)["readings"]["gpu_power_watts"]["measured_at"] for number in range(8)}

    def fresh() -> bool:
        now = {number: agent.device(number)["readings"]["gpu_power_watts"] for number in range(8) if number != 5}
        return all("value" in now[number] and now[number]["measured_at"] > before[number] for number in now)

    wait_until(fresh, what="the seven others to keep fresh readings")
    page = get_text(f"{agent.url}/metrics")
    assert page.count("\ngpufleet_gpu_temperature_celsius{") == 7
    assert 'metric="gpu_temperature_celsius",reason="timeout"' in page
    nvml = [report for report in agent.snapshot()["readers"] if report["reader"] == "nvml" and report["lane"] == "fast"]
    assert nvml[0]["state"] == "partial"
    assert "nvmlDeviceGetTemperatureV" in nvml[0]["last_error"]
    fake.scenario.faults.clear()
    fake.apply()
    wait_until(lambda: "value" in agent.device(5)["readings"]["gpu_temperature_celsius"], seconds=60, what="GPU 5 back")

    assert "gpufleet_gpu_power_watts{" in get_text(f"{agent.url}/metrics")
    fake.scenario.devices.clear()
    fake.apply()

    def stale() -> bool:
        devices = agent.snapshot()["devices"]
        return all("value" not in device["readings"].get("gpu_power_watts", {}) for device in devices)

    wait_until(stale, what="old readings to be removed")
    assert "gpufleet_gpu_power_watts{" not in get_text(f"{agent.url}/metrics")
    assert "gpufleet_reader_last_success_timestamp_seconds{" in get_text(f"{agent.url}/metrics")


@pytest.mark.parametrize("stop", ["SIGTERM", "SIGINT"])
def test_agent_is_light_and_stops_cleanly_with_its_child(agent: RunningAgent, stop: str) -> None:
    pid = agent.process.process.pid
    assert resident_kib(pid) < 100_000
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    agent.process.process.send_signal(getattr(signal, stop))
    assert agent.process.process.wait(10 * PATIENCE) == 0
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []
    lines = [json.loads(line) for line in agent.process.log.read_text().splitlines()]
    assert [line["level"] for line in lines if line["level"] != "info"] == []
    assert lines[-1]["message"] == "agent is stopping"


def test_agent_that_stops_saves_the_time_of_its_last_reading_of_the_driver(tmp_path: Path, agent: RunningAgent) -> None:
    """After the next start, a reload of the driver in the meantime is known to be later than that."""

    def saved_at() -> int:
        return int(json.loads((tmp_path / "state/agent/events.json").read_bytes())["last"]["session_at"])

    wait_until((tmp_path / "state/agent/events.json").exists, what="the first saved event")
    before = saved_at()

    def is_read_again() -> bool:
        read_at = agent.snapshot()["host"]["readings"]["nvidia_driver_state"]["measured_at"]
        return to_ns(dt.datetime.fromisoformat(read_at)) > before + NANOS

    wait_until(is_read_again, what="another pass")
    assert agent.process.stop(10) == 0
    assert saved_at() > before + NANOS


def resident_kib(pid: int) -> int:
    """Return the resident memory of a process and its children."""
    pids = [str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return sum(memory_kib("VmRSS", one) for one in pids)


@pytest.mark.parametrize(("function", "gpu"), [("nvmlDeviceGetPowerUsage", 3), ("nvmlInitWithFlags", -1)])
def test_agent_answers_and_stops_while_the_driver_hangs(
    tmp_path: Path, fake: FakeNvml, function: str, gpu: int
) -> None:
    """The child ignores SIGTERM and the hub is down."""
    fake.scenario.hang(function, gpu=gpu, stubborn=True)
    fake.apply()
    running = RunningAgent(tmp_path, fake, "--hub", f"http://127.0.0.1:{free_port()}")
    with running.process as process:
        process.wait_for(f"{running.url}/metrics")
        wait_until(lambda: "gpufleet_host_load_1m{" in get_text(f"{running.url}/metrics"), what="host readings")
        with urllib.request.urlopen(f"{running.url}/healthz", timeout=5) as answer:
            assert answer.status == 200
        assert process.stop(15) == 0


def test_daemon_does_not_import_command_dependencies() -> None:
    script = (
        "import sys, gpufleet.cli.main, gpufleet.wiring.agent, gpufleet.web.agent, gpufleet.delivery.outbox;"
        "heavy = {'rich', 'litestar', 'sqlalchemy', 'chdb', 'clickhouse_connect'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_batches_survive_hub_outage_and_kill_of_the_agent(tmp_path: Path, fake: FakeNvml) -> None:
    port = free_port()
    hub_url = f"http://127.0.0.1:{port}"
    running = RunningAgent(tmp_path, fake, "--hub", hub_url)
    with running.process as process:
        await asyncio.to_thread(process.wait_for, f"{running.url}/readyz")

        async def waiting() -> bool:
            page = await asyncio.to_thread(get_text, f"{running.url}/metrics")
            depths = [line.split()[-1] for line in page.splitlines() if line.startswith("gpufleet_spool_records{")]
            return float(depths[0]) >= 3

        await wait_until_async(waiting, what="batches in the spool")
        process.kill()
    async with FakeHub.running(port=port) as hub:
        restarted = RunningAgent(tmp_path, fake, "--hub", hub_url)
        with restarted.process as process:

            async def delivered() -> bool:
                return len(hub.taken) >= 5

            await wait_until_async(delivered, seconds=60, what="all batches at the hub")
            assert await asyncio.to_thread(process.stop) == 0
    numbers = sorted({batch.seq for batch in hub.taken})
    assert numbers == list(range(1, len(numbers) + 1))
    assert len({batch.epoch for batch in hub.taken}) == 1
    names = {machine.name for batch in hub.taken for machine in batch.machines}
    assert names == {os.uname().nodename}
    uuids = {view.uuid for batch in hub.taken for view in batch.views if view.uuid}
    assert len(uuids) == 8
    assert any(batch.heartbeat for batch in hub.taken)
