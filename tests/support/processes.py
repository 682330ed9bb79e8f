"""Real gpufleet processes on loopback."""

import contextlib
import functools
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

from tests.support import forking
from tests.support.waiting import PATIENCE, wait_until

_given: set[int] = set()


@functools.cache
def fork_server() -> forking.Server:
    """Return the fork server of this test process. The first call starts it."""
    return forking.Server()


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1 that no other call returned.

    Ports from 32768 on are excluded, because the kernel uses them for outgoing connections: a killed daemon could
    find its own port taken at its restart. Each worker of pytest-xdist has its own range, because a port stays free
    until its daemon has started.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = 17_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = 15_000 + ports * worker + secrets.randbelow(ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


def get_json(url: str, timeout: float = 10 * PATIENCE) -> Any:
    """GET and decode JSON; raises urllib's errors."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return json.load(answer)


def get_text(url: str, timeout: float = 10 * PATIENCE) -> str:
    """GET a text; raises urllib's errors."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        text: bytes = answer.read()
        return text.decode()


def answers(url: str) -> bool:
    """Return whether a GET of `url` returns 200."""
    try:
        get_text(url, timeout=5 * PATIENCE)
    except (urllib.error.URLError, OSError):
        return False
    return True


class Gpufleet:
    """Process of `gpufleet ...`. Its output goes to a file that failures quote.

    A launcher is a command line that executes the arguments appended to it.
    """

    is_forked = False
    """Whether processes may be forked from a server that has imported their modules. Benchmarks leave it unset."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        launcher: Sequence[str] = (),
        *,
        own_interpreter: bool = False,
    ) -> None:
        """Start the process. `own_interpreter` prevents a fork, for tests of a start or of memory."""
        self.log = log
        environment = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes] | forking.Process
        with log.open("ab") as sink:
            if self.is_forked and not own_interpreter and not launcher and forking.can_fork(environment):
                self.process = fork_server().start(arguments, environment, sink, sink)
            else:
                self.process = subprocess.Popen(
                    [*launcher, sys.executable, "-m", "gpufleet.cli.main", *arguments],
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_for(self, url: str, seconds: float = 40) -> None:
        """Wait until `url` returns 200. Fail with the log if the process ends first."""

        def ready() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log.read_text()}"
            return answers(url)

        wait_until(ready, seconds=seconds, what=f"{url} to answer; log:\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """Kill the whole session with SIGKILL, as a power failure would."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=20 * PATIENCE)

    def stop(self, seconds: float = 20) -> int:
        """Send SIGTERM, as a service manager would, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds * PATIENCE)
