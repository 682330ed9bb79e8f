"""`gpufleet decode`: shows the content of a captured file in the formats of `gpufleet snapshot`."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.options import CommandError
from gpufleet.cli.snapshot import SnapshotFormat, exporter_for, write_page
from gpufleet.model.errors import WireError
from gpufleet.model.snapshot import Snapshot

if TYPE_CHECKING:
    import datetime as dt

    from gpufleet.decoding.format import DecodeResult

SINGLE_MACHINE_FORMATS = (SnapshotFormat.CSV, SnapshotFormat.PROMETHEUS)
"""Formats whose pages describe one machine and cannot be concatenated."""


def decode(
    file: Annotated[str, typer.Argument(metavar="FILE", help="File to decode; - reads standard input.")],
    as_: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="FORMAT",
            help="Input format, such as nvidia-smi-csv; an unknown format lists all [default: detected].",
        ),
    ] = None,
    format: Annotated[SnapshotFormat, typer.Option("--format", "-f", help="Output format.")] = SnapshotFormat.TABLE,  # noqa: A002
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="Machine to show if the file contains several.")
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(
            "--timezone",
            metavar="ZONE",
            help="Time zone of nvidia-smi's local times, such as Europe/Berlin or +02:00 "
            "[default: from the file, otherwise UTC].",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also list unread and unknown values.")] = False,
) -> None:
    """Show the content of a file: nvidia-smi output, metrics pages, snapshots, recordings, batches, spool segments."""
    # Imported on use: it imports all codecs.
    from gpufleet.decoding import FORMATS
    from gpufleet.decoding import decode as decode_source
    from gpufleet.decoding.format import CapturedInput

    if as_ is not None and as_ not in {one.name for one in FORMATS}:
        raise CommandError(f"unknown format {as_}: use one of {', '.join(one.name for one in FORMATS)}")
    zone = _zone_of(timezone)
    content, at = _read(file)
    name = "stdin" if file == "-" else Path(file).name
    try:
        found, decoded = decode_source(CapturedInput(content=content, name=name, at=at, timezone=zone), as_)
    except WireError as error:
        raise CommandError(f"{name}: {error}") from error
    _print_notes(found.name, decoded, verbose=verbose)
    exporter = exporter_for(format)
    for snapshot in _select(decoded.snapshots, machine, format):
        write_page(exporter.render(snapshot), format)


def _zone_of(text: str | None) -> "dt.tzinfo | None":
    from gpufleet.decoding.local_time import parse_zone

    if text is None:
        return None
    try:
        return parse_zone(text)
    except ValueError as error:
        raise CommandError(f"--timezone: {error}") from error


def _read(file: str) -> tuple[bytes, int]:
    """Return the content, at most one byte beyond the limit, and its modification time."""
    from gpufleet.decoding.format import MAX_BYTES

    if file == "-":
        if sys.stdin is None:  # closed
            raise CommandError("standard input is closed")
        return sys.stdin.buffer.read(MAX_BYTES + 1), time.time_ns()
    try:
        with Path(file).open("rb") as stream:
            return stream.read(MAX_BYTES + 1), Path(file).stat().st_mtime_ns
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror or error}") from error


def _print_notes(name: str, decoded: "DecodeResult", *, verbose: bool) -> None:
    """Print the assumptions to standard error; with `verbose` also the detected format and the omitted values."""
    for assumption in decoded.assumptions:
        _print_note(assumption)
    if not verbose:
        if decoded.unknown:
            _print_note(f"{len(decoded.unknown)} values have unknown names (--verbose lists them)")
        return
    _print_note(f"format: {name}")
    for note in decoded.notes:
        _print_note(note)
    for value, reason in sorted(decoded.unread.items()):
        _print_note(f"unread: {value}: {reason}")
    for value in decoded.unknown:
        _print_note(f"unknown: {value}")


def _print_note(text: str) -> None:
    print(f"gpufleet: {text}", file=sys.stderr)


def _select(snapshots: tuple[Snapshot, ...], machine: str | None, format: SnapshotFormat) -> tuple[Snapshot, ...]:  # noqa: A002
    names = ", ".join(snapshot.node.name for snapshot in snapshots)
    if machine is not None:
        chosen = tuple(snapshot for snapshot in snapshots if snapshot.node.name == machine)
        if not chosen:
            raise CommandError(f"the file has no machine {machine}; its machines: {names or 'none'}")
        return chosen
    if not snapshots:
        raise CommandError("the file contains no machine")
    if len(snapshots) > 1 and format in SINGLE_MACHINE_FORMATS:
        problem = f"the file contains {len(snapshots)} machines, and {format} output describes one"
        raise CommandError(f"{problem}: select it with --machine ({names})")
    return snapshots
