"""Format of gpufleet's own recordings: the last frame."""

import io

from gpufleet.decoding.format import CapturedInput, CaptureFormat, DecodeResult
from gpufleet.decoding.snapshot import without_unknown
from gpufleet.model.errors import RecordingError
from gpufleet.model.time import to_datetime
from gpufleet.recording.format import MAGIC
from gpufleet.recording.reader import DamagedBytes, RecordedFrame, RecordingReader


def _is_recording(content: bytes) -> bool:
    return content.startswith(MAGIC)


def _decode_recording(source: CapturedInput) -> DecodeResult:
    reader = RecordingReader(io.BytesIO(source.content))
    notes = [f"bytes {reader.end} to {len(source.content)} are an incomplete frame"] if reader.torn_bytes else []
    last: RecordedFrame | None = None
    for frame in reader.frames():
        if isinstance(frame, DamagedBytes):
            notes.append(f"bytes {frame.offset} to {frame.end} are damaged")
        else:
            last = frame
    if last is None:
        raise RecordingError(reader.end, "the recording has no frame")
    snapshot, unknown = without_unknown(reader.snapshot(last))
    shown = f"frame {last.number} of {to_datetime(last.at):%Y-%m-%dT%H:%M:%SZ}; `gpufleet replay` shows all frames"
    return DecodeResult(snapshots=(snapshot,), notes=tuple(notes), assumptions=(shown,), unknown=unknown)


RECORDING = CaptureFormat(
    name="recording", help="file of gpufleet record, its last frame", matches=_is_recording, decode=_decode_recording
)
