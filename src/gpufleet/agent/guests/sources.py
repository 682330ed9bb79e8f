"""Who tells the agent of virtual machines. Another one adds a file beside this and a line in the wiring.

The folder in which others put a file for each virtual machine to be read, and remove it when it is gone.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from gpufleet.config.guests import MAX_GUESTS, GuestConfig, read_guest
from gpufleet.model.errors import ConfigError

log = logging.getLogger(__name__)

SUFFIX = ".toml"

_Mark = tuple[int, ...]
"""Of a file's content and of its rights: either may mend what is wrong with it."""

_ANYBODY = "may be written by anybody: whoever writes here is believed"


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
        """Return what is there now, or what was while the folder cannot be read.

        A folder that is missing is empty; one that anybody may write to is refused. Of more files than are read those
        that are read already stay.
        """
        try:
            if self._path.stat().st_mode & stat.S_IWOTH:
                self._marks, self._read = {}, {}
                return self._listing(_ANYBODY)
            names = self._names()
        except FileNotFoundError:
            names = []
        except OSError as error:
            return self._listing(f"cannot be read: {error.strerror}")
        names.sort(key=lambda name: (name not in self._read, name))
        for name in set(self._read) - set(names[:MAX_GUESTS]):
            self._forget(name)
        for name in names[:MAX_GUESTS]:
            self._look_at(name)
        more = len(names) - MAX_GUESTS
        return self._listing(f"has {more} files more than {MAX_GUESTS}: they are not read" if more > 0 else "")

    def _names(self) -> list[str]:
        with os.scandir(self._path) as entries:
            names = [entry.name for entry in entries]
        return [name for name in names if name.endswith(SUFFIX) and not name.startswith(".")]

    def _look_at(self, name: str) -> None:
        """Read a file if it changed; one that went away in between is not there."""
        file = self._path / name
        try:
            found = file.stat()
        except OSError as error:
            self._forget(name)
            if file.is_symlink():
                self._read[name] = f"{file}: leads to no file: {error.strerror}"
            return
        mark = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
        if self._marks.get(name) == mark and name in self._read:
            return
        self._marks[name] = mark
        if not stat.S_ISREG(found.st_mode):
            self._read[name] = f"{file}: is no file"
        elif found.st_mode & stat.S_IWOTH:
            self._read[name] = f"{file}: {_ANYBODY}"
        else:
            self._read[name] = self._parse(name)

    def _forget(self, name: str) -> None:
        self._read.pop(name, None)
        self._marks.pop(name, None)

    def _parse(self, name: str) -> GuestConfig | str:
        try:
            return read_guest(self._path / name)
        except ConfigError as error:
            log.error("%s: this virtual machine is not read", error)
            return str(error)

    def _listing(self, wrong: str) -> Listing:
        problems = {name: one for name, one in self._read.items() if isinstance(one, str)}
        guests = {name: one for name, one in sorted(self._read.items()) if not isinstance(one, str)}
        return Listing(guests, problems | ({str(self._path): f"{self._path} {wrong}"} if wrong else {}))


class Source(Protocol):
    """Tells which virtual machines there are. What two tell of is read as the first of them says."""

    @property
    def name(self) -> str:
        """What it is, for people."""
        ...

    @property
    def every_seconds(self) -> float:
        """Between two looks."""
        ...

    @property
    def adds(self) -> bool:
        """Whether it may tell of what others described: theirs holds then, and nothing is wrong."""
        ...

    async def look(self) -> Listing:
        """Return what is there now. What is wrong is in the answer."""
        ...


class Found(msgspec.Struct, frozen=True):
    """A virtual machine to be read, and who told of it."""

    guest: GuestConfig
    by: str


class Configured:
    """Those of the agent's configuration: they never change."""

    name = "configuration"
    every_seconds = 3600.0
    adds = False

    def __init__(self, guests: Sequence[GuestConfig]) -> None:
        self._listing = Listing({guest.title: guest for guest in guests}, {})

    async def look(self) -> Listing:
        """Return them."""
        return self._listing


class InFolder:
    """Those of the folder in which others write and remove files."""

    name = "folder"
    every_seconds = 0.5
    adds = False

    def __init__(self, folder: GuestFolder) -> None:
        self._folder = folder

    async def look(self) -> Listing:
        """Read what changed."""
        return await asyncio.to_thread(self._folder.look)
