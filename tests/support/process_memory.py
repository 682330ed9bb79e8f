"""Memory of a process, from its status file."""

from pathlib import Path


def memory_kib(field: str, pid: int | str = "self") -> int:
    """Return a field of a process's status in KiB.

    `VmHWM` is the peak of the program that runs. `ru_maxrss` is at least the memory of the process that started it, so
    a child of a large test process shows that process's.

    Args:
        field: name of the field, like `VmRSS`.
        pid: id of the process.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])
