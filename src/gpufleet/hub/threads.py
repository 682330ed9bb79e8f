"""Threads that the system knows by name: `top -H` and /proc tell what a hub's processor time goes to."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAME_BYTES = 15
"""What Linux keeps of a thread's name."""

_COMM = Path("/proc/thread-self/comm")


def named_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return so many threads, each called `name` by Python, and where there is a /proc by the system too."""
    return ThreadPoolExecutor(count, name, initializer=_be_called, initargs=(name,))


def _be_called(name: str) -> None:
    with contextlib.suppress(OSError):  # another system: it is but a name
        _COMM.write_bytes(name.encode()[:NAME_BYTES])
