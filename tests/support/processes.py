"""Real gpufleet processes on loopback."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.waiting import wait_until


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing listened on a moment ago.

    Not one of those that the kernel gives to outgoing connections (from 32768 on): a daemon that is killed and
    started again would now and then find its own taken.
    """
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def get_json(url: str, timeout: float = 10) -> Any:
    """GET and decode JSON; raises urllib's errors."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return json.load(answer)


def get_text(url: str, timeout: float = 10) -> str:
    """GET a text; raises urllib's errors."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        text: bytes = answer.read()
        return text.decode()


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        get_text(url, timeout=2)
    except (urllib.error.URLError, OSError):
        return False
    return True


class Gpufleet:
    """A `gpufleet ...` process; its output goes to a file that failures quote.

    A launcher is a command that becomes the one whose words follow its own.
    """

    def __init__(
        self, arguments: Sequence[str], log: Path, env: Mapping[str, str] | None = None, launcher: Sequence[str] = ()
    ) -> None:
        self.log = log
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [*launcher, sys.executable, "-m", "gpufleet.cli.main", *arguments],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_for(self, url: str, seconds: float = 40) -> None:
        """Wait until `url` answers 200; fails with the log if the process ends first."""

        def ready() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log.read_text()}"
            return answers(url)

        wait_until(ready, seconds=seconds, what=f"{url} to answer; log:\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """End it as a power cut would: SIGKILL to the whole session."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=20)

    def stop(self, seconds: float = 20) -> int:
        """Ask it to stop, as a service manager would, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds)
