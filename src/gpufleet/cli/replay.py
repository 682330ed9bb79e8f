"""`gpufleet replay`: prints the frames of a recording as `gpufleet snapshot` prints them."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.options import CommandError, Json, OptionError
from gpufleet.cli.output import CLEAR
from gpufleet.cli.snapshot import SnapshotFormat, exporter_for, write_page
from gpufleet.cli.times import parse_time
from gpufleet.model.errors import RecordingError
from gpufleet.model.time import NANOS, to_datetime, to_ns

if TYPE_CHECKING:
    from gpufleet.model.snapshot import Snapshot
    from gpufleet.recording.reader import RecordingReader

MAX_PAUSE_SECONDS = 5.0
"""Longest pause between two frames: a gap in the recording is skipped."""


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recording of gpufleet record.")],
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Start at the frame of this time: RFC 3339, or a duration before the end."
        ),
    ] = None,
    frames: Annotated[
        int | None, typer.Option("--frames", metavar="N", min=1, help="Print at most this many frames.")
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed",
            metavar="X",
            help="Print the frames at X times their recorded pace [default: 1 on a terminal, otherwise no pauses].",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Print the frames of a recording.

    Damaged frames are reported with their position and skipped; the exit code is then 1.
    """
    from gpufleet.recording.reader import RecordingReader  # imports zstd

    if speed is not None and not 0.01 <= speed <= 10_000:
        raise OptionError("--speed", "must be between 0.01 and 10000")
    is_terminal = sys.stdout.isatty()
    pace = speed or (1.0 if is_terminal and not json else None)
    chosen = SnapshotFormat.JSON if json else SnapshotFormat.TABLE
    exporter = exporter_for(chosen)
    try:
        with file.open("rb") as stream:
            reader = RecordingReader(stream)
            offset = _start(reader, at)
            if reader.torn_bytes:
                _note(f"{file}: ends with {reader.torn_bytes} bytes of an incomplete frame")
            damage = DamageReport(file)
            before: int | None = None
            for count, (measured, snapshot) in enumerate(_intact(reader, offset, damage), start=1):
                if pace is not None and before is not None:
                    time.sleep(min(max(0.0, (measured - before) / NANOS / pace), MAX_PAUSE_SECONDS))
                before = measured
                if is_terminal and not json:
                    sys.stdout.write(f"{CLEAR}{to_datetime(measured):%Y-%m-%d %H:%M:%SZ}\n")
                    sys.stdout.flush()
                write_page(exporter.render(snapshot), chosen)
                if count == frames:
                    break
    except OSError as error:
        if error.filename is None:  # of stdout
            raise
        raise CommandError(f"cannot read {file}: {error.strerror or error}") from error
    except RecordingError as error:
        raise CommandError(f"{file}: {error}") from error
    if damage.count:
        raise CommandError(f"{file}: {damage.count} damaged parts were skipped")
    if before is None:
        raise CommandError(f"{file}: the recording has no frame")


class DamageReport:
    """Damaged parts of a recording: each is printed, up to a limit, and counted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.count = 0

    def add(self, text: str) -> None:
        """Add a damaged part."""
        self.count += 1
        if self.count <= MAX_REPORTED:
            _note(f"{self._file}: {text}")


MAX_REPORTED = 20
"""Maximum number of damaged parts that are printed."""


def _start(reader: "RecordingReader", at: str | None) -> int:
    from gpufleet.recording.format import HEADER_BYTES

    if at is None:
        return HEADER_BYTES
    return reader.seek(to_ns(parse_time("--at", at, to_datetime(reader.index.latest_at))))


def _intact(reader: "RecordingReader", offset: int, damage: DamageReport) -> Iterator[tuple[int, "Snapshot"]]:
    """Yield time and document of each intact frame."""
    from gpufleet.decoding.snapshot import without_unknown
    from gpufleet.recording.reader import DamagedBytes

    for frame in reader.frames(offset):
        if isinstance(frame, DamagedBytes):
            damage.add(f"bytes {frame.offset} to {frame.end} are damaged")
            continue
        try:
            snapshot, _ = without_unknown(reader.snapshot(frame))
        except RecordingError as error:
            damage.add(str(error))
            continue
        yield frame.at, snapshot


def _note(text: str) -> None:
    from gpufleet.model.text import clean

    print(f"gpufleet: {clean(text)}", file=sys.stderr)
