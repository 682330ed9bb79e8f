"""Quarantine of acknowledged batches that cannot be stored: kept for inspection, never retried."""

import os
from pathlib import Path

import msgspec

from gpufleet.spool.folder import write_durably

MAX_BYTES = 256 << 20
"""Size limit of the folder; beyond it, batches are only counted and logged."""


class Quarantine:
    """A folder of bodies, each with a JSON note of its error."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, body: bytes, *, received_at: int, step: str, error: str) -> bool:
        """Store a body durably, replacing one of the same name; return False if the folder is full.

        Raises:
            OSError: if the disk refuses.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._size() + len(body) > MAX_BYTES:
            return False
        note = {"received_at": received_at, "step": step, "error": error[:2000]}
        write_durably(self._folder / f"{name}.json", msgspec.json.encode(note))
        write_durably(self._folder / f"{name}.batch", body)
        return True

    def _size(self) -> int:
        return sum(entry.stat().st_size for entry in os.scandir(self._folder))
