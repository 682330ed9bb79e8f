"""`gpufleet replay`: prints the frames of a recording as `gpufleet snapshot` prints them, or posts them to a hub."""

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.options import CaOption, CommandError, Json, OptionError, TokenFileOption
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
        int | None,
        typer.Option("--frames", metavar="N", min=1, help="Print at most this many frames of each machine."),
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
    hub: Annotated[
        str | None, typer.Option("--hub", metavar="URL", help="Post all frames to a hub, with their own times.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="ID", help="Cluster of the machines in the hub.")
    ] = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Print the frames of a recording, or post them to a hub.

    Damaged frames are reported with their position and skipped; the exit code is then 1.
    """
    from gpufleet.recording.reader import RecordingReader  # imports zstd

    if (hub is None) != (cluster is None):
        raise OptionError("--hub, --cluster", "need each other: use both")
    if hub is not None and (json or any(one is not None for one in (at, frames, speed))):
        raise OptionError("--hub", "posts all frames: --at, --frames, --speed and --json do not apply")
    if speed is not None and not 0.01 <= speed <= 10_000:
        raise OptionError("--speed", "must be between 0.01 and 10000")
    try:
        with file.open("rb") as stream:
            reader = RecordingReader(stream)
            offset = _start(reader, at)
            if reader.torn_bytes:
                _note(f"{file}: ends with {reader.torn_bytes} bytes of an incomplete frame")
            damage = DamageReport(file)
            intact = _intact(reader, offset, damage)
            if hub is not None and cluster is not None:
                count = _post(intact, reader.header.id, hub, cluster, Access(token_file, ca))
            else:
                count = _print(_first_polls(intact, frames), speed, json=json)
    except OSError as error:
        if error.filename is None:  # of stdout
            raise
        raise CommandError(f"cannot read {file}: {error.strerror or error}") from error
    except RecordingError as error:
        raise CommandError(f"{file}: {error}") from error
    if damage.count:
        raise CommandError(f"{file}: {damage.count} damaged parts were skipped")
    if not count:
        raise CommandError(f"{file}: the recording has no frame")


def _first_polls(frames: Iterator[tuple[int, "Snapshot"]], count: int | None) -> Iterator[tuple[int, "Snapshot"]]:
    """Yield the frames of the first polls, all if `count` is None. The frames of a poll have the same time."""
    polls = itertools.groupby(frames, key=lambda frame: frame[0])
    for _, machines in itertools.islice(polls, count):
        yield from machines


def _print(frames: Iterator[tuple[int, "Snapshot"]], speed: float | None, *, json: bool) -> int:
    """Print frames and return their number. On a terminal they follow each other at their recorded pace."""
    on_screen = sys.stdout.isatty() and not json
    pace = speed or (1.0 if on_screen else None)
    chosen = SnapshotFormat.JSON if json else SnapshotFormat.TABLE
    exporter = exporter_for(chosen)
    before: int | None = None
    count = 0
    for measured, snapshot in frames:
        if pace is not None and before is not None:
            time.sleep(min(max(0.0, (measured - before) / NANOS / pace), MAX_PAUSE_SECONDS))
        if on_screen and measured != before:
            sys.stdout.write(f"{CLEAR}{to_datetime(measured):%Y-%m-%d %H:%M:%SZ}\n")
            sys.stdout.flush()
        before = measured
        write_page(exporter.render(snapshot), chosen)
        count += 1
    return count


def _post(frames: Iterator[tuple[int, "Snapshot"]], recording: bytes, hub: str, cluster: str, access: Access) -> int:
    """Post frames and return their number."""
    from gpufleet.cli.post_recording import post_recording
    from gpufleet.recording.reports import RecordedBatches

    batches = RecordedBatches(cluster, recording)
    posted = asyncio.run(post_recording(frames, batches, hub, access))
    _note(f"{posted} frames posted to {hub} as sender {batches.sender}")
    return posted


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
    from gpufleet.decoding.snapshot import known_snapshot
    from gpufleet.recording.reader import DamagedBytes

    for frame in reader.frames(offset):
        if isinstance(frame, DamagedBytes):
            damage.add(f"bytes {frame.offset} to {frame.end} are damaged")
            continue
        try:
            snapshot, _ = known_snapshot(reader.snapshot(frame))
        except RecordingError as error:
            damage.add(str(error))
            continue
        yield frame.at, snapshot


def _note(text: str) -> None:
    from gpufleet.model.text import clean

    print(f"gpufleet: {clean(text)}", file=sys.stderr)
