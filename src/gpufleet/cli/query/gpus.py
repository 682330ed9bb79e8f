"""`gpufleet query gpus`, `changes` and `pools`."""

from collections.abc import Sequence
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
    Sort,
    States,
    TokenFileOption,
    Watch,
    Wide,
)
from gpufleet.cli.query.cells import (
    READING_COLUMNS,
    Parts,
    age_cell,
    count_cell,
    coverage_lines,
    device_cell,
    device_holders_cell,
    model_cell,
    reading_cell,
    reading_cells,
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
    query_and_print,
    query_pages,
)
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.cli.times import time_parameter
from gpufleet.model.api.answer import GpuPage, GpuRecord
from gpufleet.model.api.inventory import ChangeKind, GpuChangePage, GpuPool
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.liveness import State

STATE = "gpu_state"

GPU_STATES = tuple(dict.fromkeys((*LIVENESS_STATES, *CATALOGUE[STATE].states)))


def gpus(
    hub: HubUrl = HUB_URL,
    cluster: ClusterFilter = None,
    machine: MachineFilter = None,
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
    query_pages(hub, "/v1/gpus", query, GpuPage, gpus_tables, Access(token_file, ca), layout, json, watch)


def changes(
    hub: HubUrl = HUB_URL,
    cluster: ClusterFilter = None,
    machine: MachineFilter = None,
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
    query_and_print(hub, "/v1/gpus/changes", query, GpuChangePage, changes_tables, access, layout, json, watch)


def pools(
    hub: HubUrl = HUB_URL,
    cluster: ClusterFilter = None,
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
    query_and_print(hub, "/v1/gpus/pools", query, tuple[GpuPool, ...], pools_tables, access, layout, json, watch)


def gpus_tables(page: GpuPage) -> Parts:
    """Return a table with a row per view, and GPU coverage."""
    names = {one.device.id: _device_name(one) for one in page.items}
    short = short_ids(list(names.values()))
    rows = [
        (
            one.node,
            Cell() if one.index is None else count_cell(one.index),
            Cell(short[names[one.device.id]], full=names[one.device.id]),
            one.cluster,
            one.device.machine,
            one.device.side.value,
            one.device.pci_address or "",
            model_cell(one.device.name),
            _gpu_state(one),
            *reading_cells(one.device),
            device_holders_cell(one.holders, one.liveness),
            age_cell(one.age_seconds),
        )
        for one in page.items
    ]
    columns = (
        TextColumn("node"),
        TextColumn("index", rank=8, right=True),
        TextColumn("id"),
        TextColumn("cluster", wide=True),
        TextColumn("machine", wide=True),
        TextColumn("side", wide=True),
        TextColumn("pci", wide=True),
        TextColumn("model", rank=6, cut=True),
        TextColumn("state", rank=1),
        *(column for _, column in READING_COLUMNS),
        TextColumn("holder", rank=3, cut=True),
        TextColumn("age", rank=9, right=True),
    )
    holdings = [holding for one in page.items if one.holders is not None for holding in one.holders.holdings]
    return [TextTable(columns, rows, "GPUs"), *uncertain_notes(holdings), *coverage_lines(page.coverage)]


def _device_name(one: GpuRecord) -> str:
    return one.device.uuid or device_id(one.device.id.split("/", 2)[2], one.node)


def _gpu_state(one: GpuRecord) -> Cell:
    """Return the liveness state, or for a live GPU its own."""
    if one.liveness is not None and one.liveness.state is not State.LIVE:
        return state_cell(one.liveness)
    return reading_cell(one.device.readings.get(STATE), STATE)


def changes_tables(found: GpuChangePage) -> Parts:
    """Return a table with a row per change."""
    rows = [
        (
            time_cell(one.at),
            one.kind.value,
            one.node or one.machine,
            one.pci_address,
            device_cell(one.device, one.node or one.machine),
            device_cell(one.before_device, one.node or one.machine)
            if one.before_device is not None
            else Cell(f"{one.before_machine}/{(one.before_pci_address or '').removeprefix('0000:')}"),
        )
        for one in found.items
    ]
    columns = (
        TextColumn("at", rank=1),
        TextColumn("kind"),
        TextColumn("node"),
        TextColumn("slot", rank=2),
        TextColumn("device"),
        TextColumn("before", rank=1),
    )
    more = ["There are more changes: raise --limit, or narrow --since and --until."] if found.next is not None else []
    return [TextTable(columns, rows, "changes"), *more]


def pools_tables(found: Sequence[GpuPool]) -> Parts:
    """Return a table with a row per group of identical GPUs."""
    rows = [
        (
            one.cluster,
            model_cell(one.name),
            one.side,
            one.driver or "",
            one.vbios or "",
            count_cell(one.gpus),
            count_cell(one.machines),
        )
        for one in found
    ]
    columns = (
        TextColumn("cluster"),
        TextColumn("model", cut=True),
        TextColumn("side", rank=2),
        TextColumn("driver", rank=1),
        TextColumn("vbios", rank=3),
        TextColumn("gpus", right=True),
        TextColumn("machines", right=True),
    )
    return [TextTable(columns, rows, "GPUs")]
