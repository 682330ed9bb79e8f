"""`gpufleet audit`: shows the audit log of a hub."""

from collections.abc import Sequence
from typing import Annotated

import typer

from gpufleet.cli.fetch import Access
from gpufleet.cli.options import HUB_URL, CaOption, Columns, HubUrl, Json, Sort, TokenFileOption, Wide
from gpufleet.cli.query.cells import Parts, count_cell, time_cell
from gpufleet.cli.query.request import make_layout, query_and_print
from gpufleet.cli.table import TextColumn, TextTable
from gpufleet.model.access import AuditRecord


def audit(
    hub: HubUrl = HUB_URL,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of entries.")] = 100,
    before: Annotated[int | None, typer.Option(metavar="NUMBER", help="Only entries with lower numbers.")] = None,
    wide: Wide = False,
    columns: Columns = None,
    sort: Sort = None,
    json: Json = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Show the audit log, newest first: writes, and changes of tokens. Needs an admin token."""
    query = {"limit": str(limit), "before": None if before is None else str(before)}
    layout, access = make_layout(wide, columns, sort, as_json=json), Access(token_file, ca)
    query_and_print(hub, "/v1/audit", query, tuple[AuditRecord, ...], audit_tables, access, layout, json)


def audit_tables(found: Sequence[AuditRecord]) -> Parts:
    """Return a table with a row per audit entry."""
    rows = [
        (
            count_cell(one.number),
            time_cell(one.entry.at),
            one.entry.actor,
            f"{one.entry.method} {one.entry.path}",
            str(one.entry.status or ""),
            one.entry.detail,
        )
        for one in found
    ]
    columns = (
        TextColumn("number", right=True),
        TextColumn("at"),
        TextColumn("actor", rank=1),
        TextColumn("request", wrap=True),
        TextColumn("status", rank=2, right=True),
        TextColumn("detail", rank=1, wrap=True),
    )
    older = [f"Older entries: --before {found[-1].number}"] if found and found[-1].number > 1 else []
    return [TextTable(columns, rows, "entries"), *older]
