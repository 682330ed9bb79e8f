"""`gpufleet events`: shows recent events of this machine."""

import datetime as dt
from typing import Annotated

import msgspec
import typer

from gpufleet.cli.devices import find_device
from gpufleet.cli.fetch import Access
from gpufleet.cli.options import (
    TIME,
    AgentUrl,
    CaOption,
    Columns,
    CommandError,
    ConfigFile,
    Json,
    Limit,
    Sort,
    TokenFileOption,
    Wide,
)
from gpufleet.cli.output import print_tables, write_json
from gpufleet.cli.query.events import event_report_tables
from gpufleet.cli.query.request import make_layout
from gpufleet.cli.source import take_snapshot
from gpufleet.cli.times import parse_time


def events(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[WHAT]", help="Only events of this device: UUID or its prefix, PCI address or index."),
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only events of this kind, for example xid.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"Only events since this time: {TIME}.")] = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    json: Json = False,
    agent: AgentUrl = None,
    config: ConfigFile = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show events, newest first: XIDs, resets, throttling, driver changes.

    A running agent (--agent) keeps the newest 200. Without --agent, only events still in the kernel log are shown.
    """
    snapshot = take_snapshot(agent, config, Access(token_file, ca))
    found = snapshot.events
    if what is not None:
        device = find_device(snapshot, what)
        if device is None:
            known = ", ".join(one.uuid or one.pci_address or one.key for one in snapshot.devices) or "none"
            raise CommandError(f"{snapshot.node.name} has no device {what}; its devices: {known}")
        names = {device[0].key, f"gpu/pci/{device[0].pci_address}"}
        found = tuple(event for event in found if event.device in names)
    if since is not None:
        start = parse_time("--since", since, dt.datetime.now(dt.UTC))
        found = tuple(event for event in found if event.at >= start)
    if kind is not None:
        found = tuple(event for event in found if event.kind == kind)
    if json:
        write_json(msgspec.json.encode(found))
        return
    print_tables(event_report_tables(found), make_layout(wide, columns, sort, limit, as_json=json))
