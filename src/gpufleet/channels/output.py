"""Bounded reading of a command's output."""

from typing import Protocol

CHUNK_BYTES = 64 << 10


class ByteReader(Protocol):
    """A stream of bytes with the interface of asyncio and asyncssh."""

    async def read(self, n: int) -> bytes:
        """Return at most `n` bytes, or empty bytes at the end."""
        ...


class OutputTooLargeError(Exception):
    """The output exceeds the limit. The caller reports the command."""


async def read_all(stream: ByteReader, limit: int) -> bytes:
    """Read to the end. Raises OutputTooLargeError beyond `limit` bytes."""
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(CHUNK_BYTES):
        size += len(piece)
        if size > limit:
            raise OutputTooLargeError
        pieces.append(piece)
    return b"".join(pieces)
