"""`gpufleet query events`, and the table of events that `gpufleet events` also prints."""

from collections.abc import Sequence
from typing import Annotated

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.lookup import find_view, short_id
from gpufleet.cli.options import (
    HUB_URL,
    TIME,
    CaOption,
    Columns,
    HubUrl,
    Json,
    OptionError,
    Sort,
    TokenFileOption,
    Watch,
    Wide,
)
from gpufleet.cli.query.cells import Parts, device_cell, time_cell
from gpufleet.cli.query.request import (
    ClusterFilter,
    DeviceFilter,
    MachineFilter,
    Parameters,
    make_layout,
    query_and_print,
)
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.cli.times import time_parameter
from gpufleet.exporters.display import event_name, event_text
from gpufleet.model.api.answer import EventsAnswer
from gpufleet.model.event import EventReport


def events(
    hub: HubUrl = HUB_URL,
    cluster: ClusterFilter = None,
    machine: MachineFilter = None,
    view: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Only of this device, by key or short id; `machine` for events of machines."),
    ] = None,
    gpu: DeviceFilter = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only events of this kind, for example xid.")] = None,
    code: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Only events with this code, for example an XID.")
    ] = None,
    allocation: Annotated[
        str | None, typer.Option(metavar="ID", help="Only events visible to the holder of this allocation.")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME} [default: one day ago].")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME}; exclusive [default: now].")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Maximum number of events.")] = 100,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show events, newest first: XIDs, resets, throttling, driver changes."""
    if gpu is not None and view is not None:
        raise OptionError("--gpu", "conflicts with --view: set one of them")
    access, layout = Access(token_file, ca), make_layout(wide, columns, sort, as_json=json)
    device = gpu or view
    key, owner = (None, None) if device is None else find_view(hub, device, access, machine)

    def query() -> Parameters:
        return {
            "cluster": cluster,
            "machine": machine or owner,
            "view": key,
            "kind": kind,
            "allocation": allocation,
            "code": None if code is None else str(code),
            "since": time_parameter("--since", since),
            "until": time_parameter("--until", until),
            "limit": str(limit),
        }

    query_and_print(hub, "/v1/events", query, EventsAnswer, events_tables, access, layout, json, watch)


EVENT_COLUMNS = (
    TextColumn("at", rank=1),
    TextColumn("node", rank=2),
    TextColumn("device"),
    TextColumn("event"),
    TextColumn("details", wrap=True),
)


def events_tables(found: EventsAnswer) -> Parts:
    """Return a table with a row per event."""
    rows = [
        (
            time_cell(one.at),
            one.node or one.machine,
            device_cell(one.device, one.node or one.machine) if one.device else "machine",
            Cell(event_name(one.kind, one.code), key=one.code),
            event_text(one.attributes),
        )
        for one in found.events
    ]
    more = ["There are older events: use --limit, --since, or --json with `cursor`."] if found.next else []
    return [TextTable(EVENT_COLUMNS, rows, "events"), *more]


def event_report_tables(found: Sequence[EventReport]) -> Parts:
    """Return a table with a row per event of one machine."""
    rows = [
        (
            time_cell(one.at),
            Cell(short_id(one.uuid), full=one.uuid) if one.uuid else one.pci_address or "machine",
            event_name(one.kind, one.code),
            event_text(one.attributes),
        )
        for one in found
    ]
    return [TextTable([one for one in EVENT_COLUMNS if one.name != "node"], rows, "events")]
