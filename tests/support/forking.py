"""Server that has imported the command line and forks for each command.

A command then takes the time of its work without the second of its imports. It is a separate process with its own
environment, arguments, streams and exit code.
"""

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
PRELOADED = ("gpufleet.registry.database", "gpufleet.registry.tokens")
"""Modules that commands import at run time, besides those of `gpufleet.cli`."""


class Server:
    """Client side in the tests: starts the server process, which ends with the process that started it."""

    def __init__(self) -> None:
        self._socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._sending = threading.Lock()
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forking", str(far.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
            )

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], stdout: IO[str], stderr: IO[str], seconds: float
    ) -> int:
        """Run a command to its end and return its exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: if it runs longer; it is killed.
        """
        request = json.dumps({"arguments": arguments, "env": dict(env), "folder": str(Path.cwd())}).encode()
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb", buffering=0) as status:
            with os.fdopen(writing, "wb"), self._sending:
                socket.send_fds(self._socket, [request], [stdout.fileno(), stderr.fileno(), writing])
            report = b""
            deadline = time.monotonic() + seconds
            while report.count(b"\n") < 2:
                if not select.select([status], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    os.kill(int(report), signal.SIGKILL)
                    raise subprocess.TimeoutExpired(list(arguments), seconds)
                part = status.read(64)
                assert part, f"the server ended with {self._process.poll()}"
                report += part
        return int(report.split()[1])


def _serve(connection: socket.socket) -> None:
    """Fork for each request. Return in the child that has to run the command, with its streams in place."""
    while True:
        request, (stdout, stderr, status), _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if os.fork() == 0:
            break
        for descriptor in (stdout, stderr, status):
            os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.close()
    if pid := os.fork():
        os.write(status, b"%d\n" % pid)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(status)
    for descriptor, target in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, target)
        os.close(descriptor)
    command = json.loads(request)
    os.environ.clear()
    os.environ.update(command["env"])
    time.tzset()
    os.chdir(command["folder"])
    sys.argv = ["gpufleet", *command["arguments"]]


if __name__ == "__main__":
    import typer

    from gpufleet import cli
    from gpufleet.cli.app import app
    from gpufleet.cli.main import main

    for module in pkgutil.iter_modules(cli.__path__, "gpufleet.cli."):
        importlib.import_module(module.name)
    for name in PRELOADED:
        importlib.import_module(name)
    typer.main.get_command(app)  # triggers typer's lazy imports
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        _serve(socket.socket(fileno=int(sys.argv[1])))
    except (ValueError, ConnectionError):  # no descriptors: the test process has ended
        sys.exit()
    main()
