"""The spool's folder: its lock, its epoch file, folder sync and group commit."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

from gpufleet.model.errors import SpoolError

_EPOCH_FILE = "epoch"
_LOCK_FILE = "lock"
_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG})


class SpoolDiskError(SpoolError):
    """The disk is full, read-only or broken; the operation may succeed once that is fixed."""


class SpoolGoneError(SpoolError):
    """Files of the open spool were deleted, moved or replaced; their records cannot be read or made durable."""


def disk_error(folder: Path, what: str, error: OSError) -> SpoolError:
    """Return an error that names the failed action and the system's message."""
    kind = SpoolDiskError if error.errno in _DISK_ERRNOS else SpoolError
    return kind(f"spool {folder}: cannot {what}: {error.strerror or error}")


def lock(folder: Path) -> int:
    """Create the folder if it is missing and lock it; return the file descriptor that holds the lock.

    Raises:
        SpoolError: if another process holds the lock, or the folder cannot be used.
    """
    try:
        import fcntl
    except ImportError as error:
        raise SpoolError("a spool needs POSIX file locks, which this system does not have") from error
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise disk_error(folder, "open it", error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            raise SpoolError(f"spool {folder}: another process has it open; stop that process first") from error
        raise disk_error(folder, "lock it", error) from error
    return fd


def load_epoch(folder: Path) -> str | None:
    """Return the epoch in the epoch file, or None if the file is missing or incomplete."""
    try:
        text = (folder / _EPOCH_FILE).read_bytes().strip()
    except FileNotFoundError:
        return None
    return text.decode() if len(text) == 32 and all(byte in b"0123456789abcdef" for byte in text) else None


def save_epoch(folder: Path, epoch: str) -> None:
    """Write the epoch file, durably and atomically."""
    write_durably(folder / _EPOCH_FILE, epoch.encode() + b"\n")


def write_durably(path: Path, content: bytes) -> None:
    """Write or replace a file, durably and atomically; a crash leaves at most a file `NAME.new`. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the directory entries of a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class GroupCommit:
    """Group commit: one blocking `sync` in a thread serves all callers that wait at the same time.

    Use it from one event loop. A call made while a sync runs is served by the next sync.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._waiters: list[asyncio.Future[int]] = []
        self._pump: asyncio.Task[None] | None = None

    async def wait(self) -> int:
        """Return or raise the result of a sync that began after this call."""
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run(), name="spool-commit")
        return await waiter

    async def _run(self) -> None:
        while self._waiters:
            served, self._waiters = self._waiters, []
            try:
                result = await asyncio.to_thread(self._sync)
            except Exception as error:  # noqa: BLE001 - any error is passed on to the waiting callers
                for waiter in served:
                    if not waiter.done():
                        waiter.set_exception(error)
            else:
                for waiter in served:
                    if not waiter.done():
                        waiter.set_result(result)
