"""Sets of sequence numbers, digests of recent bodies, and epoch conflicts since the process started."""

import bisect
import hashlib
import logging
import math
import struct
from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.model.api.senders import EpochConflict
from gpufleet.model.stored.ledger import Ranges
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import WireBatch


def is_within(ranges: Ranges, number: int) -> bool:
    """Return whether a number is in merged ranges."""
    position = bisect.bisect_right(ranges, (number, math.inf)) - 1
    return position >= 0 and number <= ranges[position][1]


def missing_of(ranges: Ranges) -> int:
    """Return the number of integers from 1 to the end of merged ranges that are not in them."""
    return ranges[-1][1] - sum(end - start + 1 for start, end in ranges) if ranges else 0


class Intervals:
    """A set of positive integers stored as merged ranges: a year of batches without loss is one range."""

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
        """Add a number; return whether it was new."""
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
        """Return the end of the range that contains the number, or 0 if none does."""
        position = bisect.bisect_right(self._starts, number) - 1
        return self._ends[position] if position >= 0 and number <= self._ends[position] else 0

    @property
    def ranges(self) -> Ranges:
        """Merged ranges, lowest first."""
        return tuple(zip(self._starts, self._ends, strict=True))

    @property
    def range_count(self) -> int:
        """Number of merged ranges."""
        return len(self._starts)

    @property
    def highest(self) -> int:
        """The highest number, 0 if the set is empty."""
        return self._ends[-1] if self._ends else 0

    @property
    def missing(self) -> int:
        """Number of integers from 1 to the highest that are not in the set."""
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


MIN_BODIES = 32
"""Digests always kept of the newest bodies and below each gap, because a sender repeats unacknowledged bodies."""

MAX_BODIES = 16_384
"""Maximum number of digests kept, reached by a fast sender such as one with a backlog.

It is eight times what a relay with one sender can have in flight. Each of the relay's 8 connections posts 256 bodies,
all unacknowledged if the hub is killed or slow.
"""

RETENTION_SECONDS = 180
"""Retention of digests beyond `MIN_BODIES`. Old digests are evicted only when new ones are added.

A relay abandons a post after 30 s and repeats it within 15 s. Memory in total is 20 bytes for each body that the hub
receives in this time.
"""

_MAX_SCANNED = 2 * MIN_BODIES
"""Oldest digests examined for eviction on each addition, which bounds its cost."""

_MAX_EVICTED = 2
"""Maximum number of digests evicted on each addition."""

_ENTRY = struct.Struct("<QQI")


def digest_of(body: bytes) -> int:
    """Return a 64-bit digest of a body. It is not a signature: forging it gives an attacker no advantage."""
    return int.from_bytes(hashlib.sha1(body, usedforsecurity=False).digest()[:8], "little")


class BodyDigests:
    """Number, digest and second of receipt of recent bodies, oldest first, in 20 bytes each."""

    def __init__(self, content: bytes = b"") -> None:
        """Restore the `content` of an earlier instance."""
        self._entries = bytearray(content)

    @property
    def content(self) -> bytes:
        """Entries as bytes, for storage."""
        return bytes(self._entries)

    def add(self, number: int, digest: int, received_at: int, held: Intervals) -> None:
        """Add a body and evict expired ones.

        An expired entry is kept while numbers just above it are missing. After an outage a sender posts its newest
        bodies first, and may still repeat that entry's body later.

        Args:
            number: of the body; already in `held`.
            digest: of the body.
            received_at: nanoseconds since 1970.
            held: numbers held of the run.
        """
        second = received_at // NANOS & 0xFFFFFFFF
        self._entries += _ENTRY.pack(number, digest, second)
        self._evict(second, held)
        if len(self._entries) > MAX_BODIES * _ENTRY.size:
            del self._entries[: _ENTRY.size]

    def _evict(self, now: int, held: Intervals) -> None:
        room = min(_MAX_EVICTED, len(self._entries) // _ENTRY.size - MIN_BODIES)
        at = 0
        for _ in range(_MAX_SCANNED):
            if room <= 0:
                return
            number, _, second = _ENTRY.unpack_from(self._entries, at)
            if now - second <= RETENTION_SECONDS:
                return
            if held.end_of(number) < min(number + MIN_BODIES, held.highest):
                at += _ENTRY.size
            else:
                del self._entries[at : at + _ENTRY.size]
                room -= 1

    def get(self, number: int) -> int | None:
        """Return the digest of the body with a number, or None if it is unknown."""
        for known, digest, _ in _ENTRY.iter_unpack(self._entries):
            if known == number:
                return int(digest)
        return None


LOG = logging.getLogger(__name__)

MAX_SENDERS = 10_000
"""Maximum number of senders with a recorded conflict; beyond it, the least recently updated is dropped."""


class EpochConflicts:
    """The newest epoch conflict of each sender. Use it from the event loop."""

    def __init__(self) -> None:
        self._by_sender: dict[tuple[str, str], EpochConflict] = {}

    def note(self, batch: WireBatch, detail: str, at: int) -> None:
        """Record a rejected batch and the reason; `at` is the hub's clock in nanoseconds since 1970."""
        who = batch.cluster, batch.sender
        before = self._by_sender.pop(who, None)
        now = to_datetime(at)
        if before is not None and before.epoch == batch.epoch:
            found = msgspec.structs.replace(before, batches=before.batches + 1, last_at=now, detail=detail)
        else:
            found = EpochConflict(epoch=batch.epoch, batches=1, first_at=now, last_at=now, detail=detail)
            LOG.warning("two machines post as %s of cluster %s under epoch %s: %s", *reversed(who), batch.epoch, detail)
        self._by_sender[who] = found
        if len(self._by_sender) > MAX_SENDERS:
            del self._by_sender[next(iter(self._by_sender))]

    def of(self, cluster: str, sender: str) -> EpochConflict | None:
        """Return the newest conflict of a sender."""
        return self._by_sender.get((cluster, sender))

    def known(self) -> Mapping[tuple[str, str], EpochConflict]:
        """Return a snapshot of the newest conflicts by cluster and sender."""
        return dict(self._by_sender)
