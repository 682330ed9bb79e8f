"""`gpufleet query usage`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.options import HUB_URL, TIME, CaOption, HubUrl, Json, TokenFileOption, Watch, Wide
from gpufleet.cli.query.cells import Parts, count_cell
from gpufleet.cli.query.request import Parameters, make_layout, query_and_print
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.cli.times import time_parameter
from gpufleet.model.api.usage import HOLDER_DIMENSIONS, UsageAnswer, UsageRow

SECONDS = 600.0
"""Timeout of a query: a month of many pods takes minutes."""


def usage(
    hub: HubUrl = HUB_URL,
    group_by: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="allocation, tenant, team; or namespace, owner, pod, job, user, account, queue; or cluster, model; "
            "comma-separated.",
        ),
    ] = "allocation",
    cluster: Annotated[str | None, typer.Option(metavar="ID", help="Only GPUs of this cluster.")] = None,
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
            "cluster": cluster,
            "start": time_parameter("--start", start),
            "end": time_parameter("--end", end),
        }

    layout, access = make_layout(wide, as_json=json), Access(token_file, ca)
    query_and_print(
        hub, "/v1/usage", query, UsageAnswer, usage_tables, access, layout, json, watch, timeout_seconds=SECONDS
    )


def usage_tables(found: UsageAnswer) -> Parts:
    """Return a table with a row per group and the total, and the unresolved allocations.

    In usage by holder, the column `holder` has the reason of a row without a known holder.
    """
    by_holder = not HOLDER_DIMENSIONS.isdisjoint(found.group_by)
    columns = (
        *(TextColumn(one.value) for one in found.group_by),
        *([TextColumn("holder")] if by_holder else []),
        TextColumn("gpus", right=True),
        TextColumn("held", right=True),
        TextColumn("used", rank=1, right=True),
        TextColumn("idle", rank=1, right=True),
        TextColumn("unknown", rank=1, right=True),
        TextColumn("shared", wide=True, right=True),
        TextColumn("replica-hours", wide=True, right=True),
        TextColumn("energy", rank=3, right=True),
        TextColumn("energy-hours", rank=3, right=True),
        TextColumn("energy-source", wide=True),
        TextColumn("cost", rank=2, right=True),
    )
    rows: list[Sequence[Cell | str]] = [
        (
            *(one.group[name] or "" for name in found.group_by),
            *([(one.holder_absent or "known")] if by_holder else []),
            *_usage_cells(one, found.currency),
        )
        for one in found.rows
    ]
    rest = [""] * max(0, len(found.group_by) + by_holder - 1)
    total = ["total", *rest] if found.group_by else []
    rows.append((*total, *_usage_cells(found.total, found.currency)))
    notes = [f"{found.start:%Y-%m-%d %H:%M:%S}Z to {found.end:%Y-%m-%d %H:%M:%S}Z, in GPU-hours", found.summary]
    lines: Parts = [TextTable(columns, rows, "usage")]
    if found.unresolved:
        unresolved = [
            (one.allocation, _missing_cell(one.devices), one.reason.value, one.detail) for one in found.unresolved
        ]
        names = (
            TextColumn("allocation"),
            TextColumn("gpus-missing", right=True),
            TextColumn("reason"),
            TextColumn("detail", wrap=True),
        )
        lines.append(TextTable(names, unresolved, "allocations"))
    return [*lines, *notes]


def _missing_cell(devices: float | None) -> Cell:
    return Cell() if devices is None else Cell(f"{devices:g}", key=devices)


def _usage_cells(row: UsageRow, currency: str | None) -> tuple[Cell, ...]:
    hours = (row.held_gpu_hours, row.used_gpu_hours, row.idle_gpu_hours, row.unknown_gpu_hours)
    return (
        count_cell(row.gpus),
        *(Cell(f"{one:.3f}", key=one) for one in (*hours, row.shared_gpu_hours, row.replica_hours)),
        Cell() if row.energy_kwh is None else Cell(f"{row.energy_kwh:.3f} kWh", key=row.energy_kwh),
        Cell() if row.energy_kwh is None else Cell(f"{row.energy_gpu_hours:.3f}", key=row.energy_gpu_hours),
        Cell() if row.energy_kwh is None else Cell(str(row.energy_source)),
        Cell(absent=str(row.cost_absent or ""))
        if row.cost is None
        else Cell(f"{row.cost:.2f} {currency or ''}".strip(), key=row.cost),
    )
