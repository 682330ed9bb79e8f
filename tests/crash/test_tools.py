"""Tools of the crash suite: schedule, links, transcripts, shim and disks."""

import http.client
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import pytest

from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, pack
from tests.crash.disk import MIB, Disk, Limited, Tmpfs, may_mount
from tests.crash.faults import FAULTS
from tests.crash.proxy import Exchange, Link, Mode, Network
from tests.crash.schedule import choose, schedule
from tests.crash.shim.shim import Shim
from tests.crash.transcript import Posted, posted
from tests.support.waiting import wait_until

NAMES = list(FAULTS)


def first_steps(seed: int, count: int) -> list[tuple[object, ...]]:
    steps = islice(schedule(NAMES, seed), count)
    return [(step.fault, step.gap, step.share, step.companion, step.chance.random()) for step in steps]


def test_schedule_is_reproducible_and_contains_every_fault() -> None:
    assert first_steps(7, 200) == first_steps(7, 200)
    assert first_steps(7, 200) != first_steps(8, 200)
    assert sorted(step[0] for step in first_steps(7, len(NAMES))) == sorted(NAMES)  # type: ignore[type-var]


def test_faults_are_chosen_by_pattern() -> None:
    assert choose(NAMES, ["kill hub"]) == ["kill hub"]
    assert choose(NAMES, []) == NAMES
    with pytest.raises(ValueError, match="'flood'"):
        choose(NAMES, ["kill *", "flood"])


class Server(ThreadingHTTPServer):
    """Server that records POST bodies and responds with their length."""

    daemon_threads = True
    seen: list[bytes]

    def handle_error(self, *_: object) -> None: ...  # broken connections are expected


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append(content)
        answer = str(len(content)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.seen = []
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


def post(link: Link, content: bytes, timeout: float = 10) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", link.port, timeout=timeout)
    try:
        connection.request("POST", "/v1/batches", content, {"Content-Type": "application/vnd.gpufleet.batch"})
        return connection.getresponse().read()
    finally:
        connection.close()


def test_link_passes_and_records_traffic(network: Network, server: Server) -> None:
    link = network.link(server.server_port, record=True)
    assert post(link, b"abc") == b"3"
    wait_until(lambda: posted(link.exchanges) == [Posted(b"abc", 200)], what="the transcript")


def test_cut_link_passes_nothing(network: Network, server: Server) -> None:
    link = network.link(server.server_port)
    network.set_mode(link, Mode.CUT)
    with pytest.raises((OSError, http.client.HTTPException)):
        post(link, b"abc")
    assert server.seen == []
    network.set_mode(link, Mode.PASS)
    assert post(link, b"abc") == b"3"


def test_cut_resets_open_connections(network: Network, server: Server) -> None:
    link = network.link(server.server_port)
    connection = http.client.HTTPConnection("127.0.0.1", link.port, timeout=10)
    connection.request("POST", "/", b"abc")
    assert connection.getresponse().read() == b"3"
    network.set_mode(link, Mode.CUT)
    with pytest.raises(ConnectionResetError):
        connection.sock.recv(1)
    connection.close()


def test_stalled_link_delivers_after_the_stall(network: Network, server: Server) -> None:
    link = network.link(server.server_port)
    network.set_mode(link, Mode.STALL)
    with pytest.raises(TimeoutError):
        post(link, b"abc", timeout=0.2)
    assert server.seen == []
    network.set_mode(link, Mode.PASS)
    wait_until(lambda: server.seen == [b"abc"], what="the late request")


@pytest.mark.parametrize("mode", [Mode.LOSE_ANSWERS, Mode.HALF_CLOSE])
def test_response_is_lost_after_delivery(network: Network, server: Server, mode: Mode) -> None:
    link = network.link(server.server_port, record=True)
    network.set_mode(link, mode)
    with pytest.raises((OSError, http.client.HTTPException)):
        post(link, b"abc")
    assert server.seen == [b"abc"]
    wait_until(lambda: posted(link.exchanges) == [Posted(b"abc", 200)], what="the response in the transcript")


def test_slow_link_delivers_complete_data(network: Network, server: Server) -> None:
    link = network.link(server.server_port)
    network.set_mode(link, Mode.SLOW)
    content = bytes(range(256)) * 20
    assert post(link, content) == str(len(content)).encode()
    assert server.seen == [content]


def request(content: bytes, content_type: str) -> bytes:
    return b"POST /v1/batches HTTP/1.1\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (
        content_type.encode(),
        len(content),
        content,
    )


def answer(status: int, content: bytes) -> bytes:
    return b"HTTP/1.1 %d Text\r\ncontent-length: %d\r\n\r\n%s" % (status, len(content), content)


def test_transcript_pairs_each_body_with_its_answer() -> None:
    exchange = Exchange()
    exchange.request += request(b"one", "x/batch") + request(pack([b"two", b"three"]), BUNDLE_CONTENT_TYPE)
    exchange.request += request(b"four", "x/batch") + request(b"five", "x/batch")[:-1]
    exchange.response += answer(503, b"{}")
    exchange.response += answer(200, b'{"answers": [{"status": 200}, {"status": 503}]}')
    exchange.response += answer(200, b'{"status": "accepted"}')[:-1]
    assert posted([exchange]) == [Posted(b"one", 503), Posted(b"two", 200), Posted(b"three", 503), Posted(b"four", 0)]


CLOCKS = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


def test_shim_steps_the_wall_clock_only(tmp_path: Path) -> None:
    shim = Shim(tmp_path / "control")
    child = subprocess.Popen(
        [sys.executable, "-c", CLOCKS], env=shim.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        for offset in (0.0, 3600.0, -7200.5, 0.0):
            shim.set_clock(offset)
            assert shim.clock_offset == offset
            child.stdin.write("\n")
            child.stdin.flush()
            wall, steady = map(float, child.stdout.readline().split())
            assert wall - time.time() == pytest.approx(offset, abs=5)
            assert steady == pytest.approx(time.monotonic(), abs=5)


SYNC = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
try:
    os.fsync(fd)
    os.fdatasync(fd)
except OSError as error:
    sys.exit(error.errno)
"""


def sync(shim: Shim, path: Path) -> int:
    return subprocess.run([sys.executable, "-c", SYNC, path], env=shim.environment, check=False).returncode


def test_syncs_below_a_folder_fail_and_no_others(tmp_path: Path) -> None:
    shim = Shim(tmp_path / "control")
    (tmp_path / "bad").mkdir()
    shim.disturb_syncs(tmp_path / "bad", error=5)
    assert sync(shim, tmp_path / "bad" / "file") == 5
    assert sync(shim, tmp_path / "file") == 0
    shim.disturb_syncs(tmp_path / "bad", error=5, every=3)
    assert sync(shim, tmp_path / "bad" / "file") == 0
    shim.reset()
    assert sync(shim, tmp_path / "bad" / "file") == 0


def test_process_dies_at_the_requested_sync(tmp_path: Path) -> None:
    shim = Shim(tmp_path / "control")
    codes = []
    for number in (1, 2, 3):
        shim.die_at_sync(tmp_path, number)
        codes.append(sync(shim, tmp_path / "file"))
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]


CHANGES = """
import os, sys
os.chdir("/")
folder = sys.argv[1]
fd = os.open(f"{folder}/tmp_one", os.O_CREAT | os.O_WRONLY)
os.write(fd, b"x")
os.rename(f"{folder}/tmp_one", f"{folder}/one")
os.write(fd, b"y")
os.unlink(f"{folder}/one")
"""


def test_process_dies_before_the_requested_step(tmp_path: Path) -> None:
    shim, folder = Shim(tmp_path / "control"), tmp_path / "folder"

    def change(step: int, skipped: str, counted: str = "") -> tuple[int, list[str], list[str]]:
        folder.mkdir()
        shim.die_before(folder, step, skipped=skipped, counted=counted)
        command = [sys.executable, "-c", CHANGES, str(folder)]
        done = subprocess.run(command, env=shim.environment, capture_output=True, text=True, check=False)
        left = sorted(path.name for path in folder.iterdir())
        shutil.rmtree(folder)
        return done.returncode, [line.replace(f"{folder}/", "") for line in done.stderr.splitlines()], left

    killed = -signal.SIGKILL
    steps = ["step open tmp_one", "step write tmp_one", "step rename to one", "step write one", "step unlink one"]
    assert change(3, "") == (killed, steps[:3], ["tmp_one"])
    assert change(5, "") == (killed, steps, ["one"])
    assert change(6, "") == (0, steps, [])
    assert change(1, "tmp_") == (killed, steps[2:3], ["tmp_one"])
    assert change(2, "", counted="write ") == (killed, [steps[1], steps[3]], ["one"])
    assert change(1, "", counted="rename to one") == (killed, steps[2:3], ["tmp_one"])


WRITER = """
import sys
for path in sys.stdin:
    try:
        with open(path.strip(), "ab") as file:
            file.write(bytes(100_000))
        print("written", flush=True)
    except OSError as error:
        print("refused", flush=True)
"""


@pytest.fixture(params=["tmpfs", "limited"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "tmpfs" and not may_mount():
        pytest.skip("no permission to mount: full disks are simulated with file size limits")
    made: Disk = Tmpfs(tmp_path / "disk", 4 * MIB) if request.param == "tmpfs" else Limited(tmp_path / "disk")
    made.open()
    yield made
    made.close()


def test_full_disk_rejects_writers_until_it_is_freed(disk: Disk) -> None:
    def writer() -> subprocess.Popen[str]:
        command = [*disk.launcher(), sys.executable, "-c", WRITER]
        child = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        disk.watch(child.pid)
        return child

    def write(child: subprocess.Popen[str]) -> str:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{disk.folder}/file\n")
        child.stdin.flush()
        return child.stdout.readline().strip()

    with writer() as first:
        assert write(first) == "written"
        disk.fill()
        assert write(first) == "refused"
        with writer() as second:
            assert write(second) == "refused"
            disk.free()
            assert [write(first), write(second)] == ["written", "written"]
