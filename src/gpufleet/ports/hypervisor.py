"""The hypervisor port: the virtual machines of a host and their definitions."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class DomainDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine and its definition.

    Attributes:
        name: its name, without control characters, at most 253 characters. It can be empty.
        uuid: its UUID, `8-4-4-4-12` hexadecimal digits in lower case.
        id: its number while it runs; the next start has another.
        xml: its definition in libvirt's format, with the devices that it has now.
    """

    name: str
    uuid: str
    id: int
    xml: bytes


class Hypervisor(Protocol):
    """A hypervisor that can be queried."""

    async def domains(self) -> Sequence[DomainDocument]:
        """Return the running and paused virtual machines.

        Raises:
            ChannelError: if the hypervisor does not answer.
            WireError: if it refuses the connection or its answer is malformed.
        """
        ...
