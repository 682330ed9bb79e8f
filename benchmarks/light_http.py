"""An HTTP client that costs next to nothing: one kept connection that posts, and reads a status and a body.

For load that is made beside the server that it loads; it supports only the responses of this project's hub.
"""

import asyncio
from typing import NamedTuple


class Answered(NamedTuple):
    """Status (0 where the connection broke), the seconds of Retry-After or 0, and the body."""

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
        self._got = bytearray()
        self._waiting: asyncio.Future[Answered] | None = None

    async def post(self, body: bytes) -> Answered:
        """Post a body and return what was answered."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            try:
                self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self._port)
            except OSError:
                return Answered(0, 0.0, b"")
            self._got.clear()
        self._waiting = loop.create_future()
        self._transport.writelines((self._head, b"%d\r\n\r\n" % len(body), body))
        return await self._waiting

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        got = self._got
        got += data
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(got[:end]).lower()
        whole = end + 4 + int(_field(head, b"content-length"))
        if len(got) >= whole:
            answered = Answered(int(head[9:12]), float(_field(head, b"retry-after")), bytes(got[end + 4 : whole]))
            got.clear()
            self._complete(answered)

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete the pending request with status 0."""
        self._transport = None
        self._complete(Answered(0, 0.0, b""))

    def _complete(self, answered: Answered) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answered)


def _field(head: bytes, name: bytes) -> bytes:
    """Return a header's value, `0` where it is not there."""
    _, found, rest = head.partition(b"\r\n" + name + b":")
    return rest.partition(b"\r\n")[0].strip() if found else b"0"
