"""`gpufleet query`: queries a hub."""

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import typer

from gpufleet.cli import query_tables
from gpufleet.cli.fetch import Access, get
from gpufleet.cli.lookup import check_names, find_view
from gpufleet.cli.options import (
    HUB_URL,
    TIME,
    CaOption,
    Columns,
    CommandError,
    HubUrl,
    Json,
    Limit,
    OptionError,
    Sort,
    States,
    TokenFileOption,
    Watch,
    Wide,
)
from gpufleet.cli.output import print_tables, repeat
from gpufleet.cli.query_sql import sql
from gpufleet.cli.table import Layout, TextTable
from gpufleet.cli.times import time_parameter
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import (
    AllocationAnswer,
    EventsAnswer,
    GpuPage,
    MachinePage,
    NodeGpus,
    NodeGpusPage,
    NodePage,
    ProcessesAnswer,
    SenderRecord,
    SeriesAnswer,
)
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.api.inventory import ChangeKind, GpuChangePage, GpuPool
from gpufleet.model.api.usage import UsageAnswer
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.liveness import State

T = TypeVar("T")

Tables = Callable[[T], list[TextTable | str]]
"""Function from an answer to tables and notes."""

Parameters = Mapping[str, str | None]

query_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Query a hub. Tables fit the terminal; without a terminal, rows are tab-separated.",
)

Cluster = Annotated[str | None, typer.Option(metavar="ID", help="Only entries of this cluster.")]
OfMachine = Annotated[str | None, typer.Option(metavar="ID", help="Only entries of this machine, by id or name.")]
OfDevice = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Only this device: UUID or its first digits, MACHINE/PCI_ADDRESS, or key."),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the allocation.")]

LIVENESS_STATES = tuple(one.value for one in State)
GPU_STATES = tuple(dict.fromkeys((*LIVENESS_STATES, *CATALOGUE["gpu_state"].states)))

SMALL_ANSWER = 100_000
"""Bytes up to which an answer is checked for being empty."""

SUMMARY_NODES = 200
"""Nodes per request for the GPUs of nodes: the hub reads every sample of their GPUs."""


@query_app.command()
def fleet(
    hub: HubUrl = HUB_URL,
    state: States = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show clusters: freshness, completeness, and GPUs reporting."""
    layout = make_layout(wide, columns, sort, limit, state, LIVENESS_STATES, as_json=json)
    query_and_print(hub, "/v1/fleet", {}, FleetAnswer, query_tables.fleet, Access(token_file, ca), layout, json, watch)


@query_app.command()
def nodes(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    state: States = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show nodes: GPUs, model, utilisation, power, holder, freshness, newest error."""
    access, query = Access(token_file, ca), {"cluster": cluster}
    layout = make_layout(wide, columns, sort, limit, state, LIVENESS_STATES, as_json=json)

    def with_gpus(page: NodePage) -> list[TextTable | str]:
        gpus: dict[str, NodeGpus] = {}
        if page.items:
            most = None if limit is None or sort or state else limit
            body = fetch_pages(hub, "/v1/nodes/gpus", query, access, most, page_size=SUMMARY_NODES)
            gpus = {one.machine: one for one in _decode(body, NodeGpusPage, hub).items}
        return query_tables.nodes(page, gpus)

    query_pages(hub, "/v1/nodes", query, NodePage, with_gpus, access, layout, json, watch)


@query_app.command()
def machines(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    state: States = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show machines, nodes and guests, with their ids."""
    layout = make_layout(wide, columns, sort, limit, state, LIVENESS_STATES, as_json=json)
    query = {"cluster": cluster}
    query_pages(
        hub, "/v1/machines", query, MachinePage, query_tables.machines, Access(token_file, ca), layout, json, watch
    )


@query_app.command()
def gpus(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    machine: OfMachine = None,
    state: States = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show GPUs, MIG devices and vGPU instances, one row per view."""
    layout = make_layout(wide, columns, sort, limit, state, GPU_STATES, as_json=json)
    query = {"cluster": cluster, "machine": machine}
    query_pages(hub, "/v1/gpus", query, GpuPage, query_tables.gpus, Access(token_file, ca), layout, json, watch)


@query_app.command()
def changes(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    machine: OfMachine = None,
    kind: Annotated[ChangeKind | None, typer.Option(help="Only changes of this kind.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME} [default: the oldest change].")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME}; exclusive [default: now].")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Maximum number of changes.")] = 100,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show GPUs that moved to another machine or slot, and slots whose GPU was replaced, newest first."""

    def query() -> Parameters:
        return {
            "cluster": cluster,
            "machine": machine,
            "kind": None if kind is None else kind.value,
            "since": time_parameter("--since", since),
            "until": time_parameter("--until", until),
            "limit": str(limit),
        }

    layout = make_layout(wide, columns, sort, as_json=json)
    access = Access(token_file, ca)
    query_and_print(hub, "/v1/gpus/changes", query, GpuChangePage, query_tables.changes, access, layout, json, watch)


@query_app.command()
def pools(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show groups of GPUs with the same name, driver and VBIOS."""
    layout = make_layout(wide, columns, sort, limit, as_json=json)
    access, query = Access(token_file, ca), {"cluster": cluster}
    query_and_print(hub, "/v1/gpus/pools", query, tuple[GpuPool, ...], query_tables.pools, access, layout, json, watch)


@query_app.command()
def allocations(
    hub: HubUrl = HUB_URL,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show allocations: target, tenant, team and validity."""
    layout = make_layout(wide, columns, sort, limit, as_json=json)
    access = Access(token_file, ca)
    query_and_print(
        hub, "/v1/allocations", {}, tuple[Allocation, ...], query_tables.allocations, access, layout, json, watch
    )


@query_app.command()
def allocation(
    id: Id,  # noqa: A002 - the argument's name
    hub: HubUrl = HUB_URL,
    wide: Wide = False,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show the newest readings of an allocation and their source."""
    path = f"/v1/allocations/{quote(id, safe='')}/metrics"
    layout, access = make_layout(wide, as_json=json), Access(token_file, ca)
    query_and_print(hub, path, {}, AllocationAnswer, query_tables.allocation, access, layout, json, watch)


@query_app.command()
def series(
    id: Id,  # noqa: A002
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="Catalogue name, for example gpu_power_watts.")],
    hub: HubUrl = HUB_URL,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"{TIME} [default: one hour before the end].")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME} [default: now].")] = None,
    step: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Duration such as 15s, 1m or 6h [default: 60s].")
    ] = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show a time series of an allocation."""

    def query() -> Parameters:
        return {
            "metric": metric,
            "start": time_parameter("--start", start),
            "end": time_parameter("--end", end),
            "step": step,
        }

    path = f"/v1/allocations/{quote(id, safe='')}/series"
    layout, access = make_layout(wide, columns, sort, limit, as_json=json), Access(token_file, ca)
    query_and_print(hub, path, query, SeriesAnswer, query_tables.series, access, layout, json, watch)


@query_app.command()
def events(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    machine: OfMachine = None,
    view: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Only of this device, by key or short id; `machine` for events of machines."),
    ] = None,
    gpu: OfDevice = None,
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
    key, owner = (None, None) if device is None else find_view(hub, device, access)

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

    query_and_print(hub, "/v1/events", query, EventsAnswer, query_tables.events, access, layout, json, watch)


@query_app.command()
def usage(
    hub: HubUrl = HUB_URL,
    group_by: Annotated[
        str, typer.Option(metavar="WHAT", help="cluster, allocation, tenant, team, model; comma-separated.")
    ] = "allocation",
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"{TIME} [default: one day before the end].")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME}; exclusive [default: now].")] = None,
    wide: Wide = False,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show GPU-hours held, used, idle and unknown, energy and cost; each GPU counts once."""

    def query() -> Parameters:
        return {
            "group_by": group_by,
            "start": time_parameter("--start", start),
            "end": time_parameter("--end", end),
        }

    layout, access = make_layout(wide, as_json=json), Access(token_file, ca)
    query_and_print(hub, "/v1/usage", query, UsageAnswer, query_tables.usage, access, layout, json, watch)


@query_app.command()
def processes(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="Id or name of the machine.")],
    hub: HubUrl = HUB_URL,
    view: OfDevice = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME} [default: now].")] = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show processes on the GPUs of a machine: process ids, memory, utilisation."""
    access, layout = Access(token_file, ca), make_layout(wide, columns, sort, limit, as_json=json)
    key = None if view is None else find_view(hub, view, access)[0]
    path = f"/v1/machines/{quote(machine, safe='')}/processes"

    def query() -> Parameters:
        return {"view": key, "at": time_parameter("--at", at)}

    query_and_print(hub, path, query, ProcessesAnswer, query_tables.processes, access, layout, json, watch)


@query_app.command()
def senders(
    hub: HubUrl = HUB_URL,
    state: States = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    limit: Limit = None,
    watch: Watch = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show senders: delay, spool and missing batches."""
    layout = make_layout(wide, columns, sort, limit, state, LIVENESS_STATES, as_json=json)
    access = Access(token_file, ca)
    query_and_print(hub, "/v1/senders", {}, tuple[SenderRecord, ...], query_tables.senders, access, layout, json, watch)


query_app.command()(sql)


def make_layout(
    wide: bool = False,
    columns: str | None = None,
    sort: str | None = None,
    limit: int | None = None,
    states: list[str] | None = None,
    known_states: tuple[str, ...] = (),
    *,
    as_json: bool,
) -> Layout:
    """Return the layout of a table from the options of a command.

    Raises:
        OptionError: for an unknown state, or an option that does not apply to JSON.
    """
    for option, value in (
        ("--wide", wide), ("--columns", columns), ("--sort", sort), ("--limit", limit), ("--state", states)
    ):  # fmt: skip
        if as_json and value:
            raise OptionError(option, "selects rows or columns of a table: leave it out, or leave out --json")
    for one in states or ():
        if one not in known_states:
            raise OptionError("--state", f"{one!r} is not one of {', '.join(known_states)}")
    names = tuple(name.strip() for name in (columns or "").split(",") if name.strip())
    return Layout(wide=wide, columns=names, sort=sort or "", limit=limit, states=tuple(states or ()))


def query_and_print(
    hub: str,
    path: str,
    query: Parameters | Callable[[], Parameters],
    answer_type: type[T],
    tables: Tables[T],
    access: Access,
    layout: Layout | None = None,
    as_json: bool = False,
    watch: str | None = None,
) -> None:
    """Query a hub and print the answer as JSON or tables; `query` is called before each request if it is a function."""

    def once() -> None:
        given = query() if callable(query) else query
        body = get(hub, _with_query(path, given), access)
        _check_empty(hub, body, given, access)
        show(body, hub, answer_type, tables, layout, as_json)

    repeat(once, _watched(watch, as_json))


def query_pages(
    hub: str,
    path: str,
    query: Parameters,
    page_type: type[T],
    tables: Tables[T],
    access: Access,
    layout: Layout,
    as_json: bool,
    watch: str | None,
) -> None:
    """Query all pages of a list and print them as one; no more than the layout shows if it shows the first ones."""
    most = None if layout.sort or layout.states else layout.limit

    def once() -> None:
        body = fetch_pages(hub, path, query, access, most)
        _check_empty(hub, body, query, access)
        show(body, hub, page_type, tables, layout, as_json)

    repeat(once, _watched(watch, as_json))


def fetch_pages(
    hub: str,
    path: str,
    query: Parameters,
    access: Access,
    most: int | None = None,
    *,
    page_size: int | None = None,
) -> bytes:
    """Return all pages of a list as one; pages after the first `most` entries are not fetched."""
    items: list[msgspec.Raw] = []
    sizes = [one for one in (page_size, most) if one is not None]
    limit = str(min(1000, *sizes)) if sizes else None
    cursor: str | None = None
    while True:
        body = get(hub, _with_query(path, {**query, "limit": limit, "cursor": cursor}), access)
        page = _decode(body, _Page, hub)
        items += page.items
        if page.next is None or page.next == cursor or (most is not None and len(items) >= most):
            break
        cursor = page.next
    document: dict[str, Any] = {"items": items, "next": None}
    if page.coverage is not msgspec.UNSET:
        document = {"items": items, "coverage": page.coverage, "next": None}
    return msgspec.json.encode(document)


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    next: str | None
    coverage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _with_query(path: str, query: Parameters) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _watched(watch: str | None, as_json: bool) -> str | None:
    if watch is not None and as_json:
        raise OptionError("--watch", "repeats a table: leave it out, or leave out --json")
    return watch


def _check_empty(hub: str, body: bytes, query: Parameters, access: Access) -> None:
    """Check that the cluster and machine of a query exist if its answer has no entries."""
    cluster, machine = query.get("cluster"), query.get("machine")
    if (cluster is None and machine is None) or len(body) > SMALL_ANSWER:
        return
    document = _decode(body, Any, hub)
    entries = document if isinstance(document, list) else document.get("items", document.get("events"))
    if not entries:
        check_names(hub, cluster, machine, access)


def _decode(body: bytes, answer_type: Any, hub: str) -> Any:
    try:
        return msgspec.json.decode(body, type=answer_type)
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} does not respond like a gpufleet hub: {error}") from error


def show(body: bytes, hub: str, answer_type: type[T], tables: Tables[T], layout: Layout | None, as_json: bool) -> None:
    """Print an answer as JSON or tables."""
    if as_json:
        sys.stdout.buffer.write(body.rstrip() + b"\n")
        return
    print_tables(tables(_decode(body, answer_type, hub)), layout)
