"""One segment file, and which of its records still wait."""

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpufleet.spool.record import RECORD_HEADER_BYTES, Scan, SegmentHeader, is_whole

Place = tuple[int, int, int]
"""Where a record is: its number, the offset of its body, and the body's length."""

AGE_STEPS = 16
"""A segment spans at most this part of the greatest age: records go within that much of it."""


class Segment:
    """Records of one file by number: 21 bytes of memory each, whatever their bodies are.

    Attributes:
        born, touched: when its first and its last record were written, by the monotonic clock.
    """

    def __init__(self, path: Path, header: SegmentHeader, scan: Scan, *, touched: float) -> None:
        self.born = self.touched = touched
        self.path = path
        self.header = header
        self.end = scan.end
        self.durable_end = scan.end
        self.fd: int | None = None
        self.has_excess = False
        self._seqs: array[int] = scan.seqs
        self._offsets: array[int] = scan.offsets
        self._lengths: array[int] = scan.lengths
        self._gone = bytearray(len(scan.seqs))
        self.waiting_records = len(scan.seqs)
        self.waiting_bytes = sum(scan.lengths)

    @property
    def first_seq(self) -> int:
        """Number of the first record it may hold."""
        return self.header.first_seq

    @property
    def next_seq(self) -> int:
        """One more than the number of its last record."""
        return self._seqs[-1] + 1 if self._seqs else self.first_seq

    @property
    def descriptor(self) -> int:
        """The open file: a segment is open while it is the newest, and until it is durable."""
        assert self.fd is not None, "open while it is the newest, and until it is durable"
        return self.fd

    def is_long(self, now: float, max_age: float) -> bool:
        """Tell whether it spans enough time to be followed by another."""
        return now - self.born > max_age / AGE_STEPS

    def is_expired(self, now: float, max_age: float) -> bool:
        """Tell whether something waits here, and nothing of it is young enough."""
        return self.waiting_records > 0 and now - self.touched > max_age

    def create(self, header: bytes) -> None:
        """Make the file with its header, durable but for its name. Raises OSError."""
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        write_all(self.fd, [header], len(header), 0)
        os.fsync(self.fd)

    def note(self, seq: int, length: int, now: float) -> None:
        """Take in a record that was just written at the end."""
        if not self._seqs:
            self.born = now
        self.touched = now
        self._seqs.append(seq)
        self._offsets.append(self.end + RECORD_HEADER_BYTES)
        self._lengths.append(length)
        self._gone.append(0)
        self.end += RECORD_HEADER_BYTES + length
        self.waiting_records += 1
        self.waiting_bytes += length

    def cut_back(self) -> None:
        """Forget the records past the durable end; `cut_excess` takes them out of the file."""
        while self._offsets and self._offsets[-1] + self._lengths[-1] > self.durable_end:
            seq = self._seqs[-1]
            self.remove([seq])
            for column in (self._seqs, self._offsets, self._lengths, self._gone):
                column.pop()
        self.end = self.durable_end
        self.has_excess = True

    def cut_excess(self) -> None:
        """Cut the file after the last record that counts. Raises OSError, and then it is still to be done."""
        os.ftruncate(self.descriptor, self.end)
        self.has_excess = False

    def remove(self, seqs: Iterable[int]) -> list[int]:
        """Mark records as no longer waiting; return the numbers of those that were."""
        removed = []
        for seq in seqs:
            at = bisect_left(self._seqs, seq)
            if at < len(self._seqs) and self._seqs[at] == seq and not self._gone[at]:
                self._gone[at] = 1
                self.waiting_records -= 1
                self.waiting_bytes -= self._lengths[at]
                removed.append(seq)
        return removed

    def waiting(self, after: int) -> Iterator[Place]:
        """Give the place of each waiting record past `after`, oldest first."""
        at = bisect_left(self._seqs, after + 1)
        while (at := self._gone.find(0, at)) >= 0:
            yield self._seqs[at], self._offsets[at], self._lengths[at]
            at += 1

    def waiting_newest(self, after: int) -> Iterator[Place]:
        """Give the same, newest first."""
        first = bisect_left(self._seqs, after + 1)
        at = len(self._seqs)
        while (at := self._gone.rfind(0, first, at)) >= 0:
            yield self._seqs[at], self._offsets[at], self._lengths[at]

    def oldest(self) -> int | None:
        """Return the number of the first waiting record."""
        at = self._gone.find(0)
        return self._seqs[at] if at >= 0 else None

    def close(self) -> None:
        """Close the file if it is open for writing."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def read_bodies(path: Path, seed: int, places: Iterable[Place]) -> Iterator[tuple[int, bytes | None]]:
    """Give number and body of each place in a segment; None for a body that is not what was written.

    Raises:
        OSError: if the file cannot be read; FileNotFoundError if it was dropped meanwhile.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for seq, offset, length in places:
            data = os.pread(fd, RECORD_HEADER_BYTES + length, offset - RECORD_HEADER_BYTES)
            header, body = data[:RECORD_HEADER_BYTES], data[RECORD_HEADER_BYTES:]
            yield seq, body if is_whole(seed, header, seq, body) else None
    finally:
        os.close(fd)


def write_all(fd: int, parts: list[bytes], size: int, offset: int) -> None:
    """Write `parts`, `size` bytes together, at a place of a file. Raises OSError, perhaps after some of them."""
    written = os.pwritev(fd, parts, offset)
    while written < size:
        written += os.pwrite(fd, b"".join(parts)[written:], offset + written)
