"""A stream over a connected socket of any family, and how one is connected.

Built on the event loop's socket calls: its transports (uvloop's above all) take only the families they know, and
AF_VSOCK is none of them.
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
    """The Stream port over a socket that is connected."""

    def __init__(self, connected: socket.socket, name: str) -> None:
        self._socket = connected
        self._name = name

    async def send(self, data: bytes) -> None:
        """Send all of `data`. Raises ChannelError when the other side is gone."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except OSError as error:
            raise self._ended(error) from None

    async def receive(self, most: int) -> bytes:
        """Receive at least a byte and at most `most`; nothing once the other side has ended. Raises ChannelError."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, min(most, CHUNK_BYTES))
        except OSError as error:
            raise self._ended(error) from None

    async def receive_exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises ChannelError when the other side ends before that."""
        data = bytearray()
        while len(data) < count:
            chunk = await self.receive(count - len(data))
            if not chunk:
                words = f"{self._name}: the other side ended after {len(data)} of {count} bytes"
                raise ChannelError(words, ChannelProblem.ENDED)
            data += chunk
        return bytes(data)

    async def close(self) -> None:
        """Close; a second close does nothing."""
        self._socket.close()

    def _ended(self, error: OSError) -> ChannelError:
        return ChannelError(f"{self._name}: {error.strerror or error}", ChannelProblem.ENDED)


async def connect(
    unconnected: socket.socket,
    address: Any,
    name: str,
    *,
    timeout_seconds: float,
    silence: ChannelProblem,
    problems: Mapping[int, ChannelProblem],
) -> SocketStream:
    """Connect a socket; it is closed if that fails.

    Args:
        unconnected: of any family; becomes non-blocking.
        address: of its family.
        name: of the address, for the words of errors.
        timeout_seconds: for the connection.
        silence: what it means that nobody answers in that time.
        problems: errno to what it means on this channel.

    Raises:
        ChannelError: if it does not come about.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(unconnected.close)
        unconnected.setblocking(False)
        try:
            async with asyncio.timeout(timeout_seconds):
                code = unconnected.connect_ex(address)
                while code == errno.EAGAIN and unconnected.family == socket.AF_UNIX:
                    await asyncio.sleep(RETRY_SECONDS)  # its queue is full; nothing tells when that is over
                    code = unconnected.connect_ex(address)
                if code == errno.EINPROGRESS:
                    code = await _outcome(unconnected)
        except TimeoutError:
            raise ChannelError(f"{name}: no answer in {timeout_seconds:g} s", silence) from None
        except OSError as error:  # an address that its family does not take
            raise ChannelError(f"{name}: {error.strerror or error}", ChannelProblem.FAILED) from None
        if code:
            problem = problems.get(code, _COMMON.get(code, ChannelProblem.FAILED))
            raise ChannelError(f"{name}: {os.strerror(code)}", problem)
        stack.pop_all()
    return SocketStream(unconnected, name)


async def _outcome(connecting: socket.socket) -> int:
    """Wait until a connection has come about or failed; return its errno."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(connecting, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(connecting)
    return connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


_COMMON = {
    errno.EACCES: ChannelProblem.NOT_PERMITTED,
    errno.EPERM: ChannelProblem.NOT_PERMITTED,
    errno.ECONNREFUSED: ChannelProblem.NOBODY_LISTENS,
    errno.EHOSTUNREACH: ChannelProblem.UNREACHABLE,
    errno.ENETUNREACH: ChannelProblem.UNREACHABLE,
    errno.ETIMEDOUT: ChannelProblem.UNREACHABLE,
}
