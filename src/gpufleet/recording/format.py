"""Byte format of recordings: file header, frames, and the index at the end. Pure.

Checksums of frames and index are seeded with the recording's random id, which the authors of documents do not know. So
a document with the form of a frame is never read as a frame.
"""

import struct
import zlib
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from gpufleet.model.errors import RecordingError

MAGIC = b"GFREC\x00\r\n"
"""First bytes of a recording. A transfer in text mode changes the line ends, which shows at once."""

VERSION = 1
FRAME_MAGIC = b"GFfr"
_INDEX_MAGIC = b"GFix"
_FOOTER_MAGIC = b"GFRECEND"

MAX_BODY_BYTES = 64 << 20
"""Maximum size of the compressed document of a frame."""

MAX_GROUP = 1000
"""Maximum number of machines of a poll, whose frames have the same time."""

MAX_GROUP_BYTES = 256 << 20
"""Maximum size of the documents of a poll."""

MAX_NUMBER = 2**53
"""Maximum number of a frame."""

MAX_ENTRIES = 4096
"""Maximum number of entries of an index."""

_HEADER = struct.Struct("<8sHH16sq")
_FRAME = struct.Struct("<4sIQqQI")
_INDEX = struct.Struct("<4sIQqq")
_ENTRY = struct.Struct("<qQQ")
_FOOTER = struct.Struct("<8sQ")
_CHECKSUM = struct.Struct("<I")

HEADER_BYTES = _HEADER.size + _CHECKSUM.size
FRAME_HEADER_BYTES = _FRAME.size + _CHECKSUM.size
FOOTER_BYTES = _FOOTER.size + _CHECKSUM.size
MAX_INDEX_BYTES = _INDEX.size + MAX_ENTRIES * _ENTRY.size + _CHECKSUM.size


class RecordingHeader(msgspec.Struct, frozen=True):
    """Header of a recording.

    Attributes:
        id: 16 random bytes.
        created_at: creation time, nanoseconds since 1970.
    """

    id: bytes
    created_at: int

    @property
    def seed(self) -> int:
        """Return the seed of the checksums."""
        return zlib.crc32(self.id)


class FrameHeader(msgspec.Struct, frozen=True):
    """Header of a frame.

    Attributes:
        number: number of the frame, from 1.
        at: time of the frame, nanoseconds since 1970.
        key: position of its key frame, whose document is the dictionary of its body; 0 if the body needs none.
        length: bytes of its body.
        checksum: seeded CRC-32 of its body.
    """

    number: int
    at: int
    key: int
    length: int
    checksum: int


class IndexEntry(msgspec.Struct, frozen=True):
    """Place of a frame.

    Attributes:
        latest: latest time of this frame and all earlier frames, nanoseconds since 1970.
        number: number of the frame.
        offset: position of its header in the file.
    """

    latest: int
    number: int
    offset: int


class StoredIndex(msgspec.Struct, frozen=True):
    """Index of a recording.

    Attributes:
        frames: number of frames.
        first_at: time of the first frame.
        latest_at: latest time of a frame; not that of the last frame if the clock was set back.
        entries: places of some frames, in the order of the file.
    """

    frames: int
    first_at: int
    latest_at: int
    entries: Sequence[IndexEntry]


def pack_header(header: RecordingHeader) -> bytes:
    """Return the first bytes of a recording."""
    head = _HEADER.pack(MAGIC, VERSION, 0, header.id, header.created_at)
    return head + _CHECKSUM.pack(zlib.crc32(head))


def unpack_header(data: bytes) -> RecordingHeader:
    """Return the header at the start of a recording.

    Raises:
        RecordingError: if it is not a recording, has another version, or is damaged.
    """
    if not data.startswith(MAGIC):
        raise RecordingError(0, "not a recording of gpufleet")
    if len(data) < HEADER_BYTES:
        raise RecordingError(len(data), "the file ends in its header: no frame was recorded")
    _, version, _, identity, created_at = _HEADER.unpack_from(data)
    if version != VERSION:
        raise RecordingError(len(MAGIC), f"format version {version} is not {VERSION}: use the gpufleet that wrote it")
    if not _has_checksum(data, _HEADER.size, 0):
        raise RecordingError(0, "the header is damaged")
    return RecordingHeader(identity, created_at)


def make_frame_header(seed: int, number: int, at: int, body: bytes, key: int = 0) -> FrameHeader:
    """Return the header of a frame with this body."""
    return FrameHeader(number, at, key, len(body), zlib.crc32(body, seed))


def pack_frame_header(seed: int, header: FrameHeader) -> bytes:
    """Return the bytes that precede the body of a frame."""
    head = _FRAME.pack(FRAME_MAGIC, header.length, header.number, header.at, header.key, header.checksum)
    return head + _CHECKSUM.pack(zlib.crc32(head, seed))


def unpack_frame_header(seed: int, data: bytes, offset: int = 0) -> FrameHeader | None:
    """Return the frame header at an offset of `data`, or None if there is no intact header."""
    if not data.startswith(FRAME_MAGIC, offset) or not _has_checksum(data, offset + _FRAME.size, seed, offset):
        return None
    _, length, number, at, key, checksum = _FRAME.unpack_from(data, offset)
    is_valid = length <= MAX_BODY_BYTES and 1 <= number <= MAX_NUMBER
    return FrameHeader(number, at, key, length, checksum) if is_valid else None


def has_checksum(seed: int, body: bytes, header: FrameHeader) -> bool:
    """Return whether a body is intact."""
    return len(body) == header.length and zlib.crc32(body, seed) == header.checksum


def pack_index(seed: int, index: StoredIndex, offset: int) -> bytes:
    """Return the last bytes of a recording: the index, which starts at `offset`, and the footer."""
    head = _INDEX.pack(_INDEX_MAGIC, len(index.entries), index.frames, index.first_at, index.latest_at)
    head += b"".join(_ENTRY.pack(one.latest, one.number, one.offset) for one in index.entries)
    footer = _FOOTER.pack(_FOOTER_MAGIC, offset)
    return head + _CHECKSUM.pack(zlib.crc32(head, seed)) + footer + _CHECKSUM.pack(zlib.crc32(footer, seed))


def unpack_footer(seed: int, data: bytes) -> int | None:
    """Return the position of the index from the last bytes of a file, or None if they are no footer."""
    if len(data) != FOOTER_BYTES or not data.startswith(_FOOTER_MAGIC) or not _has_checksum(data, _FOOTER.size, seed):
        return None
    return int(_FOOTER.unpack_from(data)[1])


def unpack_index(seed: int, data: bytes, offset: int) -> StoredIndex | None:
    """Return the index that fills `data`, which starts at `offset` of the file; None if it is not valid.

    A valid index has at least one entry. Its entries start with the first frame, and numbers, times and positions do
    not decrease.
    """
    end = len(data) - _CHECKSUM.size
    if end < _INDEX.size or not data.startswith(_INDEX_MAGIC) or not _has_checksum(data, end, seed):
        return None
    _, count, frames, first_at, latest_at = _INDEX.unpack_from(data)
    if not 1 <= count <= MAX_ENTRIES or end != _INDEX.size + count * _ENTRY.size:
        return None
    entries = [IndexEntry(*fields) for fields in _ENTRY.iter_unpack(data[_INDEX.size : end])]
    ordered = all(
        before.latest <= after.latest and before.number < after.number and before.offset < after.offset
        for before, after in pairwise(entries)
    )
    if not ordered or entries[0].offset < HEADER_BYTES or entries[-1].offset >= offset or frames < count:
        return None
    return StoredIndex(frames, first_at, latest_at, entries)


def _has_checksum(data: bytes, end: int, seed: int, start: int = 0) -> bool:
    """Return whether the checksum at `end` is that of the bytes from `start` to it."""
    if len(data) < end + _CHECKSUM.size:
        return False
    found: int = _CHECKSUM.unpack_from(data, end)[0]
    return found == zlib.crc32(data[start:end], seed)
