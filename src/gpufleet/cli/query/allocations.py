"""`gpufleet query allocations`, `allocation` and `series`."""

from collections.abc import Iterable, Sequence
from typing import Annotated
from urllib.parse import quote

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
    TokenFileOption,
    Watch,
    Wide,
)
from gpufleet.cli.query.cells import (
    READING_COLUMNS,
    Parts,
    device_cell,
    model_cell,
    reading_cell,
    reading_cells,
    time_cell,
)
from gpufleet.cli.query.request import Parameters, make_layout, query_and_print
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.cli.times import time_parameter
from gpufleet.exporters.display import seconds_text, value_text
from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, Allocation
from gpufleet.model.api.answer import (
    AllocationAnswer,
    MachineSeriesAnswer,
    Series,
    SeriesAnswer,
    SeriesPoint,
    SourceInterval,
)

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the allocation.")]


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
    query_and_print(hub, "/v1/allocations", {}, tuple[Allocation, ...], allocations_tables, access, layout, json, watch)


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
    query_and_print(hub, path, {}, AllocationAnswer, allocation_tables, access, layout, json, watch)


def series(
    id: Annotated[  # noqa: A002
        str, typer.Argument(metavar="ID", help="Id of the allocation; with --machine, id or name of the machine.")
    ],
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="Catalogue name, for example gpu_power_watts.")],
    machine: Annotated[
        bool, typer.Option("--machine", help="Show the series of a machine and its devices instead, for operators.")
    ] = False,
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
    """Show a time series of an allocation or a machine."""

    def query() -> Parameters:
        return {
            "metric": metric,
            "start": time_parameter("--start", start),
            "end": time_parameter("--end", end),
            "step": step,
        }

    layout, access = make_layout(wide, columns, sort, limit, as_json=json), Access(token_file, ca)
    path = f"/v1/{'machines' if machine else 'allocations'}/{quote(id, safe='')}/series"
    if machine:
        query_and_print(hub, path, query, MachineSeriesAnswer, machine_series_tables, access, layout, json, watch)
    else:
        query_and_print(hub, path, query, SeriesAnswer, series_tables, access, layout, json, watch)


def allocations_tables(found: Sequence[Allocation]) -> Parts:
    """Return a table with a row per allocation."""
    rows = []
    for one in found:
        target = one.spec.target
        end = one.closed_at or one.spec.valid_to
        rows.append(
            (
                one.id,
                one.spec.kind.value,
                target.cluster,
                getattr(target, REQUIRED_TARGET_FIELD[one.spec.kind]) or "",
                one.spec.tenant or "",
                one.spec.team or "",
                time_cell(one.spec.valid_from),
                time_cell(end) if end else "open",
            )
        )
    columns = (
        TextColumn("allocation"),
        TextColumn("kind", rank=3),
        TextColumn("cluster", rank=4),
        TextColumn("target", rank=1),
        TextColumn("tenant", rank=2),
        TextColumn("team", rank=5),
        TextColumn("from", rank=7),
        TextColumn("to", rank=6),
    )
    return [TextTable(columns, rows, "allocations")]


def allocation_tables(found: AllocationAnswer) -> Parts:
    """Return the source, the totals, and tables of the devices and the machine."""
    spec = found.allocation.spec
    head = f"allocation {found.allocation.id}: {spec.kind.value}, source {found.source.value}"
    if found.reason is not None:
        head += f", {found.reason.value}" + (f" ({found.detail})" if found.detail else "")
    if found.age_seconds is not None:
        head += f", {seconds_text(found.age_seconds)} ago"
    lines: Parts = []
    if found.devices:
        names = {one.id: one.uuid or device_id(one.id.split("/", 2)[2], one.machine) for one in found.devices}
        short = short_ids(list(names.values()))
        rows = [
            (Cell(short[names[one.id]], full=names[one.id]), model_cell(one.name), one.side.value, *reading_cells(one))
            for one in found.devices
        ]
        columns = (
            TextColumn("device"),
            TextColumn("model", rank=6, cut=True),
            TextColumn("side", rank=7),
            *(column for _, column in READING_COLUMNS),
        )
        lines.append(TextTable(columns, rows, "devices"))
    totals = [
        (metric, total.operation, value_text(metric, total.value), f"{total.reporting} of {total.devices}")
        for metric, total in found.aggregate.metrics.items()
        if total.value is not None
    ]
    if totals:
        columns = (
            TextColumn("metric"),
            TextColumn("total", rank=1),
            TextColumn("value", right=True),
            TextColumn("devices", right=True),
        )
        lines.append(TextTable(columns, totals, "totals"))
    if found.host:
        values = [(metric, reading_cell(reading, metric)) for metric, reading in found.host.items()]
        lines.append(TextTable((TextColumn("host"), TextColumn("value", right=True)), values, "host readings"))
    lines += [head, f"GPUs reporting: {found.aggregate.coverage}"]
    if found.last_error:
        lines.append(f"last error: {found.last_error}")
    return lines


def series_tables(found: SeriesAnswer) -> Parts:
    """Return a table with a row per step and device, and the source."""
    notes = [f"allocation {found.allocation.id}: source {found.source.value}"]
    if found.reason is not None:
        notes.append(f"{found.reason.value}: {found.detail}")
    return [_series_table(found.series), *notes, *_source_notes(found.sources)]


def machine_series_tables(found: MachineSeriesAnswer) -> Parts:
    """Return a table with a row per step and device, and the source."""
    note = f"machine {found.name} in {found.cluster}: source {found.source.value}"
    return [_series_table(found.series), note, *_source_notes(found.sources)]


def _source_notes(sources: Sequence[SourceInterval]) -> list[str]:
    """Return a line per interval, if sources changed."""
    if len({one.source for one in sources}) < 2:
        return []
    return [
        f"{one.start:%Y-%m-%d %H:%M:%SZ} to {one.end:%Y-%m-%d %H:%M:%SZ}: source {one.source.value}" for one in sources
    ]


def _series_table(series: Iterable[Series]) -> TextTable:
    rows = []
    for one in series:
        name = "machine" if one.device is None else one.device.split("/", 2)[2]
        device = name if one.device is None else device_cell(name, one.device.split("/", 2)[1])
        rows += [
            (
                Cell(f"{point.at:%Y-%m-%d %H:%M:%SZ}"),
                device,
                one.metric,
                _point_cell(one.metric, point),
            )
            for point in one.points
        ]
    columns = (
        TextColumn("start-of-step"),
        TextColumn("device"),
        TextColumn("metric", rank=1),
        TextColumn("value", right=True),
    )
    return TextTable(columns, rows, "measurements in this time")


def _point_cell(metric: str, point: SeriesPoint) -> Cell:
    """Return the cell of a step: its value, or the reason why it has none."""
    if point.value is not None:
        return Cell(value_text(metric, point.value))
    return Cell(absent="" if point.absent is None else point.absent.value)
