"""Who holds a lock: looked up first, as trying would keep a daemon from starting for a moment."""

import os
import re
from pathlib import Path

LOCKS = Path("/proc/locks")

_LINE = re.compile(r"\d+: FLOCK +\w+ +WRITE (-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ")


def holder_of(file: Path, locks: Path = LOCKS) -> int:
    """Return the process that holds a file with flock(2), or 0 for none.

    /proc/locks (proc(5)) names each lock's process, -1 or 0 for one outside of this PID namespace, and its file by
    device and inode. A process that cannot be named is told as -1.

    Raises:
        OSError: if the file or /proc/locks cannot be read.
    """
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0
    wanted = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    for line in locks.read_text().splitlines():
        found = _LINE.match(line)
        if found and (int(found[2], 16), int(found[3], 16), int(found[4])) == wanted:
            return int(found[1]) or -1
    return 0


def is_held(file: Path) -> bool:
    """Try whether a process holds a file: btrfs and overlays show /proc/locks another device than stat(2) shows.

    Raises:
        OSError: if the file cannot be opened.
    """
    import fcntl

    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
