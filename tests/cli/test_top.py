"""`gpufleet top` as a process: one frame as text, and the screen in a pseudo-terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.api.answer import AnswerDevice, GpuPage, GpuRecord
from gpufleet.model.reading import Provenance
from tests.fakes.nvml.driver import FakeNvml
from tests.support.command import gpufleet
from tests.support.hostile import CONTROLS, with_hostile_texts
from tests.support.observed import AT, devices, node_snapshot
from tests.support.recordings import write_recording
from tests.support.waiting import PATIENCE

Pages = dict[str, tuple[int, bytes]]


@pytest.fixture
def agent(agent_pages: Pages, agent_url: str) -> str:
    """Return the URL of an agent on a node with all kinds of devices."""
    agent_pages["/v1/snapshot"] = (200, encode_snapshot(node_snapshot()))
    return agent_url


def test_frame_of_an_agent(agent: str) -> None:
    done = gpufleet("top", "--once", "--agent", agent)
    assert (done.returncode, done.stderr) == (0, "")
    golden = Path(__file__).parents[1] / "top" / "golden" / "overview-160.txt"
    assert done.stdout == golden.read_text()


def test_frame_of_a_page_and_a_filter(agent: str) -> None:
    done = gpufleet("top", "--once", "--agent", agent, "--page", "sums", "--filter", "alice")
    assert done.returncode == 0
    assert "alice" in done.stdout
    assert "ml/serve-0" not in done.stdout


def test_frame_of_this_host(fake: FakeNvml) -> None:
    done = gpufleet("top", "--once", env=fake.environment)
    assert done.returncode == 0
    assert done.stdout.count("H200") == 8


def test_frame_of_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write_recording(path, [encode_snapshot(node_snapshot(f"frame-{number}")) for number in range(10)])
    for options, title in (([], "frame-0"), (["--at", "2s"], "frame-7"), (["--at", "2026-01-01T00:00:04Z"], "frame-4")):
        done = gpufleet("top", "--once", "--replay", str(path), *options)
        assert (done.returncode, done.stdout.split()[0]) == (0, title)


def test_frame_of_a_hub(agent_pages: Pages, agent_url: str) -> None:
    records = tuple(
        GpuRecord(
            cluster="c",
            node="node-a",
            index=device.index,
            device=AnswerDevice(
                id=f"c/m/{device.key}",
                machine="m",
                kind=device.kind,
                side=device.side,
                uuid=device.uuid,
                parent=device.parent,
                name=device.name,
                source=Provenance.HOST_LOCAL_PROBE,
                readings=device.readings,
            ),
            measured_at=AT,
            received_at=AT,
            age_seconds=1.0,
            holders=device.holders,
        )
        for device in devices()
    )
    page = GpuPage(items=records, coverage=(), next=None)
    agent_pages["/v1/gpus?cluster=c&limit=1000"] = (200, msgspec.json.encode(page))
    done = gpufleet("top", "--once", "--hub", agent_url, "--cluster", "c", "--page", "devices")
    assert (done.returncode, done.stderr) == (0, "")
    assert "vGPU host sriov, scheduler fixed_share, ARR enabled, 2 instances" in done.stdout
    assert "machines 1, devices 8" in done.stdout


def test_hostile_agent_does_not_control_the_terminal(agent_pages: Pages, agent_url: str) -> None:
    agent_pages["/v1/snapshot"] = (200, encode_snapshot(with_hostile_texts(node_snapshot())))
    done = gpufleet("top", "--once", "--agent", agent_url)
    assert done.returncode == 0
    assert not CONTROLS & set(done.stdout)


@pytest.mark.parametrize(
    "options",
    [
        ["--agent", "http://a", "--hub", "http://b"],
        ["--cluster", "c"],
        ["--at", "5s"],
        ["--every", "0s"],
        ["--page", "x"],
    ],
)
def test_wrong_option_is_a_usage_error(options: list[str]) -> None:
    assert gpufleet("top", "--once", *options).returncode == 2


@pytest.mark.parametrize(
    "options", [["--agent", "http://127.0.0.1:1"], ["--hub", "http://127.0.0.1:1"], ["--replay", "/nowhere"]]
)
def test_unreachable_source_is_an_error(options: list[str]) -> None:
    done = gpufleet("top", "--once", *options)
    assert (done.returncode, done.stdout) == (1, "")


def test_screen_needs_a_terminal(agent: str) -> None:
    assert gpufleet("top", "--agent", agent).returncode == 1


def read_until(terminal: int, text: bytes) -> bytes:
    """Return what the terminal shows, up to a text."""
    shown, end = b"", time.monotonic() + 30 * PATIENCE
    while text not in shown:
        assert time.monotonic() < end, shown[-2000:]
        shown += os.read(terminal, 65536)
    return shown


def test_screen_in_a_terminal_opens_and_quits(agent: str) -> None:
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "gpufleet.cli.main", "top", "--agent", agent]
    with subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=environment) as process:
        os.close(side)
        read_until(terminal, b"fixed_share")
        os.write(terminal, b"?")
        read_until(terminal, b"next sort order")
        os.write(terminal, b"q")
        read_until(terminal, b"\x1b[?1049l")  # leaves the alternate screen
        assert process.wait(30 * PATIENCE) == 0
    os.close(terminal)
