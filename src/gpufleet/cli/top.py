"""`gpufleet top`: devices, processes and holders in a terminal, repeatedly."""

import asyncio
import contextlib
import functools
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gpufleet.cli.fetch import Access, get_pages
from gpufleet.cli.live import SnapshotSource, open_snapshots
from gpufleet.cli.lookup import check_names
from gpufleet.cli.options import AgentUrl, CaOption, CommandError, ConfigFile, OptionError, TokenFileOption
from gpufleet.cli.query.request import ClusterFilter, MachineFilter
from gpufleet.cli.source import take_snapshot
from gpufleet.cli.times import parse_span, parse_time
from gpufleet.model.api.answer import GpuPage
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.top.observation import Observation, observe_fleet, observe_snapshot
from gpufleet.top.screen import BodyPage

if TYPE_CHECKING:
    from gpufleet.top.process_owners import ProcessOwners
    from gpufleet.top.source import Playback, TopSource

MAX_DEVICES = 20_000
"""Maximum number of devices of a hub that are shown."""


def top(
    agent: AgentUrl = None,
    hub: Annotated[str | None, typer.Option("--hub", metavar="URL", help="Show the GPUs of a hub.")] = None,
    cluster: ClusterFilter = None,
    machine: MachineFilter = None,
    replay: Annotated[Path | None, typer.Option("--replay", metavar="FILE", help="Play a recording.")] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Start the recording at this time: RFC 3339, or a duration before its end such as 10m.",
        ),
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="SPAN", help="Interval [default: 1s, with --hub 5s].")
    ] = None,
    page: Annotated[BodyPage, typer.Option("--page", help="Page to start with.")] = BodyPage.OVERVIEW,
    filter: Annotated[str, typer.Option("--filter", metavar="TERMS", help="Only rows with all of these terms.")] = "",  # noqa: A002
    once: Annotated[bool, typer.Option("--once", help="Print one frame as text, and exit.")] = False,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show devices, processes and holders of this machine, of an agent, a hub or a recording. `?` lists the keys.

    Read-only: no key changes a device.
    """
    if sum(one is not None for one in (agent, hub, replay)) > 1:
        raise OptionError("--agent, --hub, --replay", "exclude each other: use one of them")
    for option, value, needed in (
        ("--cluster", cluster, hub),
        ("--machine", machine, hub),
        ("--at", at, replay),
    ):
        if value is not None and needed is None:
            raise OptionError(option, f"needs {'--replay FILE' if option == '--at' else '--hub URL'}")
    seconds = parse_span("--every", every or ("5s" if hub is not None else "1s")).total_seconds()
    if seconds < 1:
        raise OptionError("--every", "must be at least 1s")
    access = Access(token_file, ca)

    @contextlib.asynccontextmanager
    async def source() -> AsyncIterator["TopSource"]:
        if hub is not None:
            yield HubSource(hub, cluster, machine, access)
        elif replay is not None:
            with _open_recording(replay, at) as playback:
                yield playback
        elif once and agent is None:  # rates need two passes
            local = functools.partial(asyncio.to_thread, take_snapshot, agent, config, access)
            yield SnapshotPoller(local, _process_owners())
        else:
            async with open_snapshots(agent, config, access, seconds) as snapshots:
                yield SnapshotPoller(snapshots, _process_owners() if agent is None else None)

    if once:
        print(asyncio.run(_frame(source(), page, filter)))
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("this is not a terminal: use --once to print one frame")
    asyncio.run(_run_app(source(), seconds, page, filter))


def _process_owners() -> "ProcessOwners":
    from gpufleet.top.process_owners import ProcessOwners

    return ProcessOwners()


class SnapshotPoller:
    """Source of the snapshots of a machine.

    Args:
        snapshots: returns the newest snapshot.
        owners: users and commands of the processes, if the snapshots are of this machine.
    """

    def __init__(self, snapshots: SnapshotSource, owners: "ProcessOwners | None") -> None:
        self._snapshots, self._owners = snapshots, owners

    async def poll(self) -> Observation:
        """Return the newest observation; raises CommandError."""
        snapshot = _known(await self._snapshots())
        return observe_snapshot(snapshot, None if self._owners is None else self._owners.of(snapshot))


class HubSource:
    """Source of the GPUs of a hub.

    Args:
        hub: base URL.
        cluster, machine: to show; None for all.
        access: to the hub.
    """

    def __init__(self, hub: str, cluster: str | None, machine: str | None, access: Access) -> None:
        self._hub, self._cluster, self._machine, self._access = hub, cluster, machine, access

    async def poll(self) -> Observation:
        """Return the newest observation; raises CommandError."""
        return await asyncio.to_thread(self._fetch)

    def _fetch(self) -> Observation:
        query = {"cluster": self._cluster, "machine": self._machine}
        body = get_pages(self._hub, "/v1/gpus", query, self._access, MAX_DEVICES + 1)
        try:
            records = msgspec.json.decode(body, type=GpuPage).items
        except msgspec.DecodeError as error:
            raise CommandError(f"{self._hub} does not respond like a hub of this version: {error}") from error
        if not records:
            check_names(self._hub, self._cluster, self._machine, self._access)
        return observe_fleet(self._hub, records[:MAX_DEVICES], more=len(records) > MAX_DEVICES)


@contextlib.contextmanager
def _open_recording(file: Path, at: str | None) -> Iterator["Playback"]:
    from gpufleet.model.errors import RecordingError
    from gpufleet.recording.reader import RecordingReader
    from gpufleet.top.source import Playback

    with contextlib.ExitStack() as stack:
        try:
            reader = RecordingReader(stack.enter_context(file.open("rb")))
            start = reader.index.first_at
            if at is not None:
                start = to_ns(parse_time("--at", at, to_datetime(reader.index.latest_at)))
            playback = Playback(reader, start, time.monotonic, _known)
        except OSError as error:
            raise CommandError(f"cannot read {file}: {error.strerror or error}") from error
        except RecordingError as error:
            raise CommandError(f"{file}: {error}") from error
        yield playback


def _known(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without metrics that this version does not know."""
    from gpufleet.decoding.snapshot import known_snapshot

    return known_snapshot(snapshot)[0]


async def _frame(source: contextlib.AbstractAsyncContextManager["TopSource"], page: BodyPage, terms: str) -> str:
    """Return one frame as text, with the width of the terminal and all its lines."""
    from gpufleet.top.history import UtilizationHistory
    from gpufleet.top.lines import line_text
    from gpufleet.top.rows import list_rows
    from gpufleet.top.screen import PollStatus, ViewState, render_screen
    from gpufleet.top.source import Playback

    async with source as open_source:
        observation = await open_source.poll()
        mode = open_source.mode if isinstance(open_source, Playback) else ""
    history = UtilizationHistory()
    rows = list_rows(observation)
    history.add(rows.devices)
    width = shutil.get_terminal_size((120, 40)).columns
    state = ViewState(page=page, filter=terms)
    screen = render_screen(rows, history, state, PollStatus(mode=mode), width)
    return "\n".join([*map(line_text, screen.header), "", *(line_text(one.line) for one in screen.body)])


async def _run_app(
    source: contextlib.AbstractAsyncContextManager["TopSource"], seconds: float, page: BodyPage, terms: str
) -> None:
    try:
        from gpufleet.top.app import TopApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise CommandError("textual is not installed: install gpufleet[top], or use --once") from error
    async with source as open_source:
        app = TopApp(open_source, seconds)
        app.state = msgspec.structs.replace(app.state, page=page, filter=terms)
        await app.run_async()
