"""Byte format of segment files: packing, and a scan that finds every intact record around any damage. Pure.

Checksums are seeded with the spool's epoch, which the authors of bodies do not know. So a body that imitates a record
is never mistaken for one.
"""

import struct
import zlib
from array import array

import msgspec

SEGMENT_MAGIC = b"GFSPOOL1"
RECORD_MAGIC = b"GFrc"

_SEGMENT = struct.Struct("<8s16sQQQ")
_RECORD = struct.Struct("<4sIQqI")
_CHECKSUM = struct.Struct("<I")

SEGMENT_HEADER_BYTES = _SEGMENT.size + _CHECKSUM.size
RECORD_HEADER_BYTES = _RECORD.size + _CHECKSUM.size


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Header of a segment file.

    Attributes:
        epoch: 32 hexadecimal digits.
        first_seq: number of the first record.
        previous_seq: `first_seq` of the segment created before this one, or 0.
        dropped_total: records dropped from the start of the epoch to the creation of this segment.
    """

    epoch: str
    first_seq: int
    previous_seq: int
    dropped_total: int


class SegmentScan(msgspec.Struct, kw_only=True):
    """Result of scanning a segment's bytes.

    Attributes:
        seqs, times, offsets, lengths: number, time, body offset and body length in bytes of each intact record.
        end: offset at which the last intact record ends.
        lost_records: numbers missing between intact records.
        damaged_bytes: bytes before `end` that belong to no intact record.
        torn: whether only the traces of a crash follow `end`: nothing, zeros, or the beginning of the next record.
    """

    seqs: "array[int]"
    times: "array[int]"
    offsets: "array[int]"
    lengths: "array[int]"
    end: int
    lost_records: int = 0
    damaged_bytes: int = 0
    torn: bool = True


def seed_of(epoch: str) -> int:
    """Return the CRC seed of a spool."""
    return zlib.crc32(bytes.fromhex(epoch))


def pack_segment_header(header: SegmentHeader) -> bytes:
    """Return the header bytes of a segment file."""
    head = _SEGMENT.pack(
        SEGMENT_MAGIC, bytes.fromhex(header.epoch), header.first_seq, header.previous_seq, header.dropped_total
    )
    return head + _CHECKSUM.pack(zlib.crc32(head))


def unpack_segment_header(data: bytes) -> SegmentHeader | None:
    """Return the header at the start of `data`, or None if it is incomplete or damaged."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    magic, epoch, first_seq, previous_seq, dropped_total = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC or _CHECKSUM.unpack_from(data, _SEGMENT.size)[0] != zlib.crc32(data[: _SEGMENT.size]):
        return None
    return SegmentHeader(epoch=epoch.hex(), first_seq=first_seq, previous_seq=previous_seq, dropped_total=dropped_total)


def pack_record_header(seed: int, seq: int, at: int, body: bytes) -> bytes:
    """Return the header bytes that precede a body; `at` is the time of the record in nanoseconds since 1970."""
    head = _RECORD.pack(RECORD_MAGIC, len(body), seq, at, zlib.crc32(body, seed))
    return head + _CHECKSUM.pack(zlib.crc32(head, seed))


def scan_segment(data: bytes, seed: int, first_seq: int) -> SegmentScan:
    """Find every intact record of a segment, in order."""
    scan = SegmentScan(
        seqs=array("Q"), times=array("q"), offsets=array("Q"), lengths=array("I"), end=SEGMENT_HEADER_BYTES
    )
    view = memoryview(data)
    expected = first_seq
    offset = SEGMENT_HEADER_BYTES
    while offset >= 0:
        found = _read_header(data, offset, seed)
        if found is not None:
            seq, at, length, checksum = found
            body = offset + RECORD_HEADER_BYTES
            if seq >= expected and zlib.crc32(view[body : body + length], seed) == checksum:
                scan.seqs.append(seq)
                scan.times.append(at)
                scan.offsets.append(body)
                scan.lengths.append(length)
                scan.lost_records += seq - expected
                scan.damaged_bytes += offset - scan.end
                scan.end = offset = body + length
                expected = seq + 1
                continue
        offset = data.find(RECORD_MAGIC, offset + 1)
    scan.torn = _is_torn(data[scan.end :], seed, expected)
    return scan


def _read_header(data: bytes, offset: int, seed: int) -> tuple[int, int, int, int] | None:
    """Return number, time, length and checksum of a record; None if its header is damaged or its body cut off."""
    body = offset + RECORD_HEADER_BYTES
    if body > len(data):
        return None
    magic, length, seq, at, checksum = _RECORD.unpack_from(data, offset)
    if magic != RECORD_MAGIC or body + length > len(data):
        return None
    end = offset + _RECORD.size
    if _CHECKSUM.unpack_from(data, end)[0] != zlib.crc32(data[offset:end], seed):
        return None
    return seq, at, length, checksum


def _is_torn(tail: bytes, seed: int, expected: int) -> bool:
    """Return whether `tail` is left by a crash (never durable), not damage to a record that may have been durable."""
    if tail.count(0) == len(tail):
        return True
    if len(tail) < RECORD_HEADER_BYTES:
        return tail.startswith(RECORD_MAGIC[: len(tail)])
    magic, length, seq, _, _ = _RECORD.unpack_from(tail)
    whole = _CHECKSUM.unpack_from(tail, _RECORD.size)[0] == zlib.crc32(tail[: _RECORD.size], seed)
    return bool(magic == RECORD_MAGIC and whole and seq == expected and len(tail) < RECORD_HEADER_BYTES + length)
