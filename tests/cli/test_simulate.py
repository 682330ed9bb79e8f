"""`gpufleet simulate`: a simulated engine examined by the doctor, and the simulated fleet without a hub."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpufleet.simulate.fleet.faults import FAULTS
from tests.support.command import gpufleet
from tests.support.processes import free_port
from tests.support.waiting import wait_until

GPUFLEET = [sys.executable, "-m", "gpufleet.cli.main"]


def test_doctor_examines_a_simulated_engine(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/engine"
    command = [*GPUFLEET, "simulate", "dcgm", address, "--gpus", "2", "--dcgm-version", "4.6.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        try:
            wait_until((tmp_path / "engine").exists, what="the engine to listen")
            completed = gpufleet("doctor", "dcgm", address, "--json")
        finally:
            engine.terminate()
    checks = {check["name"]: check for check in msgspec.json.decode(completed.stdout)}
    assert checks["version"]["found"] == "4.6.0"
    assert checks["GPUs"]["found"] == "2: 0, 1"


def test_wrong_arguments_are_usage_errors(tmp_path: Path) -> None:
    for arguments in (
        ["simulate", "dcgm", "nowhere"],
        ["simulate", "dcgm", f"unix://{tmp_path}/e", "--fault", "none"],
        ["doctor", "dcgm", "nowhere"],
    ):
        completed = gpufleet(*arguments)
        assert completed.returncode == 2, arguments
        assert "nowhere" in completed.stderr or "wrong_magic" in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--faults", "half-claster@+5m"], "half-claster"),
        (["--faults", "cluster-off@+5m:c4"], "c4/n1/g0"),
        (["--faults", "gpu-lost@+5m:c1/n1/g8"], "c1/n1/g8"),
        (["--duration", "5 minutes"], "5 minutes"),
        (["--start", "yesterday"], "yesterday"),
        (["--start", "9999-12-31"], "9999-12-31"),
        (["--start", "1900-01-01T00:00:00Z"], "--start"),
        (["--faults", "lost-batches=-5@+5m"], "-5"),
        (["--hub", "nowhere", "--no-register"], "nowhere"),
        (["--clusters", "0"], "--clusters"),
    ],
)
def test_invalid_fleet_arguments_are_usage_errors(arguments: list[str], expected: str) -> None:
    completed = gpufleet("simulate", "fleet", *arguments)
    assert completed.returncode == 2
    assert expected in " ".join(completed.stderr.replace("\u2502", " ").split())


def test_fault_list_describes_each_fault() -> None:
    completed = gpufleet("simulate", "fleet", "--faults", "list").stdout
    for kind, row in FAULTS.items():
        assert kind in completed
        assert row.effect in completed
        assert row.expected in completed
        assert all(rule in completed for rule in row.findings)


def test_unreachable_hub_is_reported() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    completed = gpufleet("simulate", "fleet", "--hub", url, "--once")
    assert completed.returncode == 1
    assert url in completed.stderr


def test_unreachable_hub_is_retried_until_the_limit() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    small = ("--clusters", "1", "--nodes", "2", "--json")
    completed = gpufleet("simulate", "fleet", "--hub", url, "--no-register", "--once", "--give-up-after", "6s", *small)
    assert completed.returncode == 1
    assert url in completed.stderr
    summary = msgspec.json.decode(completed.stdout)
    assert (summary["made"], summary["waiting"], summary["stalled_seconds"] >= 6) == (2, 2, True)
