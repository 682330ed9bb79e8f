"""Writer of recordings: appends frames to a file, makes them durable, and rotates it by size."""

import contextlib
import errno
import io
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.codecs.batch.compression import compress
from gpufleet.model.errors import GpufleetError, WireLimitError
from gpufleet.ports.clock import Clock
from gpufleet.recording.dictionary import keyed_compressor
from gpufleet.recording.format import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    MAGIC,
    MAX_BODY_BYTES,
    FrameHeader,
    RecordingHeader,
    make_frame_header,
    pack_frame_header,
    pack_header,
    pack_index,
)
from gpufleet.recording.index import FrameIndex
from gpufleet.recording.reader import RecordingReader
from gpufleet.spool.folder import sync_folder

SYNC_SECONDS = 5.0
"""Interval of syncs. A power cut loses at most the frames of this time, `kill -9` at most the frame being written."""

KEY_INTERVAL = 60
"""Frames of a machine from a key frame to the next. Damage to a key frame costs its frames up to the next."""

MAX_KEY_BYTES = 64 << 20
"""Maximum size of the documents of the key frames in memory. Frames of further machines have no key frame."""

MIN_ROTATE_BYTES = 64 << 10
"""Minimum size for rotation."""


class Rotation(msgspec.Struct, frozen=True):
    """Rotation of a recording: FILE becomes FILE.1, FILE.1 becomes FILE.2, and so on.

    Attributes:
        size: a file that a frame would make larger than this is rotated first.
        keep: number of older files; the oldest is deleted.
    """

    size: int
    keep: int


class _KeyFrame(msgspec.Struct, frozen=True):
    """Key frame of a machine: number of the group, position, size of the document, compressor with the document."""

    group: int
    offset: int
    size: int
    compressor: Any


class RecordingFileError(GpufleetError):
    """The file of a recording cannot be opened, written or rotated."""


class RecordingWriter:
    """Appends frames to one file, which it locks. Blocking.

    An existing recording is continued: its index and an incomplete frame at its end are cut off first.

    Attributes:
        frames: number of frames that were appended.
        torn_bytes: bytes of an incomplete frame that were cut off on opening.
    """

    def __init__(self, path: Path, clock: Clock, rotation: Rotation | None = None) -> None:
        """Open or create the file.

        Raises:
            RecordingFileError: if the file cannot be opened, or another process writes it.
            RecordingError: if the file has content that is not a recording. It is not changed then.
        """
        self._path, self._clock, self._rotation = path, clock, rotation
        self.frames = self.torn_bytes = 0
        self._number = self._end = 0
        self._synced = clock.monotonic()
        self._group = 0
        self._keys: dict[str, _KeyFrame] = {}  # by machine
        with self._errors("open"):
            self._open()

    def append(self, document: bytes, at: int) -> None:
        """Write a frame: a snapshot document and its time in nanoseconds since 1970. Raises like `append_group`."""
        self.append_group((("", document),), at)

    def append_group(self, documents: Sequence[tuple[str, bytes]], at: int) -> None:
        """Write the frames of several machines with one time. They are in the same file, one after the other.

        Args:
            documents: name and snapshot document of each machine. Successive documents of a name are stored as
                differences.
            at: time of the frames, nanoseconds since 1970.

        Raises:
            WireLimitError: if a document is too large.
            RecordingFileError: if they cannot be written; the file then ends with the frame before.
        """
        with self._errors("write"):
            data, headers, keys = self._pack(documents, at)
            if self._rotation is not None and self._index.frames and self._end + len(data) > self._rotation.size:
                self._finish()
                self._rotate(self._rotation.keep)
                self._open()
                data, headers, keys = self._pack(documents, at)
            self._write(data)
            self._keys = keys
            self._group += 1
            for header in headers:
                self._index.add(header, self._end)
                self._end += FRAME_HEADER_BYTES + header.length
            self._number += len(headers)
            self.frames += len(headers)
            if self._clock.monotonic() - self._synced >= SYNC_SECONDS:
                os.fdatasync(self._file.fileno())
                self._synced = self._clock.monotonic()

    def _pack(
        self, documents: Sequence[tuple[str, bytes]], at: int
    ) -> tuple[bytes, list[FrameHeader], dict[str, _KeyFrame]]:
        """Return the next frames, their headers, and the key frames of their machines."""
        keys = {name: self._keys[name] for name, _ in documents if name in self._keys}
        used = sum(one.size for one in keys.values())
        data, headers = bytearray(), []
        for number, (name, document) in enumerate(documents, self._number + 1):
            key = keys.get(name)
            if key is not None and self._group - key.group < KEY_INTERVAL:
                header, body = self._frame(number, at, key.compressor.compress(document), key.offset)
            else:
                header, body = self._frame(number, at, compress(document))
                used -= keys.pop(name).size if key is not None else 0
                if used + len(document) <= MAX_KEY_BYTES:
                    place = self._end + len(data)
                    keys[name] = _KeyFrame(self._group, place, len(document), keyed_compressor(document))
                    used += len(document)
            data += pack_frame_header(self._seed, header) + body
            headers.append(header)
        return bytes(data), headers, keys

    def _frame(self, number: int, at: int, body: bytes, key: int = 0) -> tuple[FrameHeader, bytes]:
        if len(body) > MAX_BODY_BYTES:
            raise WireLimitError("", f"the document has {len(body)} bytes compressed, more than {MAX_BODY_BYTES}")
        return make_frame_header(self._seed, number, at, body, key), body

    def close(self) -> None:
        """Write the index, make the file durable and close it.

        Raises:
            RecordingFileError: if the file cannot be made durable.
        """
        with self._errors("close"):
            self._finish()

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.ExitStack() as on_error:
            self._file: io.FileIO = on_error.enter_context(io.FileIO(descriptor, "r+b"))
            _lock(descriptor)
            self._keys = {}
            if self._is_new():
                header = RecordingHeader(secrets.token_bytes(16), self._clock.now_ns())
                self._seed, self._index, self._number, self._end = header.seed, FrameIndex(), 0, 0
                self._write(pack_header(header))
                self._end = HEADER_BYTES
            else:
                reader = RecordingReader(self._file)
                self._seed, self._index, self._end = reader.header.seed, reader.index, reader.end
                self._number = reader.last_number()
                self.torn_bytes = reader.torn_bytes
                os.ftruncate(descriptor, self._end)
            os.fsync(descriptor)
            sync_folder(self._path.parent)
            on_error.pop_all()
        self._synced = self._clock.monotonic()

    def _is_new(self) -> bool:
        """Return whether the file is empty, or has only a part of a header, which a power cut left."""
        start = os.pread(self._file.fileno(), HEADER_BYTES, 0)
        return len(start) < HEADER_BYTES and start[: len(MAGIC)] == MAGIC[: len(start)]

    def _write(self, data: bytes) -> None:
        """Write at the end; after an error the file is cut back to the end."""
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._file.fileno(), data[done:], self._end + done)
        except OSError:
            with contextlib.suppress(OSError):  # the next opening cuts the file
                os.ftruncate(self._file.fileno(), self._end)
            raise

    def _finish(self) -> None:
        if self._file.closed:  # the rotation failed
            return
        with self._file:
            if self._index.frames:
                with contextlib.suppress(OSError):  # readers rebuild a missing index
                    self._write(pack_index(self._seed, self._index.stored(), self._end))
            os.fsync(self._file.fileno())

    def _rotate(self, keep: int) -> None:
        """Rename the files. Raises OSError."""
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, keep + 1))]
        for older, newer in reversed(list(zip(names[1:], names, strict=False))):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = "another process writes it" if error.errno == errno.EAGAIN else error.strerror or error
            raise RecordingFileError(f"{self._path}: cannot {what} the recording: {reason}") from error


def _lock(descriptor: int) -> None:
    """Lock a file for this process. Raises OSError with EAGAIN if another process has locked it."""
    try:
        import fcntl
    except ImportError as error:
        raise RecordingFileError("a recording needs POSIX file locks, which this system does not have") from error
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
