"""One segment file, and which of its records still wait."""

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpufleet.spool.record import RECORD_HEADER_BYTES, Scan, SegmentHeader, is_whole


class Segment:
    """Records of one file by number: 21 bytes of memory each, whatever their bodies are."""

    def __init__(self, path: Path, header: SegmentHeader, scan: Scan) -> None:
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

    def note(self, seq: int, length: int) -> None:
        """Take in a record that was just written at the end."""
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

    def waiting(self, after: int) -> Iterator[tuple[int, int, int]]:
        """Give number, offset and length of each waiting record past `after`."""
        at = bisect_left(self._seqs, after + 1)
        while (at := self._gone.find(0, at)) >= 0:
            yield self._seqs[at], self._offsets[at], self._lengths[at]
            at += 1

    def oldest(self) -> int | None:
        """Return the number of the first waiting record."""
        at = self._gone.find(0)
        return self._seqs[at] if at >= 0 else None

    def close(self) -> None:
        """Close the file if it is open for writing."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def read_bodies(path: Path, seed: int, places: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, bytes | None]]:
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
