"""Server that has imported the command line and the daemons, and forks for each `gpufleet` process.

A process then takes the time of its work without the seconds of its imports. It is a separate process with its own
session, environment, arguments, streams and exit code.
"""

import atexit
import contextlib
import functools
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).parents[2]
PRELOADED = (
    *("gpufleet.registry.database", "gpufleet.registry.tokens", "gpufleet.wiring.agent", "gpufleet.wiring.hub"),
    *(
        "gpufleet.wiring.relay",
        "gpufleet.wiring.cluster",
        "gpufleet.web.cluster_app",
        "gpufleet.web.agent.app",
        "gpufleet.web.hub.app",
        "gpufleet.doctor.gather",
    ),
    *("anyio._backends._asyncio", "clickhouse_connect", "configparser", "httptools", "litestar.plugins.pydantic"),
    *("numpy", "pyarrow.compute", "pydantic.type_adapter", "sqlalchemy.dialects.sqlite", "uvicorn.config", "uvloop"),
    "yaml",
)
"""Modules that the processes import at run time, besides those of `gpufleet.cli`.

The embedded engine is not among them: its threads do not survive a fork.
"""

BEFORE_START = ("LD_PRELOAD", "PYTHON")
"""First characters of the variables that have an effect only at the start of an interpreter."""


def can_fork(env: Mapping[str, str]) -> bool:
    """Return whether a process with this environment may be forked from a server with that of the tests."""

    def early(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if name.startswith(BEFORE_START)}

    return early(env) == early(os.environ)


class Process:
    """Process that the server forked, with the interface of `subprocess.Popen` as far as tests use it.

    Its process id is not reused before the exit code was read, as with a child process.
    """

    def __init__(self, arguments: Sequence[str], status: IO[bytes]) -> None:
        self.args = ["gpufleet", *arguments]
        self.returncode: int | None = None
        self._status = status
        self._ended = select.poll()  # unlike `select`, for any number of open files
        self._ended.register(status, select.POLLIN)
        self._reading = threading.Lock()
        self.pid = self._number()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit code.

        Raises:
            subprocess.TimeoutExpired: if it runs longer.
        """
        with self._reading:
            if self.returncode is None:
                if not self._ended.poll(None if timeout is None else max(0.0, 1000 * timeout)):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                self.returncode = self._number()
                self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal if the process is running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL if the process is running."""
        self.send_signal(signal.SIGKILL)

    def _number(self) -> int:
        line = self._status.readline()
        assert line, "the fork server has ended"
        return int(line)


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
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no threads before the fork
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
            )

    def start(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        stdout: IO[str] | IO[bytes],
        stderr: IO[str] | IO[bytes],
        *,
        exits_fast: bool = False,
    ) -> Process:
        """Start a process in a session of its own; see `_run_and_exit` for `exits_fast`."""
        command = {"arguments": list(arguments), "env": dict(env), "folder": str(Path.cwd()), "exits_fast": exits_fast}
        request = json.dumps(command).encode()
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb"), self._sending:
            socket.send_fds(self._socket, [request], [stdout.fileno(), stderr.fileno(), writing])
        return Process(arguments, os.fdopen(reading, "rb", buffering=0))

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], stdout: IO[str], stderr: IO[str], seconds: float
    ) -> int:
        """Run a command to its end and return its exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: if it runs longer; it is killed.
        """
        process = self.start(arguments, env, stdout, stderr, exits_fast=True)
        try:
            return process.wait(seconds)
        finally:
            process.kill()
            process.wait()


def _serve(connection: socket.socket) -> bool:
    """Fork for each request. Return its `exits_fast` in the child that has to run it, with its streams in place."""
    while True:
        request, (stdout, stderr, status), _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if os.fork() == 0:
            break
        for descriptor in (stdout, stderr, status):
            os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.close()
    if pid := os.fork():
        os.close(stdout)
        os.close(stderr)
        _report(pid, status)
    os.setsid()
    os.write(status, b"%d\n" % os.getpid())
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
    return bool(command["exits_fast"])


def _run_and_exit(main: Callable[[], NoReturn]) -> NoReturn:
    """Run a command and exit without releasing its modules, which takes longer than most commands."""
    try:
        main()
    except SystemExit as end:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


def _report(pid: int, status: int) -> NoReturn:
    """Write the exit code of a child, release its process id when the tests have read the code, and exit.

    If the tests end first, also by a signal, the child is killed.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # these can be sent to the whole process group of the tests
    child = os.pidfd_open(pid)
    running = select.poll()
    running.register(child, select.POLLIN)
    running.register(status, 0)
    if child not in dict(running.poll()):
        os.kill(pid, signal.SIGKILL)
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    with contextlib.suppress(BrokenPipeError):
        os.write(status, b"%d\n" % code)
    closing = select.poll()
    closing.register(status, 0)
    closing.poll()  # until the tests close their end of the pipe
    os.waitpid(pid, 0)
    os._exit(0)


if __name__ == "__main__":
    import typer

    from gpufleet import cli
    from gpufleet.cli.app import app
    from gpufleet.cli.main import main

    for module in pkgutil.iter_modules(cli.__path__, "gpufleet.cli."):
        importlib.import_module(module.name)
    for name in PRELOADED:
        importlib.import_module(name)
    # Each command would build the tree of all commands again, which takes longer than the rest of its start.
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        exits_fast = _serve(socket.socket(fileno=int(sys.argv[1])))
    except (ValueError, ConnectionError):  # no descriptors: the test process has ended
        sys.exit()
    if exits_fast:
        _run_and_exit(main)
    main()
