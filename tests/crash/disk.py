"""Disks that can be filled: a tmpfs of their own where this process may mount one, else a stand-in.

The stand-in is RLIMIT_FSIZE on the process that writes: each of its files can be written on only up to a size, and
the system answers EFBIG, which the daemons take as they take ENOSPC. It hits every file of that process at once.
"""

import os
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Protocol

MIB = 1 << 20


class Disk(Protocol):
    """A folder that can be full."""

    folder: Path

    def open(self) -> None:
        """Make it."""

    def fill(self) -> None:
        """Leave no room."""

    def free(self) -> None:
        """Give the room back."""

    def launcher(self) -> list[str]:
        """Return the command that a process that writes here has to be started by."""

    def watch(self, pid: int) -> None:
        """Learn of a process that writes here."""

    def close(self) -> None:
        """Take it away with all that is on it."""


class Tmpfs:
    """A file system in memory. It is filled by making it as small as what is on it, so that filling costs none."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Take where it is to be, and its size."""
        self.folder = folder
        self._size = size_bytes
        self._mounted = False

    def open(self) -> None:
        """Mount it. Raises CalledProcessError where that may not be done."""
        self.folder.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={self._size},mode=0700", "gpufleet-crash", str(self.folder))
        self._mounted = True

    def fill(self) -> None:
        """Leave no room; what is written meanwhile may win a page or two of it."""
        for _ in range(20):
            stat = os.statvfs(self.folder)
            used = (stat.f_blocks - stat.f_bfree) * stat.f_bsize
            try:
                _run("mount", "-o", f"remount,size={max(used, stat.f_bsize)}", str(self.folder))
            except subprocess.CalledProcessError:
                continue  # it grew in between
            return
        raise AssertionError(f"{self.folder} could not be made full")

    def free(self) -> None:
        """Give the room back."""
        _run("mount", "-o", f"remount,size={self._size}", str(self.folder))

    def launcher(self) -> list[str]:
        """Nothing: the file system itself is full."""
        return []

    def watch(self, pid: int) -> None:
        """Nothing, likewise."""

    def close(self) -> None:
        """Unmount it, whoever still has files open."""
        if self._mounted:
            _run("umount", "-l", str(self.folder))
        self._mounted = False


class Limited:
    """A plain folder whose writers may not extend any file while it is full."""

    def __init__(self, folder: Path) -> None:
        """Take where it is to be."""
        self.folder = folder
        self._pids: set[int] = set()
        self._full = False

    def open(self) -> None:
        """Make the folder."""
        self.folder.mkdir(parents=True)

    def fill(self) -> None:
        """Limit the running writers, and through `launcher` those to come."""
        self._full = True
        self._limit(0)

    def free(self) -> None:
        """Lift the limit."""
        self._full = False
        self._limit(resource.RLIM_INFINITY)

    def launcher(self) -> list[str]:
        """Return util-linux's prlimit while it is full: a soft limit, so that it can be lifted."""
        return ["prlimit", "--fsize=0:unlimited"] if self._full else []

    def watch(self, pid: int) -> None:
        """Learn of a writer."""
        self._pids.add(pid)

    def close(self) -> None:
        """Nothing: the folder belongs to whoever gave it."""

    def _limit(self, soft: int) -> None:
        for pid in tuple(self._pids):
            try:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
            except ProcessLookupError:
                self._pids.discard(pid)


def may_mount() -> bool:
    """Tell whether this process may mount a tmpfs."""
    with tempfile.TemporaryDirectory() as folder:
        disk = Tmpfs(Path(folder, "disk"), MIB)
        try:
            disk.open()
        except (subprocess.CalledProcessError, FileNotFoundError):
            return False
        disk.close()
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)
