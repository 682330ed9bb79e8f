"""What this process may do here: questions to the kernel that leave nothing behind."""

import ctypes
import errno
import os
import stat
import sys
from pathlib import Path

from gpufleet.channels.local.paths import locate

_STA_UNSYNC = 0x40  # linux/timex.h
_TIMEX_BYTES = 256
"""More than struct timex has on any architecture (208 on 64 bit)."""

_STATUS_OFFSET = 40
"""Of `status` in struct timex where a long has 8 bytes: after modes (padded) and four longs."""


_MAX_ERROR_OFFSET = 24
"""Of `maxerror` there, microseconds: after modes (padded), offset and freq."""


class LocalAccess:
    """Permissions and kernel state of this machine.

    Every answer about a path is an empty string if it may be done, else a POSIX error name.

    Args:
        root: folder taken for `/`.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = str(root.absolute())

    def read_write(self, path: str) -> str:
        """Ask whether a device may be read and written, without opening it: opening a GPU wakes it up."""
        return self._ask(path, os.R_OK | os.W_OK)

    def opens(self, path: str) -> str:
        """Ask whether a path may be opened for reading, by opening it. For what no open disturbs.

        Permissions of the file do not tell all: /dev/kmsg also needs CAP_SYSLOG where dmesg is restricted.
        """
        try:
            os.close(os.open(locate(self._root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "EIO")
        return ""

    def socket(self, path: str) -> str:
        """Ask whether a socket is there and may be connected to, without connecting."""
        try:
            mode = os.stat(locate(self._root, path)).st_mode  # noqa: PTH116 - the same call as elsewhere here
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "EIO")
        return self._ask(path, os.R_OK | os.W_OK) if stat.S_ISSOCK(mode) else "ENOTSOCK"

    def folder(self, path: str) -> str:
        """Ask whether files can be made in a folder, or the folder itself where it is not there yet."""
        here = Path(locate(self._root, path))
        while not here.exists() and here != here.parent:
            here = here.parent
        if not here.is_dir():
            return "ENOTDIR"
        try:
            read_only = os.statvfs(here).f_flag & os.ST_RDONLY
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "EIO")
        if read_only:
            return "EROFS"
        return "" if os.access(here, os.W_OK | os.X_OK, effective_ids=True) else "EACCES"

    def free_bytes(self, path: str) -> int | None:
        """Return the space that a folder (or the nearest one above it that is there) has, None if not told."""
        here = Path(locate(self._root, path))
        while not here.exists() and here != here.parent:
            here = here.parent
        try:
            figures = os.statvfs(here)
        except OSError:
            return None
        return figures.f_bavail * figures.f_frsize

    def clock_synchronized(self) -> bool | None:
        """Return whether the kernel holds its clock for synchronised, None where it cannot be asked."""
        clock = self.kernel_clock()
        return None if clock is None else clock[0]

    def kernel_clock(self) -> tuple[bool, float] | None:
        """Return whether the clock is synchronised and the bound on its error in seconds, None where it is not told.

        adjtimex(2) with no modes only reads; the kernel clears STA_UNSYNC when an NTP or PTP client steers it, and lets
        `maxerror` grow while none does.
        """
        if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_long) != 8:
            return None
        buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
        if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
            return None
        status = int.from_bytes(buffer.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], sys.byteorder)
        max_error = int.from_bytes(buffer.raw[_MAX_ERROR_OFFSET : _MAX_ERROR_OFFSET + 8], sys.byteorder)
        return not status & _STA_UNSYNC, max_error / 1e6

    def _ask(self, path: str, mode: int) -> str:
        try:
            where = locate(self._root, path)
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "EIO")
        if os.access(where, mode, effective_ids=True):
            return ""
        return "EACCES" if os.access(where, os.F_OK) else "ENOENT"
