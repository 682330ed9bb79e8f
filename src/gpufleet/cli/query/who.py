"""`gpufleet query who`."""

import datetime as dt
from typing import Annotated

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.lookup import device_id, short_ids
from gpufleet.cli.options import (
    HUB_URL,
    TIME,
    CaOption,
    Columns,
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
from gpufleet.cli.query.cells import (
    Parts,
    age_cell,
    count_cell,
    holder_cell,
    model_cell,
    reading_cell,
    since_cell,
    state_cell,
    time_cell,
    uncertain_notes,
)
from gpufleet.cli.query.request import (
    LIVENESS_STATES,
    ClusterFilter,
    MachineFilter,
    Parameters,
    make_layout,
    query_pages,
)
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.cli.times import time_parameter
from gpufleet.exporters.display import owner_text, share_text
from gpufleet.model.api.holders import HolderPage, HolderRecord
from gpufleet.model.holdings import HolderKind, HoldingVerdict

UTILIZATION, MEMORY = "gpu_utilization_ratio", "gpu_memory_used_bytes"


def who(
    hub: HubUrl = HUB_URL,
    cluster: ClusterFilter = None,
    machine: MachineFilter = None,
    kind: Annotated[HolderKind | None, typer.Option(help="Only holders of this kind.")] = None,
    id: Annotated[  # noqa: A002 - the option's name
        str | None, typer.Option("--id", metavar="ID", help="Only this pod UID, job id, VM UUID or container id.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Only pods of this namespace.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only holders with this name.")] = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this user.")] = None,
    account: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this account.")] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only jobs of this partition, or pods of this queue.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help=f"{TIME} [default: now].")] = None,
    start: Annotated[str | None, typer.Option(metavar="TIME", help=f"Only holders since this time. {TIME}.")] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"With --start; exclusive. {TIME} [default: now].")
    ] = None,
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
    """Show which pod, job or virtual machine has which GPU, one row per device and holder."""
    if at is not None and (start is not None or end is not None):
        raise OptionError("--at", "conflicts with --start and --end: set an instant or an interval")
    if end is not None and start is None:
        raise OptionError("--end", "needs --start: set both, or --at for an instant")
    layout = make_layout(wide, columns, sort, limit, state, LIVENESS_STATES, as_json=json)

    def query() -> Parameters:
        return {
            "cluster": cluster,
            "machine": machine,
            "kind": None if kind is None else kind.value,
            "id": id,
            "namespace": namespace,
            "name": name,
            "user": user,
            "account": account,
            "queue": queue,
            "at": time_parameter("--at", at),
            "start": time_parameter("--start", start),
            "end": time_parameter("--end", end),
        }

    query_pages(hub, "/v1/holders", query, HolderPage, who_tables, Access(token_file, ca), layout, json, watch)


COLUMNS = (
    TextColumn("node"),
    TextColumn("index", rank=9, right=True),
    TextColumn("gpu"),
    TextColumn("cluster", wide=True),
    TextColumn("machine", wide=True),
    TextColumn("model", rank=10, cut=True),
    TextColumn("state", rank=6),
    TextColumn("kind", rank=8),
    TextColumn("holder", cut=True),
    TextColumn("container", rank=7, cut=True),
    TextColumn("user", rank=3, cut=True),
    TextColumn("account", wide=True),
    TextColumn("queue", wide=True),
    TextColumn("owner", rank=11, cut=True),
    TextColumn("share", rank=5),
    TextColumn("verdict", rank=1),
    TextColumn("since", rank=4, right=True),
    TextColumn("until", rank=4),
    TextColumn("util", rank=2, right=True),
    TextColumn("memory", rank=12, right=True),
    TextColumn("allocation", rank=5, cut=True),
    TextColumn("tenant", wide=True),
    TextColumn("methods", wide=True),
    TextColumn("id", wide=True),
    TextColumn("reported", wide=True, right=True),
)


def who_tables(page: HolderPage) -> Parts:
    """Return a table with a row per device and holder."""
    names = {one.device: _device_name(one) for one in page.items}
    short = short_ids(list(names.values()))
    rows = [
        (
            one.node or one.machine,
            Cell() if one.index is None else count_cell(one.index),
            Cell(short[names[one.device]], full=names[one.device]),
            one.cluster,
            one.machine,
            model_cell(one.model),
            state_cell(one.liveness),
            one.holder.kind.value,
            holder_cell(one),
            one.container or ",".join(one.steps),
            one.holder.user,
            one.holder.account,
            one.holder.queue,
            owner_text(one.holder),
            share_text(one.share, one.replicas, one.total_replicas),
            _verdict_cell(one.verdict),
            since_cell(one.since, one.reported_at + dt.timedelta(seconds=one.age_seconds)),
            time_cell(one.until),
            _reading_cell(one, UTILIZATION),
            _reading_cell(one, MEMORY),
            ",".join(allocation.id for allocation in one.allocations),
            ",".join(filter(None, (allocation.tenant for allocation in one.allocations))),
            "+".join(one.methods),
            one.holder.id,
            age_cell(one.age_seconds),
        )
        for one in page.items
    ]
    return [TextTable(COLUMNS, rows, "holders"), *uncertain_notes(page.items)]


def _device_name(one: HolderRecord) -> str:
    return one.uuid or device_id(one.device.split("/", 2)[2], one.node or one.machine)


def _verdict_cell(verdict: HoldingVerdict) -> Cell:
    """Return the cell of a verdict; on a terminal it is empty if the evidence agrees."""
    text = verdict.value
    return Cell("" if verdict is HoldingVerdict.AGREED else text, full=text, key=text)


def _reading_cell(one: HolderRecord, metric: str) -> Cell:
    """Return the cell of a present reading; it is empty if the holding has ended."""
    return Cell() if one.until is not None else reading_cell(one.readings.get(metric), metric)
