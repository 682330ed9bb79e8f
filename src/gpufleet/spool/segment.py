"""Segment files of a spool and the index of their unacknowledged records."""

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from gpufleet.spool.record import RECORD_HEADER_BYTES, SegmentHeader, SegmentScan, pack_record_header


class SpoolRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of a spool.

    Attributes:
        seq: its number.
        at: time given by the owner on appending, nanoseconds since 1970.
        body: its content.
    """

    seq: int
    at: int
    body: bytes


RecordPlace = tuple[int, int, int, int]
"""Number and time of a record, and the offset and length of its body in bytes."""


class SpoolSegment:
    """Index of the records in one file: 29 bytes of memory for each record, whatever its size.

    Attributes:
        born, touched: monotonic times in seconds at which the first and the last record were written.
        first_seq: number of the first record.
        next_seq: number of the last record plus one.
        end, durable_end: offsets in bytes at which the indexed and the durable records end.
        fd: descriptor of the file, which is open while the segment is the newest or not yet durable; else -1.
        has_excess: whether the file may have bytes after `end`.
        waiting_records, waiting_bytes: number and size of the unacknowledged records.
    """

    def __init__(self, path: Path, header: SegmentHeader, scan: SegmentScan, *, touched: float) -> None:
        self.born = self.touched = touched
        self.path = path
        self.header = header
        self.first_seq = header.first_seq
        self.next_seq = scan.seqs[-1] + 1 if scan.seqs else header.first_seq
        self.end = scan.end
        self.durable_end = scan.end
        self.fd = -1
        self.has_excess = False
        self._seqs: array[int] = scan.seqs
        self._times: array[int] = scan.times
        self._offsets: array[int] = scan.offsets
        self._lengths: array[int] = scan.lengths
        self._gone = bytearray(len(scan.seqs))  # 1 for each acknowledged record
        self.waiting_records = len(scan.seqs)
        self.waiting_bytes = sum(scan.lengths)

    def is_expired(self, now: float, max_age: float) -> bool:
        """Return whether the segment has unacknowledged records and all of them exceed the maximum age."""
        return self.waiting_records > 0 and now - self.touched > max_age

    def create(self, header: bytes) -> None:
        """Create the file with its header, durable except for its directory entry. Raises OSError."""
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _write_all(self.fd, [header], len(header), 0)
        os.fsync(self.fd)

    def append(self, seed: int, record: SpoolRecord, now: float) -> None:
        """Write a record at the end and index it. Raises OSError; the record is not indexed then.

        After an error the file may have excess bytes. They are cut off before the next record.
        """
        if self.has_excess:
            self.cut_excess()
        body = record.body
        size = RECORD_HEADER_BYTES + len(body)
        self.has_excess = True
        header = pack_record_header(seed, record.seq, record.at, body)
        _write_all(self.fd, [header, body], size, self.end)
        self.has_excess = False
        if not self._seqs:
            self.born = now
        self.touched = now
        self._seqs.append(record.seq)
        self._times.append(record.at)
        self._offsets.append(self.end + RECORD_HEADER_BYTES)
        self._lengths.append(len(body))
        self._gone.append(0)
        self.next_seq = record.seq + 1
        self.end += size
        self.waiting_records += 1
        self.waiting_bytes += len(body)

    def cut_back(self) -> None:
        """Drop the records past the durable end from the index; `cut_excess` removes them from the file."""
        while self._offsets and self._offsets[-1] + self._lengths[-1] > self.durable_end:
            self.remove([self._seqs[-1]])
            for column in (self._seqs, self._times, self._offsets, self._lengths, self._gone):
                column.pop()
        self.next_seq = self._seqs[-1] + 1 if self._seqs else self.first_seq
        self.end = self.durable_end
        self.has_excess = True

    def cut_excess(self) -> None:
        """Truncate the file after the last indexed record. Raises OSError; the call must then be repeated."""
        os.ftruncate(self.fd, self.end)
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
            yield self._seqs[at], self._times[at], self._offsets[at], self._lengths[at]
            at += 1

    def waiting_newest(self, after: int) -> Iterator[RecordPlace]:
        """Yield the places of `waiting` in reverse order, newest first."""
        first = bisect_left(self._seqs, after + 1)
        at = len(self._seqs)
        while (at := self._gone.rfind(0, first, at)) >= 0:
            yield self._seqs[at], self._times[at], self._offsets[at], self._lengths[at]

    def oldest(self) -> tuple[int, int]:
        """Return number and time of the first unacknowledged record. Raises ValueError if there is none."""
        at = self._gone.index(0)
        return self._seqs[at], self._times[at]

    def close(self) -> None:
        """Close the file if it is open for writing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def read_records(path: Path, seed: int, places: Iterable[RecordPlace]) -> Iterator[tuple[int, SpoolRecord | None]]:
    """Yield number and record of each place in a segment; None for a damaged record.

    Raises:
        OSError: if the file cannot be read; FileNotFoundError if it was deleted meanwhile.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for seq, at, offset, length in places:
            data = os.pread(fd, RECORD_HEADER_BYTES + length, offset - RECORD_HEADER_BYTES)
            header, body = data[:RECORD_HEADER_BYTES], data[RECORD_HEADER_BYTES:]
            is_whole = header == pack_record_header(seed, seq, at, body)
            yield seq, SpoolRecord(seq, at, body) if is_whole else None
    finally:
        os.close(fd)


def _write_all(fd: int, parts: list[bytes], size: int, offset: int) -> None:
    """Write `parts`, `size` bytes in total, at an offset of a file. Raises OSError, possibly after a partial write."""
    written = os.pwritev(fd, parts, offset)
    while written < size:
        written += os.pwrite(fd, b"".join(parts)[written:], offset + written)
