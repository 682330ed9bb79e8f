"""Connected sockets of any address family as streams.

Uses the socket methods of the event loop. Its transports, above all uvloop's, support only some address families, not
AF_VSOCK.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Mapping
from typing import Any

from gpufleet.model.errors import ChannelError, ChannelProblem

CHUNK_BYTES = 64 << 10
RETRY_SECONDS = 0.02


class SocketStream:
    """The Stream port over a connected socket."""

    def __init__(self, connected: socket.socket, name: str) -> None:
        self._socket = connected
        self._name = name

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ChannelError if the peer is gone."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError as error:
            raise self._error(error) from None

    async def receive(self, most: int) -> bytes:
        """Receive 1 to `most` bytes, or empty bytes at the end of the stream. Raises ChannelError."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, min(most, CHUNK_BYTES))
        except OSError as error:
            raise self._error(error) from None

    async def receive_exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises ChannelError if the stream ends before that."""
        data = bytearray()
        while len(data) < count:
            chunk = await self.receive(count - len(data))
            if not chunk:
                message = f"{self._name}: the stream ended after {len(data)} of {count} bytes"
                raise ChannelError(message, ChannelProblem.ENDED)
            data += chunk
        return bytes(data)

    async def close(self) -> None:
        """Close the socket; a second close has no effect."""
        self._socket.close()

    def _error(self, error: OSError) -> ChannelError:
        return ChannelError(f"{self._name}: {error.strerror or error}", ChannelProblem.ENDED)


async def connect(
    unconnected: socket.socket,
    address: Any,
    name: str,
    *,
    timeout_seconds: float,
    on_timeout: ChannelProblem,
    problems: Mapping[int, ChannelProblem],
) -> SocketStream:
    """Connect a socket. The socket is closed on failure.

    Args:
        unconnected: socket of any family; becomes non-blocking.
        address: address in the socket's family.
        name: name of the address in error messages.
        timeout_seconds: time limit of the connection.
        on_timeout: problem that a timeout means on this channel.
        problems: errno to problem on this channel.

    Raises:
        ChannelError: if the connection fails.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(unconnected.close)
        unconnected.setblocking(False)
        try:
            async with asyncio.timeout(timeout_seconds):
                code = unconnected.connect_ex(address)
                while code == errno.EAGAIN and unconnected.family == socket.AF_UNIX:
                    await asyncio.sleep(RETRY_SECONDS)  # its queue is full; there is no event for the end of that
                    code = unconnected.connect_ex(address)
                if code == errno.EINPROGRESS:
                    code = await _outcome(unconnected)
        except TimeoutError:
            raise ChannelError(f"{name}: no answer in {timeout_seconds:g} s", on_timeout) from None
        except OSError as error:  # an address that its family does not accept
            raise ChannelError(f"{name}: {error.strerror or error}", ChannelProblem.FAILED) from None
        if code:
            problem = problems.get(code, _COMMON.get(code, ChannelProblem.FAILED))
            raise ChannelError(f"{name}: {os.strerror(code)}", problem)
        stack.pop_all()
    return SocketStream(unconnected, name)


async def _outcome(connecting: socket.socket) -> int:
    """Wait until a connection is established or fails; return its errno."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(connecting, _set_ready, ready)
    try:
        await ready
    finally:
        loop.remove_writer(connecting)
    return connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _set_ready(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


_COMMON = {
    errno.EACCES: ChannelProblem.NOT_PERMITTED,
    errno.EPERM: ChannelProblem.NOT_PERMITTED,
    errno.ECONNREFUSED: ChannelProblem.NO_LISTENER,
    errno.EHOSTUNREACH: ChannelProblem.UNREACHABLE,
    errno.ENETUNREACH: ChannelProblem.UNREACHABLE,
    errno.ETIMEDOUT: ChannelProblem.UNREACHABLE,
}
