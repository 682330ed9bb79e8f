"""Digests of the bodies received last in one run of numbers."""

import hashlib
import struct

from gpufleet.hub.intervals import Intervals
from gpufleet.model.time import NANOS

LEAST = 32
"""Bodies that are always remembered, of the last and below each hole: a sender repeats what it had no answer to."""

MOST = 16_384
"""Bodies that are remembered of a sender that posts fast, as one with a backlog does. Eight times what a relay with one
sender can have under way: each of its 8 connections posts 256, all unheard if the hub is killed or slow."""

FRESH_SECONDS = 180
"""Beyond the least, a body is remembered for so long; it goes as later ones come, not while nothing does. A relay gives
a post up after 30 s and makes it again within 15. Memory in all is what a hub receives in this time, 20 bytes each."""

_LOOKED_AT = 2 * LEAST
"""Bodies, the oldest, of which each that comes may push out some: what this costs is bounded."""

_PUSHED_OUT = 2
"""Bodies that each that comes may push out."""

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

    def add(self, number: int, digest: int, received_at: int, held: Intervals) -> None:
        """Remember a body, one of those whose numbers are held; `received_at` in nanoseconds since 1970.

        An older one goes when its time is over, unless numbers right above it are missing. Its sender has not got past
        it then: after an outage it posts its newest first, and only later what it had no answer to before.
        """
        second = received_at // NANOS & 0xFFFFFFFF
        self._entries += _ENTRY.pack(number, digest, second)
        self._push_out(second, held)
        if len(self._entries) > MOST * _ENTRY.size:
            del self._entries[: _ENTRY.size]

    def _push_out(self, now: int, held: Intervals) -> None:
        room = min(_PUSHED_OUT, len(self._entries) // _ENTRY.size - LEAST)
        at = 0
        for _ in range(_LOOKED_AT):
            if room <= 0:
                return
            number, _, second = _ENTRY.unpack_from(self._entries, at)
            if now - second <= FRESH_SECONDS:
                return
            if held.end_of(number) < min(number + LEAST, held.highest):
                at += _ENTRY.size
            else:
                del self._entries[at : at + _ENTRY.size]
                room -= 1

    def get(self, number: int) -> int | None:
        """Return the digest of the body of a number, or None if it is not remembered."""
        for known, digest, _ in _ENTRY.iter_unpack(self._entries):
            if known == number:
                return int(digest)
        return None
