"""`gpufleet record`: writes snapshots of one machine, or of machines of a hub, to a file at an interval."""

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpufleet.cli.fetch import Access, HttpError
from gpufleet.cli.live import open_snapshots
from gpufleet.cli.lookup import check_names
from gpufleet.cli.options import AgentUrl, CaOption, CommandError, ConfigFile, OptionError, TokenFileOption
from gpufleet.cli.times import parse_span
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.errors import GpufleetError
from gpufleet.model.text import clean

if TYPE_CHECKING:
    from gpufleet.model.snapshot import Snapshot
    from gpufleet.recording.writer import RecordingWriter, Rotation

Documents = Sequence[tuple[str, bytes]]
"""Name and encoded snapshot of each machine of a poll."""

DocumentSource = Callable[[], Awaitable[Documents]]
"""Polls the machines; raises GpufleetError if there is no snapshot now."""

KEEP = 4
"""Default number of older files."""

_SIZE = re.compile(r"(\d{1,9})(KiB|MiB|GiB)")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recording to create or continue.")],
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="SPAN", help="Interval, at least 1s [default: 1s, with --hub 10s]."),
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="SPAN", help="End after this time [default: until Ctrl-C].")
    ] = None,
    rotate: Annotated[
        str | None,
        typer.Option("--rotate", metavar="SIZE", help="Rename FILE to FILE.1 before it exceeds this, such as 100MiB."),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            min=1,
            max=999,
            help=f"Number of older files to keep with --rotate [default: {KEEP}].",
        ),
    ] = None,
    agent: AgentUrl = None,
    hub: Annotated[str | None, typer.Option("--hub", metavar="URL", help="Record machines of a hub.")] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="ID", help="All machines of this cluster of the hub.")
    ] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option("--machine", metavar="ID", help="A machine of the hub, by id or name; may be repeated."),
    ] = None,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Record the readings of this machine, of a running agent, or of machines of a hub, for `gpufleet replay`."""
    # Imported on use: they import the event loop's extras and zstd.
    from gpufleet.cli.daemon import run_until_stopped, wait_until_stopped
    from gpufleet.recording.writer import RecordingWriter
    from gpufleet.runtime import SystemClock

    interval = parse_span("--every", every or ("1s" if hub is None else "10s")).total_seconds()
    if interval < 1:
        raise OptionError("--every", "must be at least 1s")
    seconds = None if duration is None else parse_span("--duration", duration).total_seconds()
    rotation = None if rotate is None else _parse_rotation(rotate, keep or KEEP)
    if keep is not None and rotate is None:
        raise OptionError("--keep", "needs --rotate SIZE")
    if hub is not None and agent is not None:
        raise OptionError("--agent, --hub", "exclude each other: use one of them")
    if (hub is None) != (machine is None and cluster is None):
        raise OptionError("--hub", "needs --cluster or --machine, which need --hub")
    access = Access(token_file, ca)
    machines = tuple(dict.fromkeys(machine or ()))

    async def run(stop: asyncio.Event) -> None:
        async with _open_source(agent, hub, cluster, machines, config, access, interval) as source:
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
    agent: str | None,
    hub: str | None,
    cluster: str | None,
    machines: Sequence[str],
    config: Path | None,
    access: Access,
    seconds: float,
) -> AsyncIterator[DocumentSource]:
    if hub is not None:
        fleet = FleetSource(hub, cluster, machines, access)
        yield lambda: asyncio.to_thread(fleet.poll)
        return
    async with open_snapshots(agent, config, access, seconds) as snapshots:

        async def poll() -> Documents:
            return (("", encode_snapshot(await snapshots())),)

        yield poll


class FleetSource:
    """Source of the machines of a hub.

    Args:
        hub: base URL.
        cluster: their cluster; with `machines` it is compared with that of each machine.
        machines: ids or names; empty for all machines of the cluster.
        access: to the hub.
    """

    def __init__(self, hub: str, cluster: str | None, machines: Sequence[str], access: Access) -> None:
        from gpufleet.recording.format import MAX_GROUP

        if len(machines) > MAX_GROUP:
            raise OptionError("--machine", f"can be repeated at most {MAX_GROUP} times")
        self._hub, self._cluster, self._machines, self._access = hub, cluster, machines, access
        self._most = MAX_GROUP
        self._has_polled = False
        self._failed: set[str] = set()

    def poll(self) -> Documents:
        """Return the documents of the machines. Blocking.

        A machine that the hub does not know is printed once and left out, except in the first poll.

        Raises:
            CommandError: if the hub does not respond or has no device, or the documents exceed the limit.
        """
        from gpufleet.recording.format import MAX_GROUP_BYTES

        documents: list[tuple[str, bytes]] = []
        size = 0
        for name, snapshot in self._snapshots():
            documents.append((name, encode_snapshot(snapshot)))
            size += len(documents[-1][1])
            if size > MAX_GROUP_BYTES:
                raise CommandError(f"the machines have more than {MAX_GROUP_BYTES >> 20} MiB: select fewer")
        if not documents:
            check_names(self._hub, self._cluster, None, self._access)
            raise CommandError(f"{self._hub} has no device of these machines")
        self._has_polled = True
        return documents

    def _snapshots(self) -> Iterator[tuple[str, "Snapshot"]]:
        from gpufleet.cli.hub_machine import fetch_cluster_snapshots, fetch_machine_snapshot

        if not self._machines and self._cluster is not None:
            for snapshot in fetch_cluster_snapshots(self._hub, self._cluster, self._access, self._most):
                yield f"{snapshot.node.name} {snapshot.node.machine_id}", snapshot
            return
        for machine in self._machines:
            try:
                snapshot = fetch_machine_snapshot(self._hub, machine, self._access, self._cluster)
            except HttpError as error:
                if error.status not in (404, 409) or not self._has_polled or len(self._machines) == 1:
                    raise
                if machine not in self._failed:
                    _note(f"no frame of {machine}: {error}")
                self._failed.add(machine)
                continue
            self._failed.discard(machine)
            yield machine, snapshot


async def _record(source: DocumentSource, writer: "RecordingWriter", interval: float) -> None:
    """Write frames until cancelled. A failure of the source is printed once, except the first, which is raised."""
    start = time.monotonic()
    failure = ""
    while True:
        try:
            documents = await source()
        except GpufleetError as error:
            if not writer.frames:
                raise
            if str(error) != failure:
                _note(f"no frame: {error}")
            failure = str(error)
        else:
            at = time.time_ns()
            await _complete(asyncio.to_thread(writer.append_group, documents, at))
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
