"""`gpufleet query sql`: a statement over a hub's store."""

import enum
import sys
from typing import Annotated

import msgspec
import typer

from gpufleet.cli.fetch import Access, get, send
from gpufleet.cli.options import HUB_URL, CaOption, CommandError, HubUrl, TokenFileOption
from gpufleet.cli.output import print_tables
from gpufleet.model.api.sql import SqlAnswer, SqlQuestion, SqlViewRecord

SECONDS = 60.0
"""A statement may wait for others; each ends within a quarter of it."""


class Format(enum.StrEnum):
    """How the answer is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"


_MEDIA = {
    Format.TABLE: "application/json",
    Format.JSON: "application/json",
    Format.CSV: "text/csv",
    Format.ARROW: "application/vnd.apache.arrow.stream",
}


def sql(
    statement: Annotated[
        str | None, typer.Argument(metavar="[SELECT]", help="One SELECT; `-` reads it from standard input.")
    ] = None,
    hub: HubUrl = HUB_URL,
    written: Annotated[Format, typer.Option("--format", help="How the answer is written.")] = Format.TABLE,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
) -> None:
    """Answer a SELECT over a hub's store, for administrators; without one, the views that there are."""
    access = Access(token_file, ca)
    try:
        if statement is None:
            print_tables(
                "sql_views", msgspec.json.decode(get(hub, "/v1/query", access), type=tuple[SqlViewRecord, ...])
            )
            return
        text = sys.stdin.read() if statement == "-" else statement
        body = send(
            hub,
            "/v1/query",
            access,
            method="POST",
            body=msgspec.json.encode(SqlQuestion(sql=text)),
            timeout_seconds=SECONDS,
            media_type=_MEDIA[written],
        )
        if written is Format.TABLE:
            print_tables("sql", msgspec.json.decode(body, type=SqlAnswer))
            return
    except msgspec.DecodeError as error:
        raise CommandError(f"{hub} answers something else than a gpufleet hub does: {error}") from error
    sys.stdout.buffer.write(body if written is not Format.JSON else body + b"\n")
