"""Sources of virtual machines: the agent's configuration and a watched folder. A new source is added in the wiring."""

import asyncio
import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from gpufleet.config.guests import MAX_GUESTS, GuestConfig, read_guest
from gpufleet.model.errors import ConfigError
from gpufleet.ports.guests import GuestListing

log = logging.getLogger(__name__)

SUFFIX = ".toml"

_FileState = tuple[int, ...]
"""Identity of a file's content and permissions. A change of either may fix a problem."""

_WORLD_WRITABLE = "is world-writable: remove the write permission of others"


class GuestFolder:
    """A watched folder with one file per virtual machine. Reads changed files only. Blocking, on small local files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_states: dict[str, _FileState] = {}
        self._read: dict[str, GuestConfig | str] = {}

    def list_guests(self) -> GuestListing:
        """Return the current content of the folder, or the last known content if it cannot be read.

        A missing folder is empty; a world-writable one is refused. Beyond `MAX_GUESTS` files, files read before have
        precedence.
        """
        try:
            if self._path.stat().st_mode & stat.S_IWOTH:
                self._file_states, self._read = {}, {}
                return self._listing(_WORLD_WRITABLE)
            names = self._names()
        except FileNotFoundError:
            names = []
        except OSError as error:
            return self._listing(f"cannot be read: {error.strerror}")
        names.sort(key=lambda name: (name not in self._read, name))
        for name in set(self._read) - set(names[:MAX_GUESTS]):
            self._drop(name)
        for name in names[:MAX_GUESTS]:
            self._read_if_changed(name)
        excess = len(names) - MAX_GUESTS
        return self._listing(f"has {excess} files too many: the limit is {MAX_GUESTS}" if excess > 0 else "")

    def _names(self) -> list[str]:
        with os.scandir(self._path) as entries:
            names = [entry.name for entry in entries]
        return [name for name in names if name.endswith(SUFFIX) and not name.startswith(".")]

    def _read_if_changed(self, name: str) -> None:
        """Read a file if it changed; ignore it if it was removed meanwhile."""
        file = self._path / name
        try:
            found = file.stat()
        except OSError as error:
            self._drop(name)
            if file.is_symlink():
                self._read[name] = f"{file}: broken link: {error.strerror}"
            return
        file_state = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
        if self._file_states.get(name) == file_state and name in self._read:
            return
        self._file_states[name] = file_state
        if not stat.S_ISREG(found.st_mode):
            self._read[name] = f"{file}: not a regular file"
        elif found.st_mode & stat.S_IWOTH:
            self._read[name] = f"{file}: {_WORLD_WRITABLE}"
        else:
            self._read[name] = self._parse(name)

    def _drop(self, name: str) -> None:
        self._read.pop(name, None)
        self._file_states.pop(name, None)

    def _parse(self, name: str) -> GuestConfig | str:
        try:
            return read_guest(self._path / name)
        except ConfigError as error:
            log.error("%s: virtual machine ignored", error)
            return str(error)

    def _listing(self, problem: str) -> GuestListing:
        problems = {name: entry for name, entry in self._read.items() if isinstance(entry, str)}
        guests = {name: entry for name, entry in sorted(self._read.items()) if not isinstance(entry, str)}
        return GuestListing(guests, problems | ({str(self._path): f"{self._path} {problem}"} if problem else {}))


class ConfiguredGuests:
    """Virtual machines of the agent's configuration. They never change."""

    name = "configuration"
    every_seconds = 3600.0
    adds = False

    def __init__(self, guests: Sequence[GuestConfig]) -> None:
        self._listing = GuestListing({guest.title: guest for guest in guests}, {})

    async def list_guests(self) -> GuestListing:
        """Return them."""
        return self._listing


class FolderGuests:
    """Virtual machines of the watched folder, where other programs add and remove files."""

    name = "folder"
    every_seconds = 0.5
    adds = False

    def __init__(self, folder: GuestFolder) -> None:
        self._folder = folder

    async def list_guests(self) -> GuestListing:
        """Read the changed files."""
        return await asyncio.to_thread(self._folder.list_guests)
