"""Since when processes live, asked of the kernel once a process."""

import os
import select
from pathlib import Path

MOST_KEPT = 256
"""Descriptors that are held; of more processes than that /proc is read in every pass."""

_START_TIME = 19
"""Position in /proc/PID/stat behind the name in parentheses (proc(5): field 22)."""


class Lives:
    """Start times, each kept while that very process lives: a descriptor of it tells (pidfd_open(2)).

    One system call a pass looks after all of them. An id that another process got meanwhile is another life. Where the
    kernel gives no descriptor, or /proc is of another namespace than this process, each is read every time.
    """

    def __init__(self, root: Path) -> None:
        """Take where the machine's /proc is; nothing is looked at yet."""
        self._root = root
        self._kept: dict[int, tuple[int, int]] = {}  # process id to descriptor and start time
        self._asked: set[int] = set()
        self._living = select.poll() if hasattr(select, "poll") else None
        self._can: bool | None = None

    def begin(self) -> None:
        """Let go of those that ended, and of those that nobody asked about since the last time."""
        if not self._kept:
            return
        assert self._living is not None
        ended = {descriptor for descriptor, _ in self._living.poll(0)}
        gone = [pid for pid, (descriptor, _) in self._kept.items() if descriptor in ended or pid not in self._asked]
        for pid in gone:
            self._drop(pid)
        self._asked.clear()

    def start_time(self, pid: int) -> int | None:
        """Return when a process began, in clock ticks since boot, or None where the kernel shows no such process."""
        self._asked.add(pid)
        kept = self._kept.get(pid)
        if kept is not None:
            return kept[1]
        # The descriptor first: if the process ends before it is read about, the next `begin` hears of that.
        try:
            descriptor = self._open(pid) if len(self._kept) < MOST_KEPT else None
        except ProcessLookupError:
            return None
        began = start_time(stat_of(self._root, pid))
        if descriptor is not None and began is None:
            os.close(descriptor)
        elif descriptor is not None and began is not None:
            assert self._living is not None
            self._living.register(descriptor, select.POLLIN)
            self._kept[pid] = descriptor, began
        return began

    def close(self) -> None:
        """Give all descriptors back."""
        for pid in list(self._kept):
            self._drop(pid)

    def _open(self, pid: int) -> int | None:
        """Return a descriptor of a process, or None where there are none to be had.

        Raises:
            ProcessLookupError: if there is no such process.
        """
        if self._can is None:
            self._can = self._living is not None and hasattr(os, "pidfd_open") and self._same_namespace()
        if not self._can:
            return None
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (OSError, OverflowError):
            return None

    def _same_namespace(self) -> bool:
        """Tell whether ids in that /proc are those that this process may ask the kernel for."""
        try:
            return str((self._root / "proc/self").readlink()) == str(os.getpid())
        except OSError:
            return False

    def _drop(self, pid: int) -> None:
        descriptor, _ = self._kept.pop(pid)
        assert self._living is not None
        self._living.unregister(descriptor)
        os.close(descriptor)


def start_time(stat: bytes) -> int | None:
    """Return when a process began, in clock ticks since boot, or None where /proc/PID/stat does not say."""
    try:
        return int(stat.rpartition(b")")[2].split()[_START_TIME])
    except (ValueError, IndexError):
        return None


def stat_of(root: Path, pid: int) -> bytes:
    """Return /proc/PID/stat; nothing if the kernel shows no such process."""
    try:
        descriptor = os.open(f"{root}/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""  # it ended meanwhile
    finally:
        os.close(descriptor)
