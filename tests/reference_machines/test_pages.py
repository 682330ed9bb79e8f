"""Metrics page of each reference machine: golden file, and valid in both syntaxes."""

import asyncio
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.delivery.export import AgentStats
from gpufleet.exporters.agent_page import DIALECT_WRITERS
from tests.reference_machines.machines import (
    H200_BUSES,
    NO_SUPPORTED_GPU,
    ReferenceMachine,
    h200s,
    tree,
    without_display_controllers,
)
from tests.support.golden import check_golden
from tests.support.openmetrics import check_by_promtool, openmetrics_series, text_series
from tests.support.pages import agent_page

GOLDEN = Path(__file__).parent / "golden"

_THIS_DISK = re.compile(rb"^(gpufleet_host_filesystem_\w+\{.*\} )\d+$", re.MULTILINE)
"""Values of the disk that the tests run on."""


def h200_host(folder: Path) -> ReferenceMachine:
    return ReferenceMachine(folder, tree("bare_metal"), **h200s(H200_BUSES))


def slice_guest(folder: Path) -> ReferenceMachine:
    return ReferenceMachine(folder, tree("guest"), **h200s(("06",)))


def cpu_only(folder: Path) -> ReferenceMachine:
    machine = ReferenceMachine(folder, without_display_controllers(tree("guest")))
    machine.smi.remove()
    return machine


def broken_driver(folder: Path) -> ReferenceMachine:
    machine = ReferenceMachine(folder, tree("kubevirt_node"))
    machine.smi.fault(stdout=NO_SUPPORTED_GPU, code=255)
    return machine


MACHINES = {"h200-host": h200_host, "slice-guest": slice_guest, "cpu-only": cpu_only, "broken-driver": broken_driver}


@pytest.fixture(params=MACHINES)
def page(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, bytes, bytes]:
    """Return the machine name and its page in text and OpenMetrics syntax."""
    snapshot = asyncio.run(MACHINES[request.param](tmp_path).snapshot())
    stats, dialects = AgentStats(started_at=0, lanes={}), ("gpufleet", "dcgm-exporter", *DIALECT_WRITERS)
    text = agent_page(snapshot, stats, dialects)
    return request.param, text, agent_page(snapshot, stats, dialects, openmetrics=True)


def test_page_matches_the_golden_file(page: tuple[str, bytes, bytes]) -> None:
    name, text, _ = page
    ours = b"".join(line for line in text.splitlines(keepends=True) if b"gpufleet_" in line)
    check_golden(GOLDEN / f"{name}.txt", _THIS_DISK.sub(rb"\1N", ours))


def test_openmetrics_page_has_the_same_series(page: tuple[str, bytes, bytes]) -> None:
    _, text, openmetrics = page
    assert openmetrics_series(openmetrics) == text_series(text)


@pytest.mark.system
def test_promtool_accepts_both_syntaxes(
    page: tuple[str, bytes, bytes], peer: Callable[[str], Path], tmp_path: Path
) -> None:
    _, text, openmetrics = page
    ours = b"".join(line for line in text.splitlines(keepends=True) if b"gpufleet_" in line)
    done = subprocess.run([peer("promtool"), "check", "metrics"], input=ours, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    check_by_promtool(peer("promtool"), openmetrics, tmp_path)
