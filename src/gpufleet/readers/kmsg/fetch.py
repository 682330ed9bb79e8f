"""The kernel's log as a file that is read without waiting."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from gpufleet.model.absence import Reason
from gpufleet.model.errors import ReaderError

BUFFER_BYTES = 1 << 14
"""Of one read. The kernel gives one record a read, and none is longer than 8 KiB (CONSOLE_EXT_LOG_MAX)."""

MAX_LINE_BYTES = 1 << 16
"""A longer line, which only a stand-in for the device can give, is thrown away."""


class KernelLog:
    """One opening of the log, from its oldest record on. Not for several threads.

    Attributes:
        overruns: how often the kernel overwrote what had not been read.
    """

    def __init__(self, path: Path, read: Callable[[int, int], bytes] = os.read) -> None:
        """Open it.

        Args:
            path: the log.
            read: what reads from a descriptor, at most so many bytes.

        Raises:
            ReaderError: `not_supported` if it is not there, `not_permitted` if it may not be read.
        """
        self.overruns = 0
        self._path = path
        self._read_bytes = read
        self._rest = b""
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _reader_error(path, error) from error

    def lines(self, most: int) -> list[bytes]:
        """Return up to about `most` lines that are there now, complete ones only; empty when there are none.

        Raises:
            ReaderError: if it cannot be read.
        """
        found: list[bytes] = []
        while len(found) < most:
            data = self._read()
            if not data:
                break
            *complete, self._rest = (self._rest + data).split(b"\n")
            found += complete
            if len(self._rest) > MAX_LINE_BYTES:
                self._rest = b""
        return found

    def close(self) -> None:
        """Give the file back; a second close does nothing."""
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
                if error.errno == errno.EPIPE:  # records were overwritten; the next read gives the oldest there is
                    self.overruns += 1
                    continue
                raise _reader_error(self._path, error) from error


def _reader_error(path: Path, error: OSError) -> ReaderError:
    words = f"{path}: {error.strerror}"
    if error.errno in (errno.EACCES, errno.EPERM):
        words += ": reading the kernel's log takes CAP_SYSLOG, or kernel.dmesg_restrict=0"
        return ReaderError(Reason.NOT_PERMITTED, words)
    if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
        return ReaderError(Reason.NOT_SUPPORTED, f"{words}: a container sees it only where it is mounted")
    return ReaderError(Reason.READER_FAILED, words)
