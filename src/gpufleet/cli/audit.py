"""`gpufleet audit`: shows the audit log of a hub."""

from typing import Annotated

import typer

from gpufleet.cli import query_tables
from gpufleet.cli.fetch import Access
from gpufleet.cli.options import HUB_URL, CaOption, Columns, HubUrl, Json, Sort, TokenFileOption, Wide
from gpufleet.cli.query import make_layout, query_and_print
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
    query_and_print(hub, "/v1/audit", query, tuple[AuditRecord, ...], query_tables.audit, access, layout, json)
