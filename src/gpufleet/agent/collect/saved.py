"""State of the agent that survives a restart: one small file per subject."""

import contextlib
import logging
import os
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

log = logging.getLogger(__name__)

MAX_BYTES = 8 << 20

_T = TypeVar("_T")


class SavedFile(Generic[_T]):
    """Loads and saves one record as JSON. Blocking."""

    def __init__(self, path: Path, kind: type[_T], *, loss: str) -> None:
        """Take the file.

        Args:
            path: the file; the first save creates its folder.
            kind: type of the record.
            loss: effect of a file that cannot be read or written, for the log.
        """
        self._path, self._kind, self._loss = path, kind, loss
        self._failing = False

    def load(self) -> _T | None:
        """Return the saved record, or None if there is no readable file."""
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=self._kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read, %s: %s", self._path, self._loss, error)
            return None

    def save(self, record: _T) -> None:
        """Replace the file. A disk failure is logged once; until it works again only memory keeps the record."""
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(record))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            if not self._failing:
                log.warning("%s cannot be written, after a restart %s: %s", self._path, self._loss, error)
            self._failing = True
            with contextlib.suppress(OSError):
                fresh.unlink()
        else:
            self._failing = False
