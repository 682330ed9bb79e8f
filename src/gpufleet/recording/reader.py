"""Reader of recordings: bounded memory for files of any size, search by time, damage reported by its position."""

import io
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from gpufleet.codecs.batch.compression import decompress
from gpufleet.codecs.snapshot_json import MAX_BYTES, decode_snapshot
from gpufleet.model.errors import RecordingError, WireError
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import LATEST
from gpufleet.recording.dictionary import keyed_decompressor
from gpufleet.recording.format import (
    FOOTER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    HEADER_BYTES,
    MAX_GROUP,
    MAX_GROUP_BYTES,
    MAX_INDEX_BYTES,
    FrameHeader,
    has_checksum,
    unpack_footer,
    unpack_frame_header,
    unpack_header,
    unpack_index,
)
from gpufleet.recording.index import FrameIndex

_FIRST_CHUNK_BYTES, _CHUNK_BYTES = 4 << 10, 1 << 20
"""Smallest and largest read of a search for a header. The first reads are small: damage can be everywhere."""

MAX_KEY_BYTES = 64 << 20
"""Size of the documents of key frames in memory, above which those used least recently are dropped."""


class RecordedFrame(msgspec.Struct, frozen=True):
    """A frame of a recording whose checksum is right.

    Attributes:
        number: number of the frame, from 1.
        at: time of the frame, nanoseconds since 1970.
        offset: position of its header in the file.
        key: position of its key frame, or 0.
        body: the compressed document.
    """

    number: int
    at: int
    offset: int
    key: int
    body: bytes


class DamagedBytes(msgspec.Struct, frozen=True):
    """Bytes of a recording, from `offset` up to `end`, that hold no intact frame."""

    offset: int
    end: int


class RecordedPoll(msgspec.Struct, frozen=True):
    """Machines of a poll: the frames with one time.

    Attributes:
        offset: position of the first frame.
        snapshots: the machines.
        problems: damaged frames, and frames that exceed a limit.
    """

    offset: int
    snapshots: tuple[Snapshot, ...]
    problems: tuple[RecordingError, ...]


class RecordingReader:
    """Reads the frames of a recording. The file may still grow: frames after the opening are not read.

    Without an index, as after `kill -9`, opening reads the whole file once.

    Attributes:
        header: header of the file.
        index: places of frames, their number and times.
        end: position after the last intact frame.
        torn_bytes: bytes after the last intact frame that are no index: an incomplete frame.
    """

    def __init__(self, stream: BinaryIO) -> None:
        """Read header and index of a stream that can be searched.

        Raises:
            RecordingError: if it is not a recording.
            OSError: if it cannot be read.
        """
        self._stream = stream
        self._size = stream.seek(0, io.SEEK_END)
        self.header = unpack_header(self._read(0, HEADER_BYTES))
        self._seed = self.header.seed
        self.torn_bytes = 0
        self._keys: OrderedDict[int, tuple[int, Any]] = OrderedDict()  # position to size and decompressor
        self._key_bytes = 0
        if not self._load_index():
            self._build_index()

    def frames(self, offset: int = HEADER_BYTES) -> Iterator[RecordedFrame | DamagedBytes]:
        """Yield the frames from a position on, and between them the ranges of damaged bytes. Raises OSError."""
        damaged: int | None = None
        for header, place in self._walk(offset, self.end):
            body = b"" if header is None else self._read(place + FRAME_HEADER_BYTES, header.length)
            if header is None or not has_checksum(self._seed, body, header):
                damaged = place if damaged is None else damaged
                continue
            if damaged is not None:
                yield DamagedBytes(damaged, place)
                damaged = None
            yield RecordedFrame(header.number, header.at, place, header.key, body)
        if damaged is not None:
            yield DamagedBytes(damaged, self.end)

    def document(self, frame: RecordedFrame) -> bytes:
        """Return the document of a frame.

        Raises:
            RecordingError: if the body or its key frame is damaged, or the document exceeds a limit.
            OSError: if the key frame cannot be read.
        """
        try:
            return decompress(frame.body, MAX_BYTES, self._decompressor(frame) if frame.key else None)
        except WireError as error:
            raise RecordingError(frame.offset, f"frame {frame.number} cannot be unpacked: {error}") from error

    def snapshot(self, frame: RecordedFrame) -> Snapshot:
        """Return the document of a frame, decoded. Raises like `document`, and if it is not a snapshot document."""
        return _decode(frame, self.document(frame))

    def poll(self, offset: int) -> RecordedPoll:
        """Return the machines of the poll whose first frame is at a position; see `seek`. Raises OSError."""
        snapshots: list[Snapshot] = []
        problems: list[RecordingError] = []
        size = 0
        for one in self.group(offset):
            try:
                if isinstance(one, DamagedBytes):
                    raise RecordingError(one.offset, f"damaged up to byte {one.end}")
                document = self.document(one)
                size += len(document)
                if len(snapshots) == MAX_GROUP or size > MAX_GROUP_BYTES:
                    problems.append(RecordingError(one.offset, "the poll has more machines than the limit"))
                    break
                snapshots.append(_decode(one, document))
            except RecordingError as error:
                problems.append(error)
                if len(problems) == MAX_GROUP:
                    break
        return RecordedPoll(offset, tuple(snapshots), tuple(problems))

    def _decompressor(self, frame: RecordedFrame) -> Any:
        """Return the decompressor of the key frame of a frame."""
        if frame.key not in self._keys:
            header = self._header_at(frame.key, self.end) if HEADER_BYTES <= frame.key < frame.offset else None
            body = b"" if header is None else self._read(frame.key + FRAME_HEADER_BYTES, header.length)
            if header is None or header.key or not has_checksum(self._seed, body, header):
                raise WireError("", f"its key frame at byte {frame.key} is damaged")
            document = decompress(body, MAX_BYTES)
            self._keys[frame.key] = len(document), keyed_decompressor(document)
            self._key_bytes += len(document)
            while self._key_bytes > MAX_KEY_BYTES and len(self._keys) > 1:
                self._key_bytes -= self._keys.popitem(last=False)[1][0]
        self._keys.move_to_end(frame.key)
        return self._keys[frame.key][1]

    def seek(self, at: int) -> int:
        """Return the position of the first of the frames that show time `at`, for `group` and `frames`. Raises OSError.

        These are the last frames with one time before the first that is later than `at`, or the first of the file.
        """
        entry = self.index.before(at)
        if entry is not None:  # it can be in the middle of its group
            entry = self.index.before(entry.latest - 1)
        found = HEADER_BYTES if entry is None else entry.offset
        before: int | None = None
        for header, place in self._walk(found, self.end):
            if header is not None:
                if header.at > at:
                    break
                if header.at != before:
                    found, before = place, header.at
        return found

    def group(self, offset: int) -> Iterator[RecordedFrame | DamagedBytes]:
        """Yield the frames from a position on that have the time of the first: the machines of one poll.

        Damaged bytes are yielded in their place if a frame with an intact header of this time is in or after them.
        Raises OSError.
        """
        at = damaged = None
        for header, place in self._walk(offset, self.end):
            if header is None:
                damaged = place if damaged is None else damaged
                continue
            if at is not None and header.at != at:
                return
            at = header.at
            if damaged is not None:
                yield DamagedBytes(damaged, place)
                damaged = None
            after = place + FRAME_HEADER_BYTES
            body = self._read(after, header.length)
            if has_checksum(self._seed, body, header):
                yield RecordedFrame(header.number, header.at, place, header.key, body)
            else:
                yield DamagedBytes(place, after + header.length)

    def last_number(self) -> int:
        """Return the number of the last frame, or 0 without frames. Raises OSError."""
        entry = self.index.before(LATEST)
        places = self._walk(entry.offset, self.end) if entry is not None else ()
        return max((header.number for header, _ in places if header is not None), default=0)

    def _load_index(self) -> bool:
        """Load the index at the end of the file; return whether it is there and valid."""
        footer = self._size - FOOTER_BYTES
        offset = unpack_footer(self._seed, self._read(footer, FOOTER_BYTES)) if footer >= HEADER_BYTES else None
        if offset is None or not HEADER_BYTES <= offset < footer or footer - offset > MAX_INDEX_BYTES:
            return False
        stored = unpack_index(self._seed, self._read(offset, footer - offset), offset)
        if stored is None or any(self._header_at(one.offset, offset) is None for one in stored.entries):
            return False
        self.index, self.end = FrameIndex(stored), offset
        return True

    def _build_index(self) -> None:
        self.index, self.end = FrameIndex(), HEADER_BYTES
        for header, place in self._walk(HEADER_BYTES, self._size):
            if header is None:
                continue
            after = place + FRAME_HEADER_BYTES
            if has_checksum(self._seed, self._read(after, header.length), header):
                self.index.add(header, place)
                self.end = after + header.length
        self.torn_bytes = self._size - self.end

    def _walk(self, offset: int, end: int) -> Iterator[tuple[FrameHeader | None, int]]:
        """Yield header and position of each frame; None and the position for bytes without an intact header."""
        while offset < end:
            header = self._header_at(offset, end)
            yield header, offset
            if header is None:
                offset = self._find(offset + 1, end)
            else:
                offset += FRAME_HEADER_BYTES + header.length

    def _header_at(self, offset: int, end: int) -> FrameHeader | None:
        """Return the intact header at a position whose body ends before `end`, or None."""
        header = unpack_frame_header(self._seed, self._read(offset, FRAME_HEADER_BYTES))
        if header is None or offset + FRAME_HEADER_BYTES + header.length > end:
            return None
        return header

    def _find(self, offset: int, end: int) -> int:
        """Return the position of the next intact header, or `end`."""
        size = _FIRST_CHUNK_BYTES
        while offset < end:
            chunk = self._read(offset, min(size, end - offset))
            place = chunk.find(FRAME_MAGIC)
            while place >= 0 and place + FRAME_HEADER_BYTES <= len(chunk):
                header = unpack_frame_header(self._seed, chunk, place)
                if header is not None and offset + place + FRAME_HEADER_BYTES + header.length <= end:
                    return offset + place
                place = chunk.find(FRAME_MAGIC, place + 1)
            if len(chunk) < size:
                return end
            offset += len(chunk) - FRAME_HEADER_BYTES + 1  # a header can lie across two chunks
            size = min(4 * size, _CHUNK_BYTES)
        return end

    def _read(self, offset: int, length: int) -> bytes:
        """Read at a position; fewer bytes at the end of the file."""
        self._stream.seek(offset)
        return self._stream.read(length)


def _decode(frame: RecordedFrame, document: bytes) -> Snapshot:
    try:
        return decode_snapshot(document)
    except WireError as error:
        raise RecordingError(frame.offset, f"frame {frame.number} is not a snapshot document: {error}") from error
