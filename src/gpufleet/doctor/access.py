"""Permissions of this process and state of the kernel, tested without side effects."""

import ctypes
import errno
import os
import stat
import sys
from pathlib import Path

from gpufleet.channels.local.paths import locate
from gpufleet.config.named_files import folder_error

_STA_UNSYNC = 0x40  # linux/timex.h
_TIMEX_BYTES = 256
"""Larger than struct timex on any architecture (208 bytes on 64 bit)."""

_STATUS_OFFSET = 40
"""Offset of `status` in struct timex with 8-byte longs: after modes (padded) and four longs."""


_MAX_ERROR_OFFSET = 24
"""Offset of `maxerror` in struct timex, microseconds: after modes (padded), offset and freq."""


class LocalAccess:
    """Permissions and kernel state of this machine.

    A test of a path returns an empty string if the access is permitted, else a POSIX error name.

    Args:
        root: folder used as `/`.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = str(root.absolute())

    def read_write(self, path: str) -> str:
        """Test whether a device may be read and written, without opening it: opening a GPU wakes it up."""
        return self._test(path, os.R_OK | os.W_OK)

    def opens(self, path: str) -> str:
        """Test whether a path may be opened for reading, by opening it. Only for files without side effects on open.

        File permissions are not sufficient: /dev/kmsg also needs CAP_SYSLOG if dmesg is restricted.
        """
        try:
            os.close(os.open(locate(self._root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "EIO")
        return ""

    def socket(self, path: str) -> str:
        """Test whether a socket exists and may be connected to, without connecting."""
        try:
            mode = os.stat(locate(self._root, path)).st_mode  # noqa: PTH116 - the same call as elsewhere here
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "EIO")
        return self._test(path, os.R_OK | os.W_OK) if stat.S_ISSOCK(mode) else "ENOTSOCK"

    def folder(self, path: str) -> str:
        """Test whether files can be created in a folder, or the folder itself if it does not exist."""
        return folder_error(Path(locate(self._root, path)))

    def free_bytes(self, path: str) -> int | None:
        """Return the free bytes of a folder or its nearest existing parent, None if unknown."""
        here = Path(locate(self._root, path))
        while not here.exists() and here != here.parent:
            here = here.parent
        try:
            figures = os.statvfs(here)
        except OSError:
            return None
        return figures.f_bavail * figures.f_frsize

    def clock_synchronized(self) -> bool | None:
        """Return whether the kernel reports its clock as synchronised, None if unknown."""
        clock = self.kernel_clock()
        return None if clock is None else clock[0]

    def kernel_clock(self) -> tuple[bool, float] | None:
        """Return whether the clock is synchronised and the bound on its error in seconds, None if unknown.

        adjtimex(2) with no modes only reads. The kernel clears STA_UNSYNC while an NTP or PTP client steers the clock,
        and lets `maxerror` grow otherwise.
        """
        if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_long) != 8:
            return None
        buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
        if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
            return None
        status = int.from_bytes(buffer.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], sys.byteorder)
        max_error = int.from_bytes(buffer.raw[_MAX_ERROR_OFFSET : _MAX_ERROR_OFFSET + 8], sys.byteorder)
        return not status & _STA_UNSYNC, max_error / 1e6

    def _test(self, path: str, mode: int) -> str:
        try:
            where = locate(self._root, path)
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "EIO")
        if os.access(where, mode, effective_ids=True):
            return ""
        return "EACCES" if os.access(where, os.F_OK) else "ENOENT"
