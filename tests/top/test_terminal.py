"""`gpufleet top` in a real terminal (tmux): keys, sizes, recordings, and an agent that ends and comes back."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.snapshot_json import encode_snapshot
from tests.support.golden import check_golden
from tests.support.observed import node_snapshot
from tests.support.peers import environment
from tests.support.processes import Gpufleet, free_port
from tests.support.recordings import write_recording
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

GOLDEN = Path(__file__).parent / "golden" / "terminal-80x24.txt"
GPUS = 800


class Terminal:
    """Terminal of tmux, 80 by 24, in which `gpufleet top` runs. The server of tmux is its own."""

    def __init__(self, tmux: Path, folder: Path, *arguments: object) -> None:
        self._command = [str(tmux), "-u", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self._env = {**os.environ, **environment("tmux"), "LC_ALL": "C.UTF-8", "TERM": "screen"}
        self._folder = folder
        top = shlex.join([sys.executable, "-m", "gpufleet.cli.main", "top", *map(str, arguments)])
        ending = f"{top}; echo $? >{shlex.quote(str(folder / 'code'))}"
        self._tmux("new-session", "-d", "-x", "80", "-y", "24", ending)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run([*self._command, *arguments], env=self._env, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "no server" in done.stderr, done.stderr
        return done.stdout

    def press(self, *keys: str) -> None:
        """Press keys, by the names of tmux."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the terminal."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    @property
    def screen(self) -> str:
        """Text of the screen."""
        return self._tmux("capture-pane", "-p")

    def wait_for(self, *texts: str, without: str = "\0") -> str:
        """Wait until the screen has all of these texts, and return it."""
        shown = ""

        def has_all() -> bool:
            nonlocal shown
            shown = self.screen
            return all(text in shown for text in texts) and without not in shown

        try:
            wait_until(has_all, seconds=5, what=f"{texts} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen has:\n{shown}") from error
        return shown

    def quit(self) -> int:
        """Press q and return the exit code."""
        self.press("q")
        code = self._folder / "code"
        wait_until(lambda: code.exists() and code.read_text().strip(), what="top to end")
        return int(code.read_text())

    def kill(self) -> None:
        """End the server of tmux, and with it the command."""
        self._tmux("kill-server")


@pytest.fixture
def open_terminal(peer: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Return a function that runs `gpufleet top` with arguments in a terminal."""
    opened: list[Terminal] = []

    def run(*arguments: object) -> Terminal:
        opened.append(Terminal(peer("tmux"), tmp_path, *arguments))
        return opened[-1]

    yield run
    for one in opened:
        one.kill()


def test_replay_is_drawn_and_driven_by_keys(open_terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    write_recording(tmp_path / "node.rec", [encode_snapshot(node_snapshot())] * 3)
    terminal = open_terminal("--replay", tmp_path / "node.rec", "--at", "2026-01-01T00:00:02Z")
    frame = terminal.wait_for("1x, end", "by memory")
    check_golden(GOLDEN, frame.encode())
    terminal.press("Space")
    terminal.wait_for("paused, end")
    terminal.press("Left")
    terminal.wait_for("00:00:00 UTC, paused")
    terminal.press("6")
    terminal.wait_for("NUMA")
    terminal.press("?")
    terminal.wait_for("Keys", "quit")
    terminal.press("Escape")
    terminal.wait_for("NUMA")
    terminal.press("2")
    terminal.press("f")
    terminal.wait_for("\nfilter")  # the prompt has the focus
    terminal.press("-l", "MIG")
    terminal.press("Enter")
    terminal.wait_for("MIG 3g.71gb", without="L40S")
    terminal.press("Escape")
    terminal.wait_for("L40S")
    terminal.resize(160, 30)
    terminal.wait_for("GPU-")  # the UUIDs
    terminal.resize(60, 12)
    terminal.wait_for("H200", without="GPU-")
    assert max(map(len, terminal.screen.splitlines())) <= 60
    assert terminal.quit() == 0


def test_eight_hundred_gpus_scroll(open_terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    snapshot = node_snapshot()
    first = next(one for one in snapshot.devices if one.kind == "gpu")
    devices = tuple(
        msgspec.structs.replace(first, key=f"gpu/GPU-{number}", uuid=f"GPU-{number}", index=number)
        for number in range(GPUS)
    )
    write_recording(tmp_path / "node.rec", [encode_snapshot(msgspec.structs.replace(snapshot, devices=devices))])
    terminal = open_terminal("--replay", tmp_path / "node.rec", "--page", "devices")
    terminal.wait_for(f"GPUs    {GPUS},", "\n0 ")
    terminal.press("End")
    terminal.wait_for(f"\n{GPUS - 1} ")
    terminal.press("Home")
    terminal.wait_for("\n0 ")
    assert terminal.quit() == 0


def test_agent_that_ends_keeps_the_last_frame(open_terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    port = free_port()
    arguments = ["simulate", "exporter", "--gpus", "2", "--listen", f"127.0.0.1:{port}"]
    with Gpufleet(arguments, tmp_path / "log") as agent:
        agent.wait_for(f"http://127.0.0.1:{port}/readyz")
        terminal = open_terminal("--agent", f"http://127.0.0.1:{port}")
        before = terminal.wait_for("GPUs    2,")
        agent.kill()
        after = terminal.wait_for("no new data", "s ago")
        assert rows(after) == rows(before)
    with Gpufleet(arguments, tmp_path / "log") as agent:
        terminal.wait_for("GPUs    2,", without="no new data")
        assert terminal.quit() == 0


def rows(screen: str) -> list[str]:
    """Return number and name of each GPU on a screen."""
    return re.findall(r"^\d+ +\S+", screen, re.MULTILINE)
