"""`gpufleet query processes`."""

from typing import Annotated
from urllib.parse import quote

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.lookup import find_view
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
from gpufleet.cli.query.cells import Parts, age_cell, count_cell, device_cell
from gpufleet.cli.query.request import DeviceFilter, Parameters, make_layout, query_and_print
from gpufleet.cli.table import Cell, TextColumn, TextTable
from gpufleet.cli.times import time_parameter
from gpufleet.exporters.display import bytes_text, percent_text
from gpufleet.model.api.answer import ProcessesAnswer
from gpufleet.model.process import PROCESS_READINGS
from gpufleet.model.reading import Reading


def processes(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="Id or name of the machine.")],
    hub: HubUrl = HUB_URL,
    view: DeviceFilter = None,
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
    key = None if view is None else find_view(hub, view, access, machine)[0]
    path = f"/v1/machines/{quote(machine, safe='')}/processes"

    def query() -> Parameters:
        return {"view": key, "at": time_parameter("--at", at)}

    query_and_print(hub, path, query, ProcessesAnswer, processes_tables, access, layout, json, watch)


def processes_tables(found: ProcessesAnswer) -> Parts:
    """Return a table with a row per process, or per device without processes."""
    rows: list[tuple[Cell | str, ...]] = []
    for table in found.devices:
        age = age_cell(table.age_seconds)
        if table.stale:
            age = Cell(f"late, {age.text}", key=age.key)
        device = device_cell(table.device, found.node)
        if not table.processes:
            rows.append((device, "none", *[""] * (len(PROCESS_READINGS) + 2), age))
        for one in table.processes:
            cells = [_process_reading(one.readings.get(name), name) for name in PROCESS_READINGS]
            rows.append((device, count_cell(one.pid), one.name, ",".join(one.kinds), *cells, age))
    cut = [
        f"{one.device}: {len(one.processes)} of {one.total} processes, by memory"
        for one in found.devices
        if one.total > len(one.processes)
    ]
    columns = (
        TextColumn("device"),
        TextColumn("process", right=True),
        TextColumn("name", rank=1, cut=True),
        TextColumn("kinds", rank=3),
        TextColumn("memory", rank=1, right=True),
        TextColumn("sms", rank=2, right=True),
        TextColumn("memory-busy", rank=6, right=True),
        TextColumn("encoder", rank=5, right=True),
        TextColumn("decoder", rank=5, right=True),
        TextColumn("age", rank=4, right=True),
    )
    return [TextTable(columns, rows, f"process tables of {found.node} within the last hour"), *cut]


def _process_reading(reading: Reading | None, name: str) -> Cell:
    if reading is None or reading.value is None or isinstance(reading.value, str):
        return Cell(absent=reading.absent.value if reading and reading.absent else "not_reported")
    formatted = bytes_text(reading.value) if PROCESS_READINGS[name].unit == "bytes" else percent_text(reading.value)
    return Cell(formatted, key=reading.value)
