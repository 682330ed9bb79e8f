"""Digests of the bodies received last in one run of numbers."""

import hashlib
import struct

from gpufleet.model.time import NANOS

LEAST = 32
"""Bodies that are always remembered: a sender repeats what was not acknowledged to it, which is among its last."""

MOST = 1024
"""Bodies that are remembered of a sender that posts fast, as one with a backlog does, perhaps in bundles of a relay."""

FRESH_SECONDS = 60
"""Beyond the least, a body is remembered for so long; it goes as later ones come, not while nothing does."""

_ENTRY = struct.Struct("<QQI")


def digest_of(body: bytes) -> int:
    """Return 64 bits by which a body is told from another one. It is no signature: nobody gains by forging it."""
    return int.from_bytes(hashlib.sha1(body, usedforsecurity=False).digest()[:8], "little")


class Digests:
    """Number, digest and second of receipt of each body: 20 bytes, the oldest first."""

    def __init__(self, content: bytes = b"") -> None:
        """Take what an earlier one's `content` was."""
        self._entries = bytearray(content)

    @property
    def content(self) -> bytes:
        """Everything that is remembered."""
        return bytes(self._entries)

    def add(self, number: int, digest: int, received_at: int) -> None:
        """Remember a body; `received_at` in nanoseconds since 1970."""
        second = received_at // NANOS & 0xFFFFFFFF
        self._entries += _ENTRY.pack(number, digest, second)
        count = len(self._entries) // _ENTRY.size
        if count <= LEAST:
            return
        _, _, oldest = _ENTRY.unpack_from(self._entries)
        if second - oldest > FRESH_SECONDS:
            del self._entries[: min(2, count - LEAST) * _ENTRY.size]
        elif count > MOST:
            del self._entries[: _ENTRY.size]

    def get(self, number: int) -> int | None:
        """Return the digest of the body of a number, or None if it is not remembered."""
        for known, digest, _ in _ENTRY.iter_unpack(self._entries):
            if known == number:
                return int(digest)
        return None
