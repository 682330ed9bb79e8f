"""Non-blocking reads of the kernel log."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from gpufleet.model.absence import Reason
from gpufleet.model.errors import ReaderError

BUFFER_BYTES = 1 << 14
"""Size of one read. The kernel returns one record per read, at most 8 KiB (CONSOLE_EXT_LOG_MAX)."""

MAX_LINE_BYTES = 1 << 16
"""Maximum line; a longer one is dropped. Only a file or FIFO in place of the device can have one."""


class KernelLog:
    """Open kernel log, read from its oldest record on. Not thread-safe.

    Attributes:
        overruns: number of times that the kernel overwrote unread records.
    """

    def __init__(self, path: Path, read: Callable[[int, int], bytes] = os.read) -> None:
        """Open the log.

        Args:
            path: path of the log.
            read: function that reads at most so many bytes from a descriptor.

        Raises:
            ReaderError: `not_supported` if the file does not exist, `not_permitted` without permission to read it.
        """
        self.overruns = 0
        self._path = path
        self._read_bytes = read
        self._rest = b""
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _reader_error(path, error) from error

    def lines(self, limit: int) -> list[bytes]:
        """Return about `limit` available lines, complete lines only; empty if there are none.

        Raises:
            ReaderError: if the log cannot be read.
        """
        found: list[bytes] = []
        while len(found) < limit:
            data = self._read()
            if not data:
                break
            *complete, self._rest = (self._rest + data).split(b"\n")
            found += complete
            if len(self._rest) > MAX_LINE_BYTES:
                self._rest = b""
        return found

    def close(self) -> None:
        """Close the file; a second close does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> bytes:
        while True:
            try:
                return self._read_bytes(self._file, BUFFER_BYTES)
            except BlockingIOError:
                return b""
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten; the next read returns the oldest record left
                    self.overruns += 1
                    continue
                raise _reader_error(self._path, error) from error


def _reader_error(path: Path, error: OSError) -> ReaderError:
    message = f"{path}: {error.strerror}"
    if error.errno in (errno.EACCES, errno.EPERM):
        message += ": reading the kernel log requires CAP_SYSLOG, or kernel.dmesg_restrict=0"
        return ReaderError(Reason.NOT_PERMITTED, message)
    if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
        return ReaderError(Reason.NOT_SUPPORTED, f"{message}: in a container, mount it")
    return ReaderError(Reason.READER_FAILED, message)
