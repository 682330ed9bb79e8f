"""Minimal HTTP client with low cost: one persistent connection that posts and reads status and body.

It is meant for load generators on the same machine as the server. It supports only the responses of a gpufleet hub.
"""

import asyncio
from typing import NamedTuple


class Response(NamedTuple):
    """HTTP response: status (0 for a broken connection), seconds of Retry-After or 0, and body."""

    status: int
    retry_after: float
    content: bytes


class Connection(asyncio.Protocol):
    """HTTP connection, opened on demand."""

    def __init__(self, port: int, path: str, content_type: str) -> None:
        self._port = port
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {content_type}\r\nContent-Length: "
        ).encode()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: asyncio.Future[Response] | None = None

    async def post(self, body: bytes) -> Response:
        """Post a body. Return the response."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            try:
                self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
            except OSError:
                return Response(0, 0.0, b"")
            self._received.clear()
        self._waiting = loop.create_future()
        self._transport.writelines((self._head, b"%d\r\n\r\n" % len(body), body))
        return await self._waiting

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Handle received data."""
        received = self._received
        received += data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(received[:end]).lower()
        whole = end + 4 + int(_field(head, b"content-length"))
        if len(received) >= whole:
            response = Response(int(head[9:12]), float(_field(head, b"retry-after")), bytes(received[end + 4 : whole]))
            received.clear()
            self._complete(response)

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete the pending request with status 0."""
        self._transport = None
        self._complete(Response(0, 0.0, b""))

    def _complete(self, response: Response) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(response)


def _field(head: bytes, name: bytes) -> bytes:
    """Return the value of a header, or `0` without one."""
    _, found, rest = head.partition(b"\r\n" + name + b":")
    return rest.partition(b"\r\n")[0].strip() if found else b"0"
