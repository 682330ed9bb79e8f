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
_RECORD = struct.Struct("<4sIQI")
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
        seqs, offsets, lengths: number, body offset and body length in bytes of each intact record.
        end: offset at which the last intact record ends.
        lost_records: numbers missing between intact records.
        damaged_bytes: bytes before `end` that belong to no intact record.
        torn: whether only the traces of a crash follow `end`: nothing, zeros, or the beginning of the next record.
    """

    seqs: "array[int]"
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


def pack_record_header(seed: int, seq: int, body: bytes) -> bytes:
    """Return the header bytes that precede a body."""
    head = _RECORD.pack(RECORD_MAGIC, len(body), seq, zlib.crc32(body, seed))
    return head + _CHECKSUM.pack(zlib.crc32(head, seed))


def is_whole(seed: int, header: bytes, seq: int, body: bytes) -> bool:
    """Return whether a header and body read back are those that were written."""
    return header == pack_record_header(seed, seq, body)


def scan_segment(data: bytes, seed: int, first_seq: int) -> SegmentScan:
    """Find every intact record of a segment, in order."""
    scan = SegmentScan(seqs=array("Q"), offsets=array("Q"), lengths=array("I"), end=SEGMENT_HEADER_BYTES)
    view = memoryview(data)
    expected = first_seq
    at = SEGMENT_HEADER_BYTES
    while at >= 0:
        found = _read_header(data, at, seed)
        if found is not None:
            seq, length, checksum = found
            body_at = at + RECORD_HEADER_BYTES
            if seq >= expected and zlib.crc32(view[body_at : body_at + length], seed) == checksum:
                scan.seqs.append(seq)
                scan.offsets.append(body_at)
                scan.lengths.append(length)
                scan.lost_records += seq - expected
                scan.damaged_bytes += at - scan.end
                scan.end = at = body_at + length
                expected = seq + 1
                continue
        at = data.find(RECORD_MAGIC, at + 1)
    scan.torn = _is_torn(data[scan.end :], seed, expected)
    return scan


def _read_header(data: bytes, at: int, seed: int) -> tuple[int, int, int] | None:
    """Return number, length and checksum of the record at `at`; None if its header is damaged or its body cut off."""
    body_at = at + RECORD_HEADER_BYTES
    if body_at > len(data):
        return None
    magic, length, seq, checksum = _RECORD.unpack_from(data, at)
    if magic != RECORD_MAGIC or body_at + length > len(data):
        return None
    if _CHECKSUM.unpack_from(data, at + _RECORD.size)[0] != zlib.crc32(data[at : at + _RECORD.size], seed):
        return None
    return seq, length, checksum


def _is_torn(tail: bytes, seed: int, expected: int) -> bool:
    """Return whether `tail` is left by a crash (never durable), not damage to a record that may have been durable."""
    if tail.count(0) == len(tail):
        return True
    if len(tail) < RECORD_HEADER_BYTES:
        return tail.startswith(RECORD_MAGIC[: len(tail)])
    magic, length, seq, _ = _RECORD.unpack_from(tail)
    whole = _CHECKSUM.unpack_from(tail, _RECORD.size)[0] == zlib.crc32(tail[: _RECORD.size], seed)
    return bool(magic == RECORD_MAGIC and whole and seq == expected and len(tail) < RECORD_HEADER_BYTES + length)
