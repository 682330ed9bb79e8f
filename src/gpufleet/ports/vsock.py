"""Ports of VSOCK connections to KubeVirt's virtual machines."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from gpufleet.ports.channel import Stream


class VsockTarget(msgspec.Struct, frozen=True, kw_only=True):
    """VSOCK of a VirtualMachineInstance whose user permits connections.

    Attributes:
        uid, namespace, name: of the VirtualMachineInstance.
        cid: its CID in a namespace without confinement.
        pods: UIDs of its launcher pods on this node.
    """

    uid: str
    namespace: str
    name: str
    cid: int
    pods: tuple[str, ...]


class TargetLookup(Protocol):
    """Lookup of the present target of a virtual machine."""

    def __call__(self, uid: str) -> VsockTarget:
        """Return the target. Raises ChannelError if connections are not permitted now."""
        ...


class VsockConnector(Protocol):
    """Opens a stream to a port of a virtual machine."""

    async def connect(self, target: VsockTarget, port: int) -> Stream:
        """Open a stream. Raises ChannelError."""
        ...


class UpgradeClient(Protocol):
    """HTTP client that opens streams by an upgrade of the protocol (RFC 9110, 7.8)."""

    async def upgrade(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> "UpgradedStream":
        """Send a GET request that the server answers with 101.

        Raises:
            KubernetesApiError: for any other status, or no answer.
        """
        ...


class UpgradedStream(Protocol):
    """Connection after an upgrade."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the response, with names in lower case."""
        ...

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ChannelError."""
        ...

    async def receive(self, most: int) -> bytes:
        """Receive 1 to `most` bytes, or empty bytes at the end. Raises ChannelError."""
        ...

    async def close(self) -> None:
        """Close the connection; a second close has no effect."""
        ...
