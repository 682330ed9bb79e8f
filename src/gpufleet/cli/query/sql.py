"""`gpufleet query sql`: runs a SQL statement over a hub's store."""

import enum
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from gpufleet.cli.fetch import Access, get, send
from gpufleet.cli.options import HUB_URL, CaOption, CommandError, HubUrl, TokenFileOption, Wide
from gpufleet.cli.output import print_tables, write_json
from gpufleet.cli.query.cells import Parts
from gpufleet.cli.query.request import SECONDS
from gpufleet.cli.table import Layout, TextColumn, TextTable
from gpufleet.model.api.sql import SqlAnswer, SqlRequest, SqlViewRecord


class SqlFormat(enum.StrEnum):
    """Output format."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


_MEDIA = {
    SqlFormat.TABLE: "application/json",
    SqlFormat.JSON: "application/json",
    SqlFormat.CSV: "text/csv",
    SqlFormat.ARROW: "application/vnd.apache.arrow.stream",
}


def sql(
    statement: Annotated[
        str | None, typer.Argument(metavar="[SELECT]", help="SELECT statement; `-` reads it from standard input.")
    ] = None,
    hub: HubUrl = HUB_URL,
    written: Annotated[SqlFormat, typer.Option("--format", help="Output format.")] = SqlFormat.TABLE,
    wide: Wide = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Run a SELECT statement over a hub's store. Without a statement, list the views. Needs an admin token."""
    access = Access(token_file, ca)
    try:
        if statement is None:
            views = msgspec.json.decode(get(hub, "/v1/query", access), type=tuple[SqlViewRecord, ...])
            print_tables(sql_view_tables(views), Layout(wide=wide))
            return
        text = sys.stdin.read() if statement == "-" else statement
        body = send(
            hub,
            "/v1/query",
            access,
            method="POST",
            body=msgspec.json.encode(SqlRequest(sql=text)),
            timeout_seconds=SECONDS,
            media_type=_MEDIA[written],
        )
        if written is SqlFormat.TABLE:
            print_tables(sql_tables(msgspec.json.decode(body, type=SqlAnswer)), Layout(wide=wide))
            return
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} does not respond like a gpufleet hub: {error}") from error
    if written is SqlFormat.JSON:
        write_json(body)
    else:
        sys.stdout.buffer.write(body)


def sql_tables(found: SqlAnswer) -> Parts:
    """Return the rows of a statement, and their number."""
    rows = [["" if cell is None else str(cell) for cell in row] for row in found.rows]
    columns = [TextColumn(name) for name in found.columns]
    return [
        TextTable(columns, rows, "rows"),
        f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} in {found.seconds:.2f} s",
    ]


def sql_view_tables(found: Sequence[SqlViewRecord]) -> Parts:
    """Return a table with a row per SQL view."""
    rows = [(one.name, one.help, ", ".join(column.name for column in one.columns[:12])) for one in found]
    return [
        TextTable(
            (TextColumn("view"), TextColumn("row", wrap=True), TextColumn("first-columns", wrap=True)), rows, "views"
        )
    ]
