"""The guest source port: discovery of virtual machines that are read from inside."""

from typing import Protocol

import msgspec

from gpufleet.config.guests import GuestConfig
from gpufleet.model.absence import Absent


class GuestDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a virtual machine beside its description.

    Attributes:
        labels: its labels, for series about it.
        unread: why the source does not permit to connect to it, or None.
        hugepages: whether its memory is of huge pages of the host, by its definition; None if the source has none.
    """

    labels: dict[str, str] = {}
    unread: Absent | None = None
    hugepages: bool | None = None


class GuestListing(msgspec.Struct, frozen=True):
    """Virtual machines by label, problems by label, and details of some of the virtual machines by label."""

    guests: dict[str, GuestConfig]
    problems: dict[str, str]
    details: dict[str, GuestDetails] = {}


class DiscoveredGuest(msgspec.Struct, frozen=True):
    """A virtual machine, and the source and label under which it was found."""

    guest: GuestConfig
    by: str
    details: GuestDetails = GuestDetails()


class GuestSource(Protocol):
    """Discovers virtual machines. For a machine in several sources, the first source's description applies."""

    @property
    def name(self) -> str:
        """Name for people."""
        ...

    @property
    def every_seconds(self) -> float:
        """Interval between two calls of `list_guests`."""
        ...

    @property
    def adds(self) -> bool:
        """Whether the source may repeat machines of earlier sources without that being a problem."""
        ...

    async def list_guests(self) -> GuestListing:
        """Return the virtual machines that exist now. Problems are part of the result."""
        ...
