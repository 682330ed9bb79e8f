"""Moving a process's wall clock, making its syncs slow or fail, and killing it at one step: the side in Python."""

import hashlib
import mmap
import os
import struct
from pathlib import Path

from tests.support.compiler import compile_library

FOLDER = Path(__file__).parent
SOURCES = [FOLDER / "crash_shim.c", FOLDER / "steps.c"]
CACHE = FOLDER.parents[2] / ".cache" / "crash-shim"
_CONTROL = struct.Struct("=qqqqqq64s400s32s")
_DIES_BEFORE, _SKIPPED, _FOLDER, _COUNTED = 40, 48, 112, 512

UNSEEN = "tmp_"
"""In the paths of what the embedded engine builds before it takes it into a table, or takes apart after."""


def build() -> Path:
    """Compile the library once per source; return it."""
    content = b"".join(path.read_bytes() for path in (*SOURCES, FOLDER / "crash_shim.h"))
    target = CACHE / hashlib.sha256(content).hexdigest()[:16] / "crash_shim.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        compile_library(SOURCES, fresh, soname=target.name, defines={})
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

    def die_before(self, folder: Path, step: int, *, skipped: str = "", counted: str = "") -> None:
        """Make the process kill itself before its so manieth change of what is below the folder, counted from now on.

        Files made, written, cut, renamed and removed, folders made and removed, except paths that contain `skipped`.
        With `counted`, only steps that start so are counted, such as "rename to wal/".
        """
        self._set_folder(folder)
        struct.pack_into("=64s", self._map, _SKIPPED, skipped.encode())
        struct.pack_into("=32s", self._map, _COUNTED, counted.encode())
        struct.pack_into("=q", self._map, _DIES_BEFORE, step)

    def leave_alone(self) -> None:
        """Let syncs and changes be."""
        struct.pack_into("=qqqqq", self._map, 8, 0, 0, 0, 0, 0)

    def _set_folder(self, folder: Path) -> None:
        struct.pack_into("=400s", self._map, _FOLDER, str(folder.resolve()).encode())
