"""Control of the crash shim: step a process's wall clock, slow down or fail its syncs, or kill it at a step."""

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

TEMPORARY = "tmp_"
"""Part of the paths of files that the embedded engine has not added to a table yet, or has removed from it."""


def build() -> Path:
    """Compile the library once per source version, and return its path."""
    content = b"".join(path.read_bytes() for path in (*SOURCES, FOLDER / "crash_shim.h"))
    target = CACHE / hashlib.sha256(content).hexdigest()[:16] / "crash_shim.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        compile_library(SOURCES, fresh, soname=target.name, defines={})
        fresh.replace(target)
    return target


class Shim:
    """Settings of one daemon's shim. They apply to the running process and to its successors."""

    def __init__(self, control: Path) -> None:
        """Create the control file that the process maps."""
        control.write_bytes(bytes(_CONTROL.size))
        self._path = control
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL.size)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that load the shim into a process."""
        return {"LD_PRELOAD": str(build()), "CRASH_CONTROL": str(self._path)}

    @property
    def clock_offset(self) -> float:
        """Offset of the process's wall clock from the true time in seconds."""
        return int(_CONTROL.unpack_from(self._map)[0]) / 1e9

    def set_clock(self, offset_seconds: float) -> None:
        """Step the wall clock to an offset from the true time."""
        struct.pack_into("=q", self._map, 0, int(offset_seconds * 1e9))

    def disturb_syncs(self, folder: Path, *, delay_seconds: float = 0.0, error: int = 0, every: int = 1) -> None:
        """Delay each fsync and fdatasync of files below the folder. Fail one in `every` with `error`."""
        self._set_folder(folder)
        struct.pack_into("=qqq", self._map, 8, int(delay_seconds * 1e6), error, every)

    def die_at_sync(self, folder: Path, number: int) -> None:
        """Kill the process at its `number`-th fsync or fdatasync of files below the folder, counted from now on."""
        self._set_folder(folder)
        struct.pack_into("=q", self._map, 32, number)

    def die_before(self, folder: Path, step: int, *, skipped: str = "", counted: str = "") -> None:
        """Kill the process before its `step`-th change below the folder, counted from now on.

        Changes are files created, written, truncated, renamed and removed, and folders created and removed, except
        paths that contain `skipped`. With `counted`, only steps with this prefix count, such as "rename to wal/".
        """
        self._set_folder(folder)
        struct.pack_into("=64s", self._map, _SKIPPED, skipped.encode())
        struct.pack_into("=32s", self._map, _COUNTED, counted.encode())
        struct.pack_into("=q", self._map, _DIES_BEFORE, step)

    def reset(self) -> None:
        """Stop delaying, failing and killing. The clock keeps its offset."""
        struct.pack_into("=qqqqq", self._map, 8, 0, 0, 0, 0, 0)

    def _set_folder(self, folder: Path) -> None:
        struct.pack_into("=400s", self._map, _FOLDER, str(folder.resolve()).encode())
