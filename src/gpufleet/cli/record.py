"""`gpufleet record`: writes snapshots to a file, at an interval."""

import asyncio
import contextlib
import functools
import re
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.live import SnapshotSource, open_snapshots
from gpufleet.cli.options import AgentUrl, CaOption, ConfigFile, OptionError, TokenFileOption
from gpufleet.cli.times import parse_span
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.errors import GpufleetError
from gpufleet.model.text import clean

if TYPE_CHECKING:
    from gpufleet.recording.writer import RecordingWriter, Rotation

KEEP = 4
"""Default number of older files."""

_SIZE = re.compile(r"(\d{1,9})(KiB|MiB|GiB)")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recording to create or continue.")],
    every: Annotated[
        str, typer.Option("--every", metavar="SPAN", help="Interval of the frames, at least 1s.", show_default=True)
    ] = "1s",
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="SPAN", help="End after this time [default: until Ctrl-C].")
    ] = None,
    rotate: Annotated[
        str | None,
        typer.Option("--rotate", metavar="SIZE", help="Rename FILE to FILE.1 before it exceeds this, such as 100MiB."),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", min=1, max=999, help=f"Older files that --rotate keeps [default: {KEEP}]."),
    ] = None,
    agent: AgentUrl = None,
    hub: Annotated[str | None, typer.Option("--hub", metavar="URL", help="Record a machine of a hub.")] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="ID", help="The machine of the hub, by id or name.")
    ] = None,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Record the readings of this machine, of a running agent, or of a machine of a hub, for `gpufleet replay`."""
    # Imported on use: they import the event loop's extras and zstd.
    from gpufleet.cli.daemon import run_until_stopped, wait_until_stopped
    from gpufleet.recording.writer import RecordingWriter
    from gpufleet.runtime import SystemClock

    interval = parse_span("--every", every).total_seconds()
    if interval < 1:
        raise OptionError("--every", "must be at least 1s")
    seconds = None if duration is None else parse_span("--duration", duration).total_seconds()
    rotation = None if rotate is None else _parse_rotation(rotate, keep or KEEP)
    if keep is not None and rotate is None:
        raise OptionError("--keep", "needs --rotate SIZE")
    if hub is not None and agent is not None:
        raise OptionError("--agent, --hub", "exclude each other: use one of them")
    if (hub is None) != (machine is None):
        raise OptionError("--hub, --machine", "need each other: a recording is of one machine")
    access = Access(token_file, ca)

    async def run(stop: asyncio.Event) -> None:
        async with _open_source(agent, hub, machine, config, access, interval) as source:
            writer = await asyncio.to_thread(RecordingWriter, file, SystemClock(), rotation)
            try:
                if writer.torn_bytes:
                    _note(f"{file}: cut off {writer.torn_bytes} bytes of an incomplete frame")
                frames = asyncio.create_task(_record(source, writer, interval))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await wait_until_stopped(stop, frames)
                await _end(frames)
            finally:
                await asyncio.to_thread(writer.close)
        _note(f"{file}: {writer.frames} frames recorded")

    run_until_stopped(run)


@contextlib.asynccontextmanager
async def _open_source(
    agent: str | None, hub: str | None, machine: str | None, config: Path | None, access: Access, seconds: float
) -> AsyncIterator[SnapshotSource]:
    if hub is None or machine is None:
        async with open_snapshots(agent, config, access, seconds) as source:
            yield source
        return
    from gpufleet.cli.hub_machine import fetch_machine_snapshot

    yield functools.partial(asyncio.to_thread, fetch_machine_snapshot, hub, machine, access)


async def _record(source: SnapshotSource, writer: "RecordingWriter", interval: float) -> None:
    """Write frames until cancelled. A failure of the source is printed once, except the first, which is raised."""
    start = time.monotonic()
    failure = ""
    while True:
        try:
            snapshot = await source()
        except GpufleetError as error:
            if not writer.frames:
                raise
            if str(error) != failure:
                _note(f"no frame: {error}")
            failure = str(error)
        else:
            at = time.time_ns()
            await _complete(asyncio.to_thread(writer.append, encode_snapshot(snapshot), at))
            if failure:
                _note("frames are recorded again")
            failure = ""
        elapsed = time.monotonic() - start
        await asyncio.sleep(interval - elapsed % interval)


async def _complete(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work in a thread, which ends before a cancellation has an effect."""
    running = asyncio.ensure_future(work)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await running
        raise


async def _end(frames: asyncio.Task[None]) -> None:
    """End the task, after the frame that is being written; raise its failure."""
    frames.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await frames


def _parse_rotation(text: str, keep: int) -> "Rotation":
    from gpufleet.recording.writer import MIN_ROTATE_BYTES, Rotation

    found = _SIZE.fullmatch(text)
    if found is None or int(found[1]) * _UNITS[found[2]] < MIN_ROTATE_BYTES:
        raise OptionError("--rotate", f"{text!r} is not a size of at least {MIN_ROTATE_BYTES >> 10}KiB such as 100MiB")
    return Rotation(int(found[1]) * _UNITS[found[2]], keep)


def _note(text: str) -> None:
    print(f"gpufleet: {clean(text)}", file=sys.stderr)
