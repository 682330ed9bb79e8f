"""Segment files of a spool and the index of their unacknowledged records."""

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpufleet.spool.record import RECORD_HEADER_BYTES, SegmentHeader, SegmentScan, is_whole

RecordPlace = tuple[int, int, int]
"""Number of a record, offset of its body, and length of its body in bytes."""

AGE_STEPS = 16
"""A segment spans at most 1/16 of the maximum age, so records are dropped at most that much too late."""


class SpoolSegment:
    """Index of the records in one file: 21 bytes of memory for each record, whatever its size.

    Attributes:
        born, touched: monotonic times in seconds at which the first and the last record were written.
    """

    def __init__(self, path: Path, header: SegmentHeader, scan: SegmentScan, *, touched: float) -> None:
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
        """Number of the first record."""
        return self.header.first_seq

    @property
    def next_seq(self) -> int:
        """Number of the last record plus one."""
        return self._seqs[-1] + 1 if self._seqs else self.first_seq

    @property
    def descriptor(self) -> int:
        """Descriptor of the file, which is open while the segment is the newest or not yet durable."""
        assert self.fd is not None, "a segment is open while it is the newest or not yet durable"
        return self.fd

    def is_long(self, now: float, max_age: float) -> bool:
        """Return whether the segment spans enough time to start the next one."""
        return now - self.born > max_age / AGE_STEPS

    def is_expired(self, now: float, max_age: float) -> bool:
        """Return whether the segment has unacknowledged records and all of them exceed the maximum age."""
        return self.waiting_records > 0 and now - self.touched > max_age

    def create(self, header: bytes) -> None:
        """Create the file with its header, durable except for its directory entry. Raises OSError."""
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        write_all(self.fd, [header], len(header), 0)
        os.fsync(self.fd)

    def note(self, seq: int, length: int, now: float) -> None:
        """Index a record that was just written at the end."""
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
        """Drop the records past the durable end from the index; `cut_excess` removes them from the file."""
        while self._offsets and self._offsets[-1] + self._lengths[-1] > self.durable_end:
            seq = self._seqs[-1]
            self.remove([seq])
            for column in (self._seqs, self._offsets, self._lengths, self._gone):
                column.pop()
        self.end = self.durable_end
        self.has_excess = True

    def cut_excess(self) -> None:
        """Truncate the file after the last indexed record. Raises OSError; the call must then be repeated."""
        os.ftruncate(self.descriptor, self.end)
        self.has_excess = False

    def remove(self, seqs: Iterable[int]) -> list[int]:
        """Mark records as acknowledged; return the numbers that were not yet marked."""
        removed = []
        for seq in seqs:
            at = bisect_left(self._seqs, seq)
            if at < len(self._seqs) and self._seqs[at] == seq and not self._gone[at]:
                self._gone[at] = 1
                self.waiting_records -= 1
                self.waiting_bytes -= self._lengths[at]
                removed.append(seq)
        return removed

    def waiting(self, after: int) -> Iterator[RecordPlace]:
        """Yield the place of each unacknowledged record after number `after`, oldest first."""
        at = bisect_left(self._seqs, after + 1)
        while (at := self._gone.find(0, at)) >= 0:
            yield self._seqs[at], self._offsets[at], self._lengths[at]
            at += 1

    def waiting_newest(self, after: int) -> Iterator[RecordPlace]:
        """Yield the places of `waiting` in reverse order, newest first."""
        first = bisect_left(self._seqs, after + 1)
        at = len(self._seqs)
        while (at := self._gone.rfind(0, first, at)) >= 0:
            yield self._seqs[at], self._offsets[at], self._lengths[at]

    def oldest(self) -> int | None:
        """Return the number of the first unacknowledged record, or None."""
        at = self._gone.find(0)
        return self._seqs[at] if at >= 0 else None

    def is_in_place(self) -> bool:
        """Return whether the path still names the open file; False after the file was deleted, moved or replaced."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.descriptor))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file if it is open for writing."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def read_bodies(path: Path, seed: int, places: Iterable[RecordPlace]) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and body of each place in a segment; None for a damaged body.

    Raises:
        OSError: if the file cannot be read; FileNotFoundError if it was deleted meanwhile.
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
    """Write `parts`, `size` bytes in total, at an offset of a file. Raises OSError, possibly after a partial write."""
    written = os.pwritev(fd, parts, offset)
    while written < size:
        written += os.pwrite(fd, b"".join(parts)[written:], offset + written)
