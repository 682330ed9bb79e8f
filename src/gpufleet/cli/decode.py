"""`gpufleet decode`: what a captured file says, shown as `gpufleet snapshot` shows this machine."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.options import CommandError
from gpufleet.cli.snapshot import Format, exporter_of
from gpufleet.model.errors import WireError
from gpufleet.model.snapshot import Snapshot

if TYPE_CHECKING:
    from gpufleet.decoding.format import Decoded

ONE_PAGE = (Format.CSV, Format.PROMETHEUS)
"""Pages that are of one machine each: several in a row would be no such page."""


def decode(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, or - for standard input.")],
    as_: Annotated[
        str | None, typer.Option("--as", metavar="FORMAT", help="Take it for this format instead of recognising it.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to show it.")] = Format.TABLE,  # noqa: A002
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="Show this machine of several.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what was left unread, and why.")] = False,
) -> None:
    """Show what a file says: outputs of nvidia-smi, snapshots, batches, bundles, spool segments."""
    # Imported here: it brings every codec there is.
    from gpufleet.decoding import FORMATS
    from gpufleet.decoding import decode as decode_source
    from gpufleet.decoding.format import Source

    if as_ is not None and as_ not in {one.name for one in FORMATS}:
        raise CommandError(f"no format is called {as_}; there are {', '.join(one.name for one in FORMATS)}")
    content, at = _read(file)
    name = "stdin" if file == "-" else Path(file).name
    try:
        found, decoded = decode_source(Source(content=content, name=name, at=at), as_)
    except WireError as error:
        raise CommandError(f"{name}: {error}") from error
    _tell(found.name, decoded, verbose=verbose)
    exporter = exporter_of(format)
    for snapshot in _chosen(decoded.snapshots, machine, format):
        sys.stdout.buffer.write(exporter.render(snapshot))
    sys.stdout.buffer.flush()


def _read(file: str) -> tuple[bytes, int]:
    """Return content and when it was written; one byte more than may be decoded at most."""
    from gpufleet.decoding.format import MAX_BYTES

    if file == "-":
        if sys.stdin is None:  # it was closed
            raise CommandError("there is no standard input")
        return sys.stdin.buffer.read(MAX_BYTES + 1), time.time_ns()
    try:
        with Path(file).open("rb") as stream:
            return stream.read(MAX_BYTES + 1), Path(file).stat().st_mtime_ns
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror or error}") from error


def _tell(name: str, decoded: "Decoded", *, verbose: bool) -> None:
    """Say beside the answer, on standard error, what was recognised and what is not in the answer."""
    if not verbose:
        if decoded.unknown:
            _say(f"{len(decoded.unknown)} values are of names that no table here has (--verbose shows them)")
        return
    _say(f"format: {name}")
    for words in decoded.notes:
        _say(words)
    for value, why in sorted(decoded.unread.items()):
        _say(f"unread: {value}: {why}")
    for value in decoded.unknown:
        _say(f"unknown: {value}")


def _say(words: str) -> None:
    print(f"gpufleet: {words}", file=sys.stderr)


def _chosen(snapshots: tuple[Snapshot, ...], machine: str | None, format: Format) -> tuple[Snapshot, ...]:  # noqa: A002
    names = ", ".join(snapshot.node.name for snapshot in snapshots)
    if machine is not None:
        chosen = tuple(snapshot for snapshot in snapshots if snapshot.node.name == machine)
        if not chosen:
            raise CommandError(f"no machine in it is called {machine}; there are: {names or 'none'}")
        return chosen
    if not snapshots:
        raise CommandError("it speaks of no machine")
    if len(snapshots) > 1 and format in ONE_PAGE:
        many = f"it speaks of {len(snapshots)} machines, and a {format} page is of one"
        raise CommandError(f"{many}: choose with --machine ({names})")
    return snapshots
