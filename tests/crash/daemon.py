"""gpufleet process under supervision: it is restarted after every exit, as by a service manager."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tests.crash.disk import Disk
from tests.crash.shim.shim import Shim
from tests.support.processes import Gpufleet
from tests.support.waiting import PATIENCE

RESTART_SECONDS = 0.5
"""Pause before a process that exited by itself is restarted."""

POLL_SECONDS = 0.02


class Exit(msgspec.Struct, frozen=True):
    """Exit of a process that was not killed by the run."""

    daemon: str
    code: int
    at: float
    excused: bool


class Daemon:
    """One daemon of a run.

    Attributes:
        may_end: whether it may now refuse to start (full disk, locked store). Such exits are excused.
        may_die: whether the shim may now kill it.
        in_trouble: whether its disk rejects writes. Batches in memory are then lost if it is killed.
        killed_in_trouble: number of kills while in trouble.
        exits: exits not caused by the run.
        sessions: session id of each started process, the newest last.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], folder: Path, *, env: Mapping[str, str], disks: Sequence[Disk] = ()
    ) -> None:
        """Take the command line after `gpufleet`, and the disks that the daemon writes to."""
        self.name = name
        self.shim = Shim(folder / f"{name}.control")
        self.log = folder / f"{name}.log"
        self.may_end = False
        self.may_die = False
        self.in_trouble = False
        self.killed_in_trouble = 0
        self.exits: list[Exit] = []
        self.sessions: list[int] = []
        self._arguments = list(arguments)
        self._env = dict(env) | self.shim.environment
        self._disks = disks
        self._process: Gpufleet | None = None
        self._killed = False
        self._wanted = False
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name=f"supervise {name}", daemon=True)

    @property
    def pid(self) -> int:
        """Process id of the running process, or of the last one."""
        assert self._process is not None, "started"
        return self._process.process.pid

    def start(self) -> None:
        """Start the process and its supervision."""
        self._wanted = True
        self._spawn()
        self._supervisor.start()

    def kill(self) -> None:
        """Send SIGKILL to the daemon, but not to its children."""
        with self._lock:
            self._killed = True
            self.killed_in_trouble += self.in_trouble
            self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the process if it is running."""
        with self._lock:
            if self._process is not None and self._process.process.poll() is None:
                os.kill(self.pid, number)

    def stop(self, seconds: float = 30) -> int:
        """Stop the daemon permanently, and return its exit code."""
        with self._lock:
            self._wanted = False
            process = self._process
        self._ended.set()
        self._supervisor.join(timeout=10 * PATIENCE)
        assert process is not None, "started"
        return process.stop(seconds)

    def end(self) -> None:
        """Kill the remaining process group."""
        self._wanted = False
        self._ended.set()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.process.wait(timeout=20 * PATIENCE)

    def left_over(self) -> list[int]:
        """Return processes that outlived their daemon, except children of a running daemon."""
        ended = set(self.sessions)
        if self._process is not None and self._process.process.poll() is None:
            ended.discard(self.pid)
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) in ended and fields[0] != "Z":
                    found.append(int(stat.parent.name))
        return found

    def _spawn(self) -> None:
        launcher = [part for disk in self._disks for part in disk.launcher()]
        process = Gpufleet(self._arguments, self.log, self._env, launcher)
        for disk in self._disks:
            disk.watch(process.process.pid)
        self.sessions.append(process.process.pid)
        self._process, self._killed = process, False

    def _supervise(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            process = self._process
            assert process is not None, "started"
            code = process.process.poll()
            if code is None:
                continue
            if not self._killed and not (self.may_die and code == -signal.SIGKILL):
                self.exits.append(Exit(self.name, code, time.monotonic(), self.may_end and code == 1))
                if self._ended.wait(RESTART_SECONDS):
                    return
            with self._lock:
                if self._wanted:
                    self._spawn()
