"""Format of gpufleet's own recordings: the frames of the last poll."""

import io

from gpufleet.decoding.format import CapturedInput, CaptureFormat, DecodeResult
from gpufleet.decoding.snapshot import known_snapshot
from gpufleet.model.errors import RecordingError
from gpufleet.model.time import to_datetime
from gpufleet.recording.format import MAGIC
from gpufleet.recording.reader import DamagedBytes, RecordedFrame, RecordingReader


def _is_recording(content: bytes) -> bool:
    return content.startswith(MAGIC)


def _decode_recording(source: CapturedInput) -> DecodeResult:
    reader = RecordingReader(io.BytesIO(source.content))
    notes = [f"bytes {reader.end} to {len(source.content)} are an incomplete frame"] if reader.torn_bytes else []
    first: RecordedFrame | None = None  # of the last poll
    for frame in reader.frames():
        if isinstance(frame, DamagedBytes):
            notes.append(f"bytes {frame.offset} to {frame.end} are damaged")
        elif first is None or frame.at != first.at:
            first = frame
    if first is None:
        raise RecordingError(reader.end, "the recording has no frame")
    poll = reader.poll(first.offset)
    if not poll.snapshots:
        raise poll.problems[0]
    known = [known_snapshot(one) for one in poll.snapshots]
    shown = f"frame {first.number} of {to_datetime(first.at):%Y-%m-%dT%H:%M:%SZ}; `gpufleet replay` shows all frames"
    return DecodeResult(
        snapshots=tuple(snapshot for snapshot, _ in known),
        notes=(*notes, *map(str, poll.problems)),
        assumptions=(shown,),
        unknown=tuple(dict.fromkeys(name for _, unknown in known for name in unknown)),
    )


RECORDING = CaptureFormat(
    name="recording", help="newest frames of a file of gpufleet record", matches=_is_recording, decode=_decode_recording
)
