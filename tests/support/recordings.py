"""Recordings for tests."""

from collections.abc import Iterable
from pathlib import Path

from gpufleet.codecs.snapshot_json import decode_snapshot
from gpufleet.model.snapshot import Snapshot
from gpufleet.recording.reader import DamagedBytes, RecordedFrame, RecordingReader
from gpufleet.recording.writer import RecordingWriter, Rotation
from tests.fakes.clock import FakeClock

AT = 1_767_225_600_000_000_000
"""2026-01-01T00:00:00Z in nanoseconds."""

SECOND = 1_000_000_000


def write_recording(path: Path, documents: Iterable[bytes], *, index: bool = True) -> bytes:
    """Append a frame per document, a second apart from `AT` on; return the content of the file."""
    writer = RecordingWriter(path, FakeClock())
    for number, document in enumerate(documents):
        writer.append(document, AT + number * SECOND)
    content = path.read_bytes()  # frames are in the file at once; only the index follows
    writer.close()
    if not index:
        path.write_bytes(content)
    return path.read_bytes()


def open_writer(path: Path, clock: FakeClock | None = None, rotation: Rotation | None = None) -> RecordingWriter:
    return RecordingWriter(path, clock or FakeClock(), rotation)


def frames_of(path: Path) -> list[RecordedFrame]:
    """Return the intact frames of a file."""
    with path.open("rb") as stream:
        return [one for one in RecordingReader(stream).frames() if isinstance(one, RecordedFrame)]


def documents_of(path: Path) -> list[bytes]:
    """Return the documents of the intact frames of a file."""
    with path.open("rb") as stream:
        reader = RecordingReader(stream)
        return [reader.document(one) for one in reader.frames() if isinstance(one, RecordedFrame)]


def snapshots_of(path: Path) -> list[Snapshot]:
    """Return the decoded documents of the intact frames of a file."""
    return [decode_snapshot(document) for document in documents_of(path)]


def damage_of(path: Path) -> list[tuple[int, int]]:
    """Return the damaged ranges of a file."""
    with path.open("rb") as stream:
        return [(one.offset, one.end) for one in RecordingReader(stream).frames() if isinstance(one, DamagedBytes)]
