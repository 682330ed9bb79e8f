"""Digests of the bodies received last in one run of numbers."""

import hashlib
import struct

BODIES = 32
"""Bodies that are remembered: a sender repeats what was not acknowledged to it, which is among the last it posted."""

_ENTRY = struct.Struct("<QQ")


def digest_of(body: bytes) -> int:
    """Return 64 bits by which a body is told from another one. It is no signature: nobody gains by forging it."""
    return int.from_bytes(hashlib.sha1(body, usedforsecurity=False).digest()[:8], "little")


class Digests:
    """A ring of (number, digest): 16 bytes each, the oldest overwritten first."""

    def __init__(self, content: bytes = b"", following: int = 0) -> None:
        """Take what an earlier ring's `content` and `following` were."""
        self._ring = bytearray(content)
        self.following = following

    @property
    def content(self) -> bytes:
        """The ring's bytes."""
        return bytes(self._ring)

    def add(self, number: int, digest: int) -> None:
        """Remember a body."""
        at = self.following * _ENTRY.size
        if at == len(self._ring):
            self._ring += bytes(_ENTRY.size)
        _ENTRY.pack_into(self._ring, at, number, digest)
        self.following = (self.following + 1) % BODIES

    def get(self, number: int) -> int | None:
        """Return the digest of the body of a number, or None if it is not among the last."""
        for known, digest in _ENTRY.iter_unpack(self._ring):
            if known == number:
                return int(digest)
        return None
