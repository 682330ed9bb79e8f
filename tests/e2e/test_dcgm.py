"""Agent that reads the DCGM host engine of its host, both as real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Gpufleet, free_port, get_json, get_text
from tests.support.waiting import wait_until

GPUFLEET = [sys.executable, "-m", "gpufleet.cli.main"]


class Engine:
    """`gpufleet simulate dcgm`, which can be killed and restarted at its address."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.socket = folder, folder / "engine"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        self.socket.unlink(missing_ok=True)
        with (self._folder / "engine.log").open("ab") as log:
            command = [*GPUFLEET, "simulate", "dcgm", f"unix://{self.socket}", "--gpus", "2", *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_until(self.socket.exists, what="the engine to listen")

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def gpus(url: str) -> list[Any]:
    return [device for device in get_json(f"{url}/v1/snapshot")["devices"] if device["kind"] == "gpu"]


def power(url: str) -> list[float | None]:
    return [gpu["readings"]["gpu_power_watts"].get("value") for gpu in gpus(url)]


@pytest.mark.timeout(180)
def test_agent_reads_its_hosts_dcgm_engine(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    env = {
        "GPUFLEET_AGENT_READERS__NVML__ENABLED": "false",
        "GPUFLEET_AGENT_READERS__DCGM__ADDRESS": f"unix://{engine.socket}",
        "GPUFLEET_AGENT_LANES__FAST": "1",
        "GPUFLEET_AGENT_LANES__SLOW": "1",
        "GPUFLEET_AGENT_LANES__STATIC": "1",
    }
    arguments = ["agent", "--listen", f"127.0.0.1:{port}", "--state", str(tmp_path / "state")]
    try:
        engine.start("--mig")
        with Gpufleet(arguments, tmp_path / "agent.log", env) as agent:
            agent.wait_for(f"{url}/readyz")
            first = gpus(url)[0]
            assert first["side"] == "host"
            assert {reading["reader"] for reading in first["readings"].values() if "value" in reading} >= {"dcgm"}
            assert power(url) == [312.25, 313.25]
            parts = [one for one in get_json(f"{url}/v1/snapshot")["devices"] if one["kind"] == "mig"]
            assert [one["name"] for one in parts] == ["MIG 3g.71gb", "MIG 1c.4g.71gb", "MIG 3c.4g.71gb"]
            host = get_json(f"{url}/v1/snapshot")["host"]["readings"]
            assert host["dcgm_compatibility"]["value"] == "first_choice"
            page = get_text(f"{url}/metrics")
            assert "gpufleet_gpu_tensor_activity_ratio" in page
            assert "gpufleet_dcgm_clock_offset_seconds" in page
            engine.kill()
            wait_until(lambda: power(url) == [None, None], what="the readings to become absent")
            assert "dcgm" in {
                one["reader"] for one in get_json(f"{url}/v1/snapshot")["readers"] if one.get("last_error")
            }
            engine.start()
            wait_until(lambda: power(url) == [312.25, 313.25], what="the engine to be read again", seconds=60)
            agent.stop()
    finally:
        engine.kill()
