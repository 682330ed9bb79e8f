"""Resource usage of processes, from /proc."""

import contextlib
import os
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process (utime and stime of /proc/PID/stat, proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def proportional_mib(pid: int) -> float:
    """Return the proportional memory (PSS) of a process: shared pages are divided among their processes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/{pid}/smaps_rollup has no Pss")


def children(pid: int) -> list[int]:
    """Return the process ids of a process's children."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder. Concurrently removed files, like merged parts, are skipped."""
    size = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += Path(where, name).lstat().st_size
    return size


def thread_seconds(pid: int) -> list[tuple[str, float]]:
    """Return name and processor time of each running thread of a process. The main thread is called `loop`."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            found.append(("loop" if int(task.name) == pid else name, seconds))
    return found
