"""`gpufleet query`: queries a hub."""

import sys
from typing import Annotated, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import typer

from gpufleet.cli.fetch import Access, get
from gpufleet.cli.options import HUB_URL, CaOption, CommandError, HubUrl, Json, TokenFileOption
from gpufleet.cli.output import print_tables
from gpufleet.cli.query_sql import sql
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import (
    AllocationAnswer,
    EventsAnswer,
    GpuPage,
    MachinePage,
    NodePage,
    ProcessesAnswer,
    SenderRecord,
    SeriesAnswer,
)
from gpufleet.model.api.fleet import FleetAnswer
from gpufleet.model.api.inventory import ChangeKind, GpuChangePage, GpuPool
from gpufleet.model.api.usage import UsageAnswer

T = TypeVar("T")

query_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Query a hub.")

Cluster = Annotated[str | None, typer.Option(metavar="ID", help="Only entries of this cluster.")]


@query_app.command()
def fleet(hub: HubUrl = HUB_URL, json: Json = False, token_file: TokenFileOption = None, ca: CaOption = None) -> None:
    """Show clusters: freshness, completeness, and GPUs reporting."""
    query_and_print(hub, "/v1/fleet", {}, FleetAnswer, "fleet", json, Access(token_file, ca))


@query_app.command()
def nodes(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show nodes: GPUs, freshness, newest error."""
    query_pages(hub, "/v1/nodes", {"cluster": cluster}, NodePage, "nodes", json, Access(token_file, ca))


@query_app.command()
def machines(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show machines, nodes and guests, with their ids."""
    query_pages(hub, "/v1/machines", {"cluster": cluster}, MachinePage, "machines", json, Access(token_file, ca))


@query_app.command()
def gpus(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    machine: Annotated[
        str | None, typer.Option(metavar="ID", help="Only entries of this machine, by id or name.")
    ] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show GPUs, MIG devices and vGPU instances, one row per view."""
    query = {"cluster": cluster, "machine": machine}
    query_pages(hub, "/v1/gpus", query, GpuPage, "gpus", json, Access(token_file, ca))


@query_app.command()
def changes(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    machine: Annotated[
        str | None, typer.Option(metavar="ID", help="Only entries of this machine, by id or name.")
    ] = None,
    kind: Annotated[ChangeKind | None, typer.Option(help="Only changes of this kind.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: the oldest change].")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, exclusive [default: now].")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Maximum number of changes.")] = 100,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show GPUs that moved to another machine or slot, and slots whose GPU was replaced, newest first."""
    query = {
        "cluster": cluster,
        "machine": machine,
        "kind": None if kind is None else kind.value,
        "since": since,
        "until": until,
        "limit": str(limit),
    }
    query_and_print(hub, "/v1/gpus/changes", query, GpuChangePage, "changes", json, Access(token_file, ca))


@query_app.command()
def pools(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show groups of GPUs with the same name, driver and VBIOS."""
    query_and_print(
        hub, "/v1/gpus/pools", {"cluster": cluster}, tuple[GpuPool, ...], "pools", json, Access(token_file, ca)
    )


@query_app.command()
def allocations(
    hub: HubUrl = HUB_URL, json: Json = False, token_file: TokenFileOption = None, ca: CaOption = None
) -> None:
    """Show allocations: target, tenant, team and validity."""
    query_and_print(hub, "/v1/allocations", {}, tuple[Allocation, ...], "allocations", json, Access(token_file, ca))


@query_app.command()
def allocation(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the allocation.")],  # noqa: A002 - the argument's name
    hub: HubUrl = HUB_URL,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show the newest readings of an allocation and their source."""
    query_and_print(
        hub,
        f"/v1/allocations/{quote(id, safe='')}/metrics",
        {},
        AllocationAnswer,
        "allocation",
        json,
        Access(token_file, ca),
    )


@query_app.command()
def series(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the allocation.")],  # noqa: A002
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="Catalogue name, for example gpu_power_watts.")],
    hub: HubUrl = HUB_URL,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: one hour before the end].")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: now].")] = None,
    step: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Duration such as 15s, 1m or 6h [default: 60s].")
    ] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show a time series of an allocation."""
    query = {"metric": metric, "start": start, "end": end, "step": step}
    query_and_print(
        hub,
        f"/v1/allocations/{quote(id, safe='')}/series",
        query,
        SeriesAnswer,
        "series",
        json,
        Access(token_file, ca),
    )


@query_app.command()
def events(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    machine: Annotated[
        str | None, typer.Option(metavar="ID", help="Only entries of this machine, by id or name.")
    ] = None,
    view: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="Only of this device, for example gpu/GPU-...; `machine` for events of machines."
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="ID", help="Only events of this GPU, by UUID or PCI address.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only events of this kind, for example xid.")] = None,
    code: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Only events with this code, for example an XID.")
    ] = None,
    allocation: Annotated[
        str | None, typer.Option(metavar="ID", help="Only events visible to the holder of this allocation.")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: one day ago].")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, exclusive [default: now].")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Maximum number of events.")] = 100,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show events, newest first: XIDs, resets, throttling, driver changes."""
    query = {
        "cluster": cluster,
        "machine": machine,
        "view": view,
        "gpu": gpu,
        "kind": kind,
        "allocation": allocation,
        "code": None if code is None else str(code),
        "since": since,
        "until": until,
        "limit": str(limit),
    }
    query_and_print(hub, "/v1/events", query, EventsAnswer, "events", json, Access(token_file, ca))


@query_app.command()
def usage(
    hub: HubUrl = HUB_URL,
    group_by: Annotated[
        str, typer.Option(metavar="WHAT", help="cluster, allocation, tenant, team, model; comma-separated.")
    ] = "allocation",
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: one day before the end].")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, exclusive [default: now].")] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show GPU-hours held, used, idle and unknown, energy and cost; each GPU counts once."""
    query = {"group_by": group_by, "start": start, "end": end}
    query_and_print(hub, "/v1/usage", query, UsageAnswer, "usage", json, Access(token_file, ca))


@query_app.command()
def processes(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="Id or name of the machine.")],
    hub: HubUrl = HUB_URL,
    view: Annotated[str | None, typer.Option(metavar="KEY", help="Only this device, for example gpu/GPU-...")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: now].")] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show processes on the GPUs of a machine: process ids, memory, utilisation."""
    path = f"/v1/machines/{quote(machine, safe='')}/processes"
    query_and_print(hub, path, {"view": view, "at": at}, ProcessesAnswer, "processes", json, Access(token_file, ca))


@query_app.command()
def senders(hub: HubUrl = HUB_URL, json: Json = False, token_file: TokenFileOption = None, ca: CaOption = None) -> None:
    """Show senders: delay, spool and missing batches."""
    query_and_print(hub, "/v1/senders", {}, tuple[SenderRecord, ...], "senders", json, Access(token_file, ca))


query_app.command()(sql)


def query_and_print(
    hub: str, path: str, query: dict[str, str | None], answer_type: type[T], kind: str, as_json: bool, access: Access
) -> None:
    """Query a hub and print the answer as JSON or tables; `kind` is the name of a function of `query_tables`."""
    show(_get(hub, path, query, access), hub, answer_type, kind, as_json)


def query_pages(
    hub: str, path: str, query: dict[str, str | None], page_type: type[T], kind: str, as_json: bool, access: Access
) -> None:
    """Query all pages of a list and print them as one."""
    items: list[msgspec.Raw] = []
    cursor: str | None = None
    while True:
        try:
            page = msgspec.json.decode(_get(hub, path, {**query, "cursor": cursor}, access), type=_Page)
        except msgspec.DecodeError as error:
            raise CommandError(f"{hub} does not respond like a gpufleet hub: {error}") from error
        items += page.items
        if page.next is None or page.next == cursor:
            break
        cursor = page.next
    whole = msgspec.json.encode({"items": items, "coverage": page.coverage, "next": None})
    show(whole, hub, page_type, kind, as_json)


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    coverage: msgspec.Raw
    next: str | None


def _get(hub: str, path: str, query: dict[str, str | None], access: Access) -> bytes:
    given = {name: value for name, value in query.items() if value is not None}
    return get(hub, f"{path}?{urlencode(given)}" if given else path, access)


def show(body: bytes, hub: str, answer_type: type[T], kind: str, as_json: bool) -> None:
    """Print an answer as JSON or tables."""
    if as_json:
        sys.stdout.buffer.write(body.rstrip() + b"\n")
        return
    try:
        answer = msgspec.json.decode(body, type=answer_type)
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} does not respond like a gpufleet hub: {error}") from error
    print_tables(kind, answer)
