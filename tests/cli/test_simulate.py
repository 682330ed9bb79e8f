"""The simulated engine and the doctor, as two processes; the simulated fleet without a hub."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpufleet.simulate.fleet.faults import FAULTS
from tests.support.processes import free_port
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--faults", "silent-claster@+5m"], "no fault is called 'silent-claster'"),
        (["--faults", "silent-cluster@+5m:c4"], "no c4/n1/g0 in this fleet"),
        (["--faults", "gpu-lost@+5m:c1/n1/g8"], "no c1/n1/g8 in this fleet"),
        (["--duration", "5 minutes"], "not a span of time"),
        (["--start", "yesterday"], "not a time"),
        (["--start", "9999-12-31"], "'9999-12-31' must lie between 1971 and 2200"),
        (["--start", "1900-01-01T00:00:00Z"], "must lie between"),
        (["--faults", "lost-batches=-5@+5m"], "must be a whole number from 1"),
        (["--hub", "nowhere", "--no-register"], "is not a hub"),
        (["--clusters", "0"], "--clusters"),
    ],
)
def test_a_fleet_that_cannot_be_is_a_usage_error(arguments: list[str], words: str) -> None:
    ended = subprocess.run([*GPUFLEET, "simulate", "fleet", *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert words in " ".join(ended.stderr.replace("\u2502", " ").split())


def test_the_list_of_faults_explains_each() -> None:
    told = subprocess.run(
        [*GPUFLEET, "simulate", "fleet", "--faults", "list"], capture_output=True, text=True, check=True
    ).stdout
    for kind, row in FAULTS.items():
        assert kind in told
        assert row.happens in told
        assert row.expected in told


def test_without_a_hub_it_says_so() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    ended = subprocess.run(
        [*GPUFLEET, "simulate", "fleet", "--hub", url, "--once"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert url in ended.stderr


def test_a_hub_that_does_not_come_is_waited_for_as_long_as_is_said() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    command = [*GPUFLEET, "simulate", "fleet", "--hub", url, "--no-register", "--once", "--patience", "6s", "--json"]
    ended = subprocess.run(
        [*command, "--clusters", "1", "--nodes", "2"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 1
    assert f"{url} has taken nothing for" in ended.stderr
    assert "2 batches were not taken: " in ended.stderr
    summary = msgspec.json.decode(ended.stdout)
    assert (summary["made"], summary["waiting"], summary["silent_seconds"] >= 6) == (2, 2, True)
