"""`gpufleet record` as a process: from an agent and from the readers of this host."""

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.snapshot_json import encode_snapshot
from tests.fakes.nvml.driver import FakeNvml
from tests.support.command import gpufleet
from tests.support.processes import Gpufleet
from tests.support.recordings import frames_of, snapshots_of
from tests.support.snapshots import held_snapshot
from tests.support.waiting import wait_until

Pages = dict[str, tuple[int, bytes]]


def has_frames(path: Path, count: int = 1) -> bool:
    return path.exists() and path.stat().st_size > 40 and len(frames_of(path)) >= count


def test_frames_of_an_agent_continue_after_its_failure(agent_pages: Pages, agent_url: str, tmp_path: Path) -> None:
    path, page = tmp_path / "r", agent_pages["/v1/snapshot"]
    began = time.time_ns()
    with Gpufleet(["record", str(path), "--agent", agent_url], tmp_path / "log") as recorder:
        wait_until(lambda: has_frames(path))
        agent_pages["/v1/snapshot"] = (503, b'{"detail":"not yet"}')
        wait_until(lambda: "503" in (tmp_path / "log").read_text())
        before = len(frames_of(path))
        agent_pages["/v1/snapshot"] = (200, encode_snapshot(held_snapshot()))
        wait_until(lambda: has_frames(path, before + 1))
        assert recorder.stop() == 0
    snapshots = snapshots_of(path)
    assert encode_snapshot(snapshots[0]) == page[1]
    assert snapshots[-1] == held_snapshot()
    assert all(began <= one.at <= time.time_ns() for one in frames_of(path))


@pytest.fixture
def counting_agent() -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of an agent whose snapshots are numbered by their version, and the versions that were requested."""
    requested: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(str(len(requested) + 1))
            body = encode_snapshot(msgspec.structs.replace(held_snapshot(), version=requested[-1]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", requested
        server.shutdown()
        thread.join()


def test_killed_recorder_loses_at_most_the_last_frame(counting_agent: tuple[str, list[str]], tmp_path: Path) -> None:
    (url, requested), path = counting_agent, tmp_path / "r"
    with Gpufleet(["record", str(path), "--agent", url], tmp_path / "log") as recorder:
        wait_until(lambda: len(requested) >= 3, what="the third poll")
        recorder.kill()  # in or after the third frame
    versions = [one.version for one in snapshots_of(path)]
    assert versions in (requested, requested[:-1])
    done = gpufleet("record", str(path), "--agent", url, "--duration", "1s")
    assert done.returncode == 0
    assert [one.number for one in frames_of(path)][: len(versions) + 1] == list(range(1, len(versions) + 2))
    assert [one.version for one in snapshots_of(path)][: len(versions)] == versions


def test_readers_of_this_host_are_recorded(fake: FakeNvml, tmp_path: Path) -> None:
    path = tmp_path / "r"
    with Gpufleet(["record", str(path)], tmp_path / "log", env=fake.environment) as recorder:
        wait_until(lambda: has_frames(path, 2))
        assert recorder.stop() == 0
    first, second = snapshots_of(path)[:2]
    assert [device.readings["gpu_temperature_celsius"].value for device in first.devices] == [
        31 + index for index in range(8)
    ]
    assert second.measured_at > first.measured_at


def test_unreachable_agent_is_an_error(tmp_path: Path) -> None:
    done = gpufleet("record", str(tmp_path / "r"), "--agent", "http://127.0.0.1:1")
    assert done.returncode == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--every", "0s"],
        ["--every", "fast"],
        ["--rotate", "1"],
        ["--rotate", "1KiB"],
        ["--keep", "3"],
        ["--duration", "-1s"],
    ],
)
def test_wrong_option_is_a_usage_error(options: list[str], tmp_path: Path) -> None:
    done = gpufleet("record", str(tmp_path / "r"), *options)
    assert done.returncode == 2
    assert not (tmp_path / "r").exists()
