"""The folder in which others put a file for each virtual machine to be read, and remove it when it is gone."""

import logging
import os
import stat
from pathlib import Path

import msgspec

from gpufleet.config.guests import MAX_GUESTS, GuestConfig, read_guest
from gpufleet.model.errors import ConfigError

log = logging.getLogger(__name__)

SUFFIX = ".toml"

_Mark = tuple[int, int, int]


class Listing(msgspec.Struct, frozen=True):
    """What is in the folder: virtual machines by the file's name, and what is wrong with the others."""

    guests: dict[str, GuestConfig]
    problems: dict[str, str]


class GuestFolder:
    """Reads the folder again and again; a file is only opened when it changed. Blocking, on small local files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks: dict[str, _Mark] = {}
        self._read: dict[str, GuestConfig | str] = {}

    def look(self) -> Listing:
        """Return what is there now. A folder that is missing is empty; one that anybody may write to is refused."""
        try:
            mode = self._path.stat().st_mode
            marks = self._list() if not mode & stat.S_IWOTH else None
        except FileNotFoundError:
            marks = {}
        except OSError as error:
            return self._nothing(f"cannot be read: {error.strerror}")
        if marks is None:
            return self._nothing("may be written by anybody: whoever writes here is believed")
        for name in [name for name in self._read if name not in marks]:
            del self._read[name]
        for name, mark in marks.items():
            if self._marks.get(name) != mark or name not in self._read:
                self._read[name] = self._parse(name)
        self._marks = marks
        problems = {name: one for name, one in self._read.items() if isinstance(one, str)}
        guests = {name: one for name, one in sorted(self._read.items()) if not isinstance(one, str)}
        return Listing(guests, problems)

    def _list(self) -> dict[str, _Mark]:
        marks: dict[str, _Mark] = {}
        with os.scandir(self._path) as entries:
            for entry in entries:
                if not entry.name.endswith(SUFFIX) or entry.name.startswith("."):
                    continue
                if len(marks) >= MAX_GUESTS:
                    break
                found = entry.stat()
                if stat.S_ISREG(found.st_mode):
                    marks[entry.name] = (found.st_mtime_ns, found.st_size, found.st_ino)
        return marks

    def _parse(self, name: str) -> GuestConfig | str:
        try:
            return read_guest(self._path / name)
        except ConfigError as error:
            log.error("%s: this virtual machine is not read", error)
            return str(error)

    def _nothing(self, words: str) -> Listing:
        self._marks, self._read = {}, {}
        return Listing({}, {str(self._path): f"{self._path} {words}"})
