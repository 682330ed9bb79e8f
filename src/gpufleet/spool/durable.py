"""The durable mark: a file with the highest record number that was made durable.

A record that a crash left half-written and a record whose end was cut off later look the same. The mark
distinguishes them: only a number above it was never acknowledged.

The mark is written after each sync of the records and before they are acknowledged. It is not synced itself: after a
power cut it may be too low, which reports no loss, but never too high.
"""

import os
import struct
import zlib
from pathlib import Path

_MARK = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
MARK_FILE = "durable"


class DurableMark:
    """The mark of one spool. The file is opened by the first `save`."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Take the spool's folder, and its checksum seed, so that the mark of another epoch is ignored."""
        self._path = folder / MARK_FILE
        self._seed = seed
        self._fd: int | None = None

    def load(self) -> int:
        """Return the highest durable number; 0 if there is no mark of this epoch. Raises OSError."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return 0
        if len(data) != _MARK.size + _CHECKSUM.size:
            return 0
        (seq,), (checksum,) = _MARK.unpack_from(data), _CHECKSUM.unpack_from(data, _MARK.size)
        return int(seq) if checksum == zlib.crc32(data[: _MARK.size], self._seed) else 0

    def save(self, seq: int) -> None:
        """Write the highest durable number. Raises OSError."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        mark = _MARK.pack(seq)
        os.pwrite(self._fd, mark + _CHECKSUM.pack(zlib.crc32(mark, self._seed)), 0)

    def close(self) -> None:
        """Close the file if it is open."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
