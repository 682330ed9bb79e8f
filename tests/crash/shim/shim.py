"""Moving a process's wall clock, and making its syncs slow or fail, while it runs: the Python side of crash_shim.c."""

import hashlib
import mmap
import os
import struct
from pathlib import Path

from tests.support.compiler import compile_library

SOURCE = Path(__file__).with_name("crash_shim.c")
CACHE = Path(__file__).parents[3] / ".cache" / "crash-shim"
_CONTROL = struct.Struct("=qqqqq472s")


def build() -> Path:
    """Compile the library once per source; return it."""
    target = CACHE / hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16] / "crash_shim.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        compile_library([SOURCE], fresh, soname=target.name, defines={})
        fresh.replace(target)
    return target


class Shim:
    """What is done to one process; what is set holds for the running process and for those that follow it."""

    def __init__(self, control: Path) -> None:
        """Make the file that the process maps."""
        control.write_bytes(bytes(_CONTROL.size))
        self._path = control
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL.size)

    @property
    def environment(self) -> dict[str, str]:
        """What a process is to be started with."""
        return {"LD_PRELOAD": str(build()), "CRASH_CONTROL": str(self._path)}

    @property
    def clock_offset(self) -> float:
        """Seconds that the process's wall clock is ahead of the true one."""
        return int(_CONTROL.unpack_from(self._map)[0]) / 1e9

    def set_clock(self, offset_seconds: float) -> None:
        """Step the wall clock to so many seconds ahead of the true one."""
        struct.pack_into("=q", self._map, 0, int(offset_seconds * 1e9))

    def disturb_syncs(self, folder: Path, *, delay_seconds: float = 0.0, error: int = 0, every: int = 1) -> None:
        """Make each fsync and fdatasync of files below the folder wait, and every so manieth fail with `error`."""
        self._set_folder(folder)
        struct.pack_into("=qqq", self._map, 8, int(delay_seconds * 1e6), error, every)

    def die_at_sync(self, folder: Path, number: int) -> None:
        """Make the process kill itself at its so manieth fsync or fdatasync of files below the folder, from now on."""
        self._set_folder(folder)
        struct.pack_into("=q", self._map, 32, number)

    def leave_syncs(self) -> None:
        """Let syncs be."""
        struct.pack_into("=qqqq", self._map, 8, 0, 0, 0, 0)

    def _set_folder(self, folder: Path) -> None:
        struct.pack_into("=472s", self._map, 40, str(folder.resolve()).encode())
