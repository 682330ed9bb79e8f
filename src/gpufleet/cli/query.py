"""`gpufleet query`: ask a hub from the shell."""

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

query_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Ask a hub.")

Cluster = Annotated[str | None, typer.Option(metavar="ID", help="Only of this cluster.")]


@query_app.command()
def fleet(hub: HubUrl = HUB_URL, json: Json = False, token_file: TokenFileOption = None, ca: CaOption = None) -> None:
    """Every cluster: how fresh and complete it is, and how many of its GPUs report."""
    ask(hub, "/v1/fleet", {}, FleetAnswer, "fleet", json, Access(token_file, ca))


@query_app.command()
def nodes(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Every node: its GPUs, how fresh it is, its newest error."""
    ask_pages(hub, "/v1/nodes", {"cluster": cluster}, NodePage, "nodes", json, Access(token_file, ca))


@query_app.command()
def machines(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Every machine, nodes and guests, with the hub's ids."""
    ask_pages(hub, "/v1/machines", {"cluster": cluster}, MachinePage, "machines", json, Access(token_file, ca))


@query_app.command()
def gpus(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    machine: Annotated[str | None, typer.Option(metavar="ID", help="Only of this machine, by id or name.")] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Every GPU, MIG device and vGPU instance, as each side sees it."""
    wanted = {"cluster": cluster, "machine": machine}
    ask_pages(hub, "/v1/gpus", wanted, GpuPage, "gpus", json, Access(token_file, ca))


@query_app.command()
def changes(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    machine: Annotated[str | None, typer.Option(metavar="ID", help="Only of this machine, by id or name.")] = None,
    kind: Annotated[ChangeKind | None, typer.Option(help="Only of this kind.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: the beginning].")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, excluded [default: now].")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Most changes.")] = 100,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """GPUs that moved to another machine or slot, and slots that hold another GPU. The newest first."""
    wanted = {"cluster": cluster, "machine": machine, "kind": None if kind is None else kind.value}
    asked = {**wanted, "since": since, "until": until, "limit": str(limit)}
    ask(hub, "/v1/gpus/changes", asked, GpuChangePage, "changes", json, Access(token_file, ca))


@query_app.command()
def pools(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """How many GPUs are alike in name, driver and VBIOS."""
    ask(hub, "/v1/gpus/pools", {"cluster": cluster}, tuple[GpuPool, ...], "pools", json, Access(token_file, ca))


@query_app.command()
def allocations(
    hub: HubUrl = HUB_URL, json: Json = False, token_file: TokenFileOption = None, ca: CaOption = None
) -> None:
    """Every allocation: what it points at, whose it is, from when to when."""
    ask(hub, "/v1/allocations", {}, tuple[Allocation, ...], "allocations", json, Access(token_file, ca))


@query_app.command()
def allocation(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the allocation.")],  # noqa: A002 - the argument's name
    hub: HubUrl = HUB_URL,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """What an allocation is doing now, and who says so."""
    ask(
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
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="Catalogue name, such as gpu_power_watts.")],
    hub: HubUrl = HUB_URL,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: an hour before the end].")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: now].")] = None,
    step: Annotated[str | None, typer.Option(metavar="SPAN", help="Such as 15s, 1m, 6h [default: 60s].")] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """What an allocation did over time."""
    wanted = {"metric": metric, "start": start, "end": end, "step": step}
    ask(
        hub,
        f"/v1/allocations/{quote(id, safe='')}/series",
        wanted,
        SeriesAnswer,
        "series",
        json,
        Access(token_file, ca),
    )


@query_app.command()
def events(
    hub: HubUrl = HUB_URL,
    cluster: Cluster = None,
    machine: Annotated[str | None, typer.Option(metavar="ID", help="Only of this machine, by id or name.")] = None,
    view: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only of this device, such as gpu/GPU-...; `machine` for none.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="ID", help="Only of this GPU, by UUID or PCI address.")] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only of this kind, such as xid.")] = None,
    code: Annotated[int | None, typer.Option(metavar="NUMBER", help="Only of this code, such as an XID.")] = None,
    allocation: Annotated[str | None, typer.Option(metavar="ID", help="Only what its holder may see.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: a day ago].")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, excluded [default: now].")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Most events.")] = 100,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """What happened: XIDs, resets, throttles, drivers. The newest first."""
    wanted = {"cluster": cluster, "machine": machine, "view": view, "gpu": gpu, "kind": kind, "allocation": allocation}
    asked = {**wanted, "code": None if code is None else str(code), "since": since, "until": until, "limit": str(limit)}
    ask(hub, "/v1/events", asked, EventsAnswer, "events", json, Access(token_file, ca))


@query_app.command()
def usage(
    hub: HubUrl = HUB_URL,
    group_by: Annotated[
        str, typer.Option(metavar="WHAT", help="cluster, allocation, tenant, team, model; several with commas.")
    ] = "allocation",
    start: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: a day before the end].")] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339, excluded [default: now].")] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """GPU-hours held, used, idle and unknown, energy and cost; each GPU once."""
    asked = {"group_by": group_by, "start": start, "end": end}
    ask(hub, "/v1/usage", asked, UsageAnswer, "usage", json, Access(token_file, ca))


@query_app.command()
def processes(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="Id or name of the machine.")],
    hub: HubUrl = HUB_URL,
    view: Annotated[str | None, typer.Option(metavar="KEY", help="Only of this device, such as gpu/GPU-...")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339 [default: now].")] = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Who uses the GPUs of a machine: process ids, memory, shares of the GPUs' time."""
    path = f"/v1/machines/{quote(machine, safe='')}/processes"
    ask(hub, path, {"view": view, "at": at}, ProcessesAnswer, "processes", json, Access(token_file, ca))


@query_app.command()
def senders(hub: HubUrl = HUB_URL, json: Json = False, token_file: TokenFileOption = None, ca: CaOption = None) -> None:
    """Who posts batches, how late they are, and what is missing of them."""
    ask(hub, "/v1/senders", {}, tuple[SenderRecord, ...], "senders", json, Access(token_file, ca))


query_app.command()(sql)


def ask(
    hub: str, path: str, query: dict[str, str | None], answer_type: type[T], kind: str, as_json: bool, access: Access
) -> None:
    """Ask a hub and print the answer, as it came or for people; `kind` names the function of `query_tables`."""
    show(_get(hub, path, query, access), hub, answer_type, kind, as_json)


def ask_pages(
    hub: str, path: str, query: dict[str, str | None], page_type: type[T], kind: str, as_json: bool, access: Access
) -> None:
    """Ask a hub for every page of a list and print it as one."""
    items: list[msgspec.Raw] = []
    cursor: str | None = None
    while True:
        try:
            page = msgspec.json.decode(_get(hub, path, {**query, "cursor": cursor}, access), type=_Page)
        except msgspec.DecodeError as error:
            raise CommandError(f"{hub} answers something else than a gpufleet hub does: {error}") from error
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
    """Print an answer, as it came or for people."""
    if as_json:
        sys.stdout.buffer.write(body.rstrip() + b"\n")
        return
    try:
        answer = msgspec.json.decode(body, type=answer_type)
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} answers something else than a gpufleet hub does: {error}") from error
    print_tables(kind, answer)
