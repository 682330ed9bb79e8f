"""Batches that the hub will never take, kept for a person to look at; a bounded number of them."""

import asyncio
from pathlib import Path

MAX_FILES = 100
"""Beyond this the oldest go."""


class Refused:
    """A folder of bodies, each named after its epoch and number."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; it is made when there is something to keep."""
        self._folder = folder

    async def keep(self, epoch: str, seq: int, body: bytes) -> str:
        """Write one down and return where, or why it could not be written: it is not worth failing for."""
        return await asyncio.to_thread(self._keep, epoch, seq, body)

    def _keep(self, epoch: str, seq: int, body: bytes) -> str:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = self._folder / f"{epoch}-{seq:019d}.batch"
            file.write_bytes(body)
            kept = sorted(self._folder.glob("*.batch"), key=lambda one: one.stat().st_mtime_ns)
            for old in kept[:-MAX_FILES]:
                old.unlink(missing_ok=True)
        except OSError as error:
            return f"nothing ({error})"
        return str(file)
