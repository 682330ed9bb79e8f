"""A gpufleet process and what keeps it up: killed or ended, it is started again at once, as a service manager would."""

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

RESTART_SECONDS = 0.5
"""Pause before a process that ended by itself is started again."""

POLL_SECONDS = 0.02


class Exit(msgspec.Struct, frozen=True):
    """A process that ended though nobody killed it."""

    daemon: str
    code: int
    at: float
    excused: bool


class Daemon:
    """One daemon of a run.

    Attributes:
        may_end: whether it may now refuse to start (a full disk, a locked store): such ends are excused.
        may_die: whether it may now be killed by what the shim does.
        in_trouble: its disk refuses: what it holds in memory dies with it.
        killed_in_trouble: how often it was killed then.
        exits: ends that nobody caused from here.
        sessions: of each process that was started, the newest last.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], folder: Path, *, env: Mapping[str, str], disks: Sequence[Disk] = ()
    ) -> None:
        """Take the command line after `gpufleet`, and the disks that it writes to."""
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
        self._keeper = threading.Thread(target=self._keep, name=f"keep {name}", daemon=True)

    @property
    def pid(self) -> int:
        """Of the process that runs, or the one that ran last."""
        assert self._process is not None, "started"
        return self._process.process.pid

    def start(self) -> None:
        """Start it, and see that it stays up."""
        self._wanted = True
        self._spawn()
        self._keeper.start()

    def kill(self) -> None:
        """Send SIGKILL to the daemon itself; its children have to notice."""
        with self._lock:
            self._killed = True
            self.killed_in_trouble += self.in_trouble
            self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        with self._lock:
            if self._process is not None and self._process.process.poll() is None:
                os.kill(self.pid, number)

    def stop(self, seconds: float = 30) -> int:
        """Ask it to stop for good, and return its exit code."""
        with self._lock:
            self._wanted = False
            process = self._process
        self._ended.set()
        self._keeper.join(timeout=10)
        assert process is not None, "started"
        return process.stop(seconds)

    def end(self) -> None:
        """Kill what is left of it."""
        self._wanted = False
        self._ended.set()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.process.wait(timeout=20)

    def left_over(self) -> list[int]:
        """Return processes that outlived the daemon that started them; the newest daemon's are left out if it runs."""
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
        launcher = [word for disk in self._disks for word in disk.launcher()]
        process = Gpufleet(self._arguments, self.log, self._env, launcher)
        for disk in self._disks:
            disk.watch(process.process.pid)
        self.sessions.append(process.process.pid)
        self._process, self._killed = process, False

    def _keep(self) -> None:
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
