"""Who tells the agent of virtual machines. Another one adds a file beside this and a line in the wiring."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from gpufleet.agent.guests.folder import GuestFolder, Listing
from gpufleet.config.guests import GuestConfig


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
