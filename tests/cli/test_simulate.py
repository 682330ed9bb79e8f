"""The simulated engine and the doctor, as two processes."""

import subprocess
import sys
from pathlib import Path

import msgspec

from tests.support.waiting import wait_until

GPUFLEET = [sys.executable, "-m", "gpufleet.cli.main"]


def test_the_doctor_examines_a_simulated_engine(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/engine"
    command = [*GPUFLEET, "simulate", "dcgm", address, "--gpus", "2", "--dcgm-version", "4.6.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        try:
            wait_until((tmp_path / "engine").exists, what="the engine to listen")
            told = subprocess.run(
                [*GPUFLEET, "doctor", "dcgm", address, "--json"], capture_output=True, text=True, check=True
            )
        finally:
            engine.terminate()
    checks = {check["name"]: check for check in msgspec.json.decode(told.stdout)}
    assert checks["version"]["found"] == "4.6.0"
    assert checks["GPUs"]["found"] == "2: 0, 1"


def test_wrong_words_are_usage_errors(tmp_path: Path) -> None:
    for arguments in (
        ["simulate", "dcgm", "nowhere"],
        ["simulate", "dcgm", f"unix://{tmp_path}/e", "--fault", "none"],
        ["doctor", "dcgm", "nowhere"],
    ):
        ended = subprocess.run([*GPUFLEET, *arguments], capture_output=True, text=True, check=False)
        assert ended.returncode == 2, arguments
        assert "nowhere" in ended.stderr or "wrong_magic" in ended.stderr
