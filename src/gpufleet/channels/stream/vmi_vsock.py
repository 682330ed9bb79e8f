"""Dialer of the VSOCK of KubeVirt's virtual machines: consent at each dial, limits, and the ways to a guest."""

import contextlib
import socket
from collections import Counter
from collections.abc import Callable

from gpufleet.channels.stream.dialers import CID_FIRST_GUEST, VsockDialer
from gpufleet.channels.stream.launcher_namespaces import LauncherNamespaces
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.channel import Dialer, Stream
from gpufleet.ports.vsock import TargetLookup, VsockConnector, VsockTarget

MAX_CONNECTIONS = 4
"""Maximum open connections of an agent to one virtual machine: others use the same VSOCK."""

FIRST_PORT = 1024
"""Lowest port that is dialled. KubeVirt uses port 1."""

LOCAL_CID = CID_FIRST_GUEST
"""CID of a guest in a network namespace that confines VSOCK."""


class ConnectionSlots:
    """Limit of the open connections to each virtual machine."""

    def __init__(self, limit: int = MAX_CONNECTIONS) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def take(self, uid: str) -> None:
        """Count a connection. Raises ChannelError if the limit is reached."""
        if self._open[uid] >= self._limit:
            raise ChannelError(f"virtual machine {uid}: {self._limit} connections are open already, the maximum")
        self._open[uid] += 1

    def release(self, uid: str) -> None:
        """Count the end of a connection."""
        self._open[uid] -= 1
        if self._open[uid] <= 0:
            del self._open[uid]


class _CountedStream:
    """A stream that releases its slot when it is closed."""

    def __init__(self, stream: Stream, release: Callable[[], None]) -> None:
        self._stream, self._release = stream, release
        self._is_open = True
        self.send, self.receive, self.receive_exactly = stream.send, stream.receive, stream.receive_exactly

    async def close(self) -> None:
        """Close the stream and release its slot."""
        if self._is_open:
            self._is_open = False
            self._release()
        await self._stream.close()


class VmiVsockDialer:
    """Dials a port of a virtual machine. Its present object must permit it at each dial."""

    def __init__(
        self, uid: str, port: int, *, find: TargetLookup, connector: VsockConnector, slots: ConnectionSlots
    ) -> None:
        """Take the parts.

        Args:
            uid: of the VirtualMachineInstance.
            port: from `FIRST_PORT` on.
            find: looks up the present target.
            connector: opens the stream.
            slots: limit of open connections.

        Raises:
            ValueError: if the port is reserved.
        """
        if port < FIRST_PORT:
            raise ValueError(f"vsock port {port}: ports below {FIRST_PORT} are reserved")
        self._uid, self._port, self._find, self._connector, self._slots = uid, port, find, connector, slots

    async def dial(self) -> Stream:
        """Open a stream. Raises ChannelError."""
        target = self._find(self._uid)
        self._slots.take(self._uid)
        with contextlib.ExitStack() as undo:
            undo.callback(self._slots.release, self._uid)
            stream = await self._connector.connect(target, self._port)
            undo.pop_all()
        return _CountedStream(stream, lambda: self._slots.release(self._uid))


def dial_cid(cid: int, port: int, unconnected: socket.socket) -> Dialer:
    """Return a dialer that connects a socket to a guest."""
    return VsockDialer(cid, port, make_socket=lambda: unconnected)


class NodeVsock:
    """Connects from this node, in the network namespace of the launcher pod where that confines VSOCK."""

    def __init__(
        self,
        namespaces: LauncherNamespaces,
        make_dialer: Callable[[int, int, socket.socket], Dialer] = dial_cid,
    ) -> None:
        self._namespaces, self._make_dialer = namespaces, make_dialer

    async def connect(self, target: VsockTarget, port: int) -> Stream:
        """Open a stream to the CID of the target, or to `LOCAL_CID` in a confined namespace. Raises ChannelError."""
        if target.cid < CID_FIRST_GUEST:
            raise ChannelError(f"vsock CID {target.cid} is not a guest", ChannelProblem.NO_SUCH_VM)
        opened = await self._namespaces.open(target.pods)
        with contextlib.ExitStack() as undo:
            undo.callback(opened.socket.close)
            dialer = self._make_dialer(LOCAL_CID if opened.is_local else target.cid, port, opened.socket)
            stream = await dialer.dial()
            undo.pop_all()
        return stream
