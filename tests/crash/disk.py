"""Disks that can be filled: a tmpfs if this process may mount, else a substitute.

The substitute is RLIMIT_FSIZE on the writing process: no file can grow beyond the limit, and the system returns EFBIG.
The daemons handle EFBIG like ENOSPC. The limit affects every file of the process at once.
"""

import os
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import Protocol

MIB = 1 << 20


class Disk(Protocol):
    """Folder that can be made full."""

    folder: Path

    def open(self) -> None:
        """Create the disk."""

    def fill(self) -> None:
        """Make the disk full."""

    def free(self) -> None:
        """Free the space again."""

    def launcher(self) -> list[str]:
        """Return the command prefix for a process that writes here."""

    def watch(self, pid: int) -> None:
        """Register a process that writes here."""

    def close(self) -> None:
        """Remove the disk and its content."""


class Tmpfs:
    """File system in memory. It is filled by shrinking it to the used size, which writes nothing."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Take the folder and the size."""
        self.folder = folder
        self._size = size_bytes
        self._mounted = False

    def open(self) -> None:
        """Mount the file system. Raises CalledProcessError without permission."""
        self.folder.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={self._size},mode=0700", "gpufleet-crash", str(self.folder))
        self._mounted = True

    def fill(self) -> None:
        """Make the disk full. Concurrent writes may leave a page or two free."""
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
        """Free the space again."""
        _run("mount", "-o", f"remount,size={self._size}", str(self.folder))

    def launcher(self) -> list[str]:
        """Return no prefix: the file system itself is full."""
        return []

    def watch(self, pid: int) -> None:
        """Do nothing: the file system itself is full."""

    def close(self) -> None:
        """Unmount the file system even if files are still open."""
        if self._mounted:
            _run("umount", "-l", str(self.folder))
        self._mounted = False


class Limited:
    """Plain folder whose writers may not extend any file while it is full."""

    def __init__(self, folder: Path) -> None:
        """Take the folder."""
        self.folder = folder
        self._pids: set[int] = set()
        self._full = False

    def open(self) -> None:
        """Create the folder."""
        self.folder.mkdir(parents=True)

    def fill(self) -> None:
        """Limit the running writers. `launcher` limits writers that start later."""
        self._full = True
        self._limit(0)

    def free(self) -> None:
        """Lift the limit."""
        self._full = False
        self._limit(resource.RLIM_INFINITY)

    def launcher(self) -> list[str]:
        """Return a `prlimit` command while the disk is full. The limit is soft, so that it can be lifted."""
        return ["prlimit", "--fsize=0:unlimited"] if self._full else []

    def watch(self, pid: int) -> None:
        """Register a writer."""
        self._pids.add(pid)

    def close(self) -> None:
        """Do nothing: the folder belongs to the caller."""

    def _limit(self, soft: int) -> None:
        for pid in tuple(self._pids):
            try:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
            except ProcessLookupError:
                self._pids.discard(pid)


def may_mount() -> bool:
    """Return whether this process may mount a tmpfs."""
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
