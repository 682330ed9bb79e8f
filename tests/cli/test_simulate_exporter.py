"""`gpufleet simulate exporter` as a process."""

import asyncio
from pathlib import Path

import pytest

from gpufleet.agent.publish.pages import PageForm
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.single_node import single_node
from gpufleet.wiring.simulated_exporter import SimulatedExporter
from tests.support.command import gpufleet
from tests.support.processes import Gpufleet, free_port, get_text

START = 1_767_225_600 * NANOS
TIME = "2026-01-01T00:00:00Z"


def test_served_page_depends_on_seed_and_start_only(tmp_path: Path) -> None:
    port = free_port()
    options = ["--dialect", "all-smi", "--gpus", "2", "--vgpus", "4", "--mig", "--seed", "5"]
    timing = ["--start", TIME, "--interval", "600", "--listen", f"127.0.0.1:{port}"]
    with Gpufleet(["simulate", "exporter", *options, *timing], tmp_path / "log") as process:
        process.wait_for(f"http://127.0.0.1:{port}/readyz")
        page = get_text(f"http://127.0.0.1:{port}/metrics")
        assert process.stop() == 0
    expected = SimulatedExporter(single_node(seed=5, gpus=2, vgpus=4, mig=True), "all-smi", START, 600)
    assert page == asyncio.run(expected.page(PageForm())).decode()
    assert f"http://127.0.0.1:{port}/metrics" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--dialect", "nvitop"], "--dialect"),
        (["--listen", "nowhere"], "--listen"),
        (["--start", "yesterday"], "--start"),
        (["--gpus", "17"], "--gpus"),
        (["--vgpus", "33"], "--vgpus"),
        (["--mig", "--seed", "3"], "L40S"),
        (["--faults", "node-off@+5s"], "node-off"),
        (["--faults", "gpu-lost@+5s:c1/n1/g8"], "c1/n1/g8"),
    ],
)
def test_invalid_exporter_arguments_are_usage_errors(arguments: list[str], expected: str) -> None:
    done = gpufleet("simulate", "exporter", *arguments)
    assert done.returncode == 2
    assert expected in " ".join(done.stderr.replace("\u2502", " ").split())


def test_address_in_use_is_reported(tmp_path: Path) -> None:
    port = free_port()
    listen = ["--listen", f"127.0.0.1:{port}"]
    with Gpufleet(["simulate", "exporter", *listen], tmp_path / "log") as process:
        process.wait_for(f"http://127.0.0.1:{port}/readyz")
        done = gpufleet("simulate", "exporter", *listen)
        assert (done.returncode, f"127.0.0.1:{port}" in done.stderr) == (1, True)
