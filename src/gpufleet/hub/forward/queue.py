"""Requests that wait for the database, on disk: bounded, oldest first, and there again after a restart."""

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

from gpufleet.codecs.remote_write.encode import Point
from gpufleet.sending.outlet import Parcel
from gpufleet.spool import Spool

POINTS = 5000
"""Of one request."""

SEGMENT_BYTES = 8 << 20
_HEAD = struct.Struct(">I")


class ForwardQueue:
    """The queue. `put` on the thread that writes to the store, `read` and `done` on any."""

    def __init__(self, spool: Spool, encode: Callable[[Sequence[Point]], bytes]) -> None:
        """Take the spool, and what writes the body of a request."""
        self._spool, self._encode = spool, encode

    @classmethod
    def open(cls, folder: Path, *, max_bytes: int, encode: Callable[[Sequence[Point]], bytes]) -> Self:
        """Open it, or make one. Blocking. Raises SpoolError."""
        segment = min(SEGMENT_BYTES, max_bytes // 4)
        return cls(Spool.open(folder, max_bytes=max_bytes, segment_bytes=segment), encode)

    @property
    def requests(self) -> int:
        """Requests that wait."""
        return self._spool.depth.records

    @property
    def bytes(self) -> int:
        """Bytes of their bodies."""
        return self._spool.depth.bytes

    @property
    def dropped(self) -> int:
        """Requests that gave way to newer ones, or that the disk lost, since the queue was made."""
        return self._spool.dropped_total + self._spool.recovery.lost_records

    def put(self, points: Iterable[Point]) -> int:
        """Add points, durably; return how many. Blocking.

        Raises:
            SpoolError: if the disk refuses; some of them may be in the queue.
        """
        points, count = iter(points), 0
        while part := list(islice(points, POINTS)):
            self._spool.append(_HEAD.pack(len(part)) + self._encode(part))
            count += len(part)
        if count:
            self._spool.sync()
        return count

    def read(self, most: int) -> list[tuple[int, Parcel]]:
        """Return the oldest requests with their numbers, and at least one if there is any. Blocking."""
        found = self._spool.read(max_records=most, max_bytes=SEGMENT_BYTES)
        return [(number, Parcel(body[_HEAD.size :], _HEAD.unpack_from(body)[0])) for number, body in found]

    def done(self, number: int) -> None:
        """Forget one. Blocking."""
        self._spool.acknowledge([number])

    def close(self) -> None:
        """Close it."""
        self._spool.close()
