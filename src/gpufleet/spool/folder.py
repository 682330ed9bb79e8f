"""The spool's folder: its lock, its epoch file, and making what is in it durable.

Group commit: everybody who waits at the same time is served by the same sync.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

from gpufleet.model.errors import SpoolError

_EPOCH_FILE = "epoch"
_LOCK_FILE = "lock"
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG})


class SpoolDiskError(SpoolError):
    """The disk is full, read-only or broken: what was asked may work again once it is mended."""


def words(folder: Path, what: str, error: OSError) -> SpoolError:
    """Return the error that says what could not be done and what the system said."""
    kind = SpoolDiskError if error.errno in _OF_THE_DISK else SpoolError
    return kind(f"spool {folder}: cannot {what}: {error.strerror or error}")


def lock(folder: Path) -> int:
    """Make the folder if need be and take its lock; return the file descriptor that holds it.

    Raises:
        SpoolError: if another process has it, or the folder cannot be used.
    """
    try:
        import fcntl
    except ImportError as error:
        raise SpoolError("a spool needs the file locks of a POSIX system") from error
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise words(folder, "open it", error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            raise SpoolError(f"spool {folder}: another process has it open; stop that one first") from error
        raise words(folder, "lock it", error) from error
    return fd


def load_epoch(folder: Path) -> str | None:
    """Return the epoch of the file that keeps it, or None if there is none or it is not whole."""
    try:
        text = (folder / _EPOCH_FILE).read_bytes().strip()
    except FileNotFoundError:
        return None
    return text.decode() if len(text) == 32 and all(byte in b"0123456789abcdef" for byte in text) else None


def save_epoch(folder: Path, epoch: str) -> None:
    """Put the epoch into its file, durably and all at once."""
    made = folder / f"{_EPOCH_FILE}.new"
    with made.open("wb") as file:
        file.write(epoch.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    made.replace(folder / _EPOCH_FILE)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make names in the folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class GroupCommit:
    """Runs a blocking `sync` in a thread, one at a time, for all who wait.

    Used from one event loop. Who begins to wait while a sync runs is served by the next.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._waiters: list[asyncio.Future[int]] = []
        self._pump: asyncio.Task[None] | None = None

    async def wait(self) -> int:
        """Return what a sync that began after this call returned, or raise what it raised."""
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
            except Exception as error:  # noqa: BLE001 - whatever it was, those who wait must hear it
                for waiter in served:
                    if not waiter.done():
                        waiter.set_exception(error)
            else:
                for waiter in served:
                    if not waiter.done():
                        waiter.set_result(result)
