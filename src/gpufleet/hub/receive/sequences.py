"""Sets of sequence numbers, kept as merged ranges: a year without loss is one range.

Digests of the bodies received last in one run of numbers.

Epochs under which two machines were found to count, since this process started.
"""

import bisect
import hashlib
import logging
import struct
from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.model.api.answer import EpochConflict
from gpufleet.model.stored.ledger import Ranges
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import WireBatch


class Intervals:
    """A set of positive integers that is cheap while it is mostly contiguous."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._count = 0
        for start, end in sorted(ranges):
            if self._ends and start <= self._ends[-1] + 1:
                self._count += max(0, end - self._ends[-1])
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)
                self._count += end - start + 1

    def __contains__(self, number: int) -> bool:
        position = bisect.bisect_right(self._starts, number) - 1
        return position >= 0 and number <= self._ends[position]

    def __len__(self) -> int:
        return self._count

    def add(self, number: int) -> bool:
        """Add a number; returns whether it was new."""
        position = bisect.bisect_right(self._starts, number)
        if position and number <= self._ends[position - 1]:
            return False
        joins_left = position > 0 and self._ends[position - 1] == number - 1
        joins_right = position < len(self._starts) and self._starts[position] == number + 1
        if joins_left and joins_right:
            self._ends[position - 1] = self._ends[position]
            del self._starts[position], self._ends[position]
        elif joins_left:
            self._ends[position - 1] = number
        elif joins_right:
            self._starts[position] = number
        else:
            self._starts.insert(position, number)
            self._ends.insert(position, number)
        self._count += 1
        return True

    def end_of(self, number: int) -> int:
        """Return the end of the range that has the number, or 0 where none has."""
        position = bisect.bisect_right(self._starts, number) - 1
        return self._ends[position] if position >= 0 and number <= self._ends[position] else 0

    @property
    def ranges(self) -> Ranges:
        """The set as merged ranges, lowest first."""
        return tuple(zip(self._starts, self._ends, strict=True))

    @property
    def range_count(self) -> int:
        """How many ranges it takes to say the set."""
        return len(self._starts)

    @property
    def highest(self) -> int:
        """The highest number, 0 when empty."""
        return self._ends[-1] if self._ends else 0

    @property
    def missing(self) -> int:
        """How many numbers from 1 to the highest are not in the set."""
        return self.highest - self._count

    def gaps(self, limit: int) -> Ranges:
        """Return the lowest ranges of missing numbers, at most `limit` of them."""
        found: list[tuple[int, int]] = []
        expected = 1
        for start, end in zip(self._starts, self._ends, strict=True):
            if len(found) == limit:
                break
            if start > expected:
                found.append((expected, start - 1))
            expected = end + 1
        return tuple(found)


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


LOG = logging.getLogger(__name__)

SENDERS_KEPT = 10_000
"""Senders whose newest conflict is remembered; beyond it, the one that has been quiet for longest goes."""


class Conflicts:
    """The newest conflict of each sender. Lives on the event loop."""

    def __init__(self) -> None:
        self._by_sender: dict[tuple[str, str], EpochConflict] = {}

    def note(self, batch: WireBatch, words: str, at: int) -> None:
        """Remember that a batch was turned away, and why; `at` is the hub's clock in nanoseconds since 1970."""
        who = batch.cluster, batch.sender
        before = self._by_sender.pop(who, None)
        now = to_datetime(at)
        if before is not None and before.epoch == batch.epoch:
            found = msgspec.structs.replace(before, batches=before.batches + 1, last_at=now, detail=words)
        else:
            found = EpochConflict(epoch=batch.epoch, batches=1, first_at=now, last_at=now, detail=words)
            LOG.warning("two machines post as %s of cluster %s under epoch %s: %s", *reversed(who), batch.epoch, words)
        self._by_sender[who] = found
        if len(self._by_sender) > SENDERS_KEPT:
            del self._by_sender[next(iter(self._by_sender))]

    def of(self, cluster: str, sender: str) -> EpochConflict | None:
        """Return the newest conflict of a sender."""
        return self._by_sender.get((cluster, sender))

    def known(self) -> Mapping[tuple[str, str], EpochConflict]:
        """Return the newest conflict of each sender that has one, by cluster and sender, as it is now."""
        return dict(self._by_sender)
