"""Reading what a command prints, up to a bound."""

from typing import Protocol

CHUNK_BYTES = 64 << 10


class Readable(Protocol):
    """A stream of bytes, as asyncio and asyncssh have it."""

    async def read(self, n: int) -> bytes:
        """Return at most `n` bytes, and nothing at the end."""
        ...


class TooMuchError(Exception):
    """More came than the bound; whoever asked says of what."""


async def read_all(stream: Readable, limit: int) -> bytes:
    """Read to the end. Raises TooMuchError beyond `limit` bytes."""
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.read(CHUNK_BYTES):
        size += len(piece)
        if size > limit:
            raise TooMuchError
        pieces.append(piece)
    return b"".join(pieces)
