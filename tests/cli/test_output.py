"""Output on a terminal: width, and repetition with `--watch`."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.cli.output import escape_controls, repeat
from tests.fakes.batches import body
from tests.support.waiting import PATIENCE, wait_until_async
from tests.web.hub.site import Site, now, running_site


class Terminal:
    """Command on a pseudo-terminal of 80 columns."""

    def __init__(self, *arguments: str) -> None:
        main, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        command = [sys.executable, "-m", "gpufleet.cli.main", *arguments]
        self.process = subprocess.Popen(
            command, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True
        )
        os.close(child)
        os.set_blocking(main, False)
        self._main = main
        self._text = b""

    @property
    def text(self) -> str:
        """What the command wrote until now."""
        with contextlib.suppress(BlockingIOError, OSError):
            while chunk := os.read(self._main, 65_536):
                self._text += chunk
        return self._text.decode().replace("\r\n", "\n")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20 * PATIENCE)
        os.close(self._main)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for one in started:
        one.close()


async def filled(site: Site) -> tuple[str, str]:
    await site.post(body(1, now(), last_error="a long error of the driver " * 20))
    return "--hub", site.hub.url


async def test_tables_fit_a_terminal(tmp_path: Path, terminals: list[Terminal]) -> None:
    async with running_site(tmp_path) as site:
        hub = await filled(site)
        for command in ("nodes", "gpus", "machines", "senders", "fleet"):
            terminal = Terminal("query", command, *hub)
            terminals.append(terminal)

            async def is_done(one: Terminal = terminal) -> bool:
                return one.process.poll() is not None

            await wait_until_async(is_done, what="the command to end")
            lines = re.sub(r"\x1b\[\d*m", "", terminal.text).splitlines()
            assert (terminal.process.returncode, len(lines) > 1) == (0, True), lines
            assert max(map(len, lines)) <= 80, lines


async def test_watch_repeats_until_interrupted(tmp_path: Path, terminals: list[Terminal]) -> None:
    async with running_site(tmp_path) as site:
        terminal = Terminal("query", "nodes", "--watch", "1s", *await filled(site))
        terminals.append(terminal)

        async def repeated() -> bool:
            return terminal.text.count("node-a") >= 3

        await wait_until_async(repeated, what="the table to be repeated")
        assert terminal.text.count("\x1b[H\x1b[2J") >= 3
        terminal.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(terminal.process.wait, 20 * PATIENCE) == 130  # the hub runs on this loop
        assert "Traceback" not in terminal.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_in_a_finalizer_ends_the_watch() -> None:
    """Python drops the KeyboardInterrupt there."""
    runs = 0

    class Released:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def action() -> None:
        nonlocal runs
        runs += 1
        assert runs == 1
        Released()

    earlier = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        repeat(action, "1s")
    assert signal.getsignal(signal.SIGINT) is earlier


async def test_watch_continues_after_a_failure(tmp_path: Path, terminals: list[Terminal]) -> None:
    async with running_site(tmp_path) as site:
        terminal = Terminal("query", "nodes", "--watch", "1s", *await filled(site))
        terminals.append(terminal)

        async def shown() -> bool:
            return "node-a" in terminal.text

        await wait_until_async(shown, what="the first table")

    async def failed() -> bool:
        return terminal.text.count("gpufleet: cannot query") >= 2

    await wait_until_async(failed, what="two failures")
    assert terminal.process.poll() is None


def test_json_has_no_characters_that_control_a_terminal() -> None:
    text = "".join(map(chr, (*range(0x20), *range(0x7F, 0x100), *range(0x61C, 0x61D), *range(0x2000, 0x2070), 0x1F600)))
    document = json.dumps({text: [text]}, ensure_ascii=False).encode()
    escaped = escape_controls(document)
    assert json.loads(escaped) == json.loads(document)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", escaped.decode())
    assert escape_controls(b'{"a": "\xc3\x9f \\" \\\\"}') == b'{"a": "\xc3\x9f \\" \\\\"}'
