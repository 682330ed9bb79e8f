"""Asking a person's statement, on a handle of its own that may only read, within bounds."""

import datetime as dt
import importlib
import re
from typing import Any

from gpufleet.model.errors import SqlError
from gpufleet.model.sql import Selected, SqlLimits
from gpufleet.stores.clickhouse.client import ZONE, Handle
from gpufleet.stores.clickhouse.sql.checking import check_text, check_tree, check_written
from gpufleet.stores.clickhouse.sql.views import VIEWS

_NAMES = frozenset(view.name for view in VIEWS)

_VERSION = re.compile(r"\s*\((?:version [\d.]+[^)]*|official build)\)")


def settings_of(limits: SqlLimits) -> dict[str, Any]:
    """Return the settings of the handle. `readonly` comes last: nothing is changed after it."""
    return {
        "session_timezone": ZONE,
        "max_execution_time": limits.seconds,
        "timeout_overflow_mode": "throw",
        "max_memory_usage": limits.memory_bytes,
        "max_result_rows": limits.rows,
        "max_result_bytes": limits.result_bytes,
        "result_overflow_mode": "throw",
        "max_threads": limits.threads,
        "max_query_size": 1 << 16,
        "max_parser_depth": 200,
        "max_ast_depth": 200,
        "max_ast_elements": 5_000,
        "max_expanded_ast_elements": 50_000,
        "max_subquery_depth": 20,
        # What does not fit into memory fails: it does not fill the disk that the hub's log is on.
        "max_bytes_before_external_group_by": 0,
        "max_bytes_ratio_before_external_group_by": 0,
        "max_bytes_before_external_sort": 0,
        "max_bytes_ratio_before_external_sort": 0,
        "allow_ddl": 0,
        "allow_introspection_functions": 0,
        "readonly": 1,
    }


def select(handle: Handle, text: str) -> Selected:
    """Check a statement, and ask it.

    Raises:
        SqlError: if it is refused, wrong, or came to more than it may.
    """
    check_text(text)
    errors = importlib.import_module("clickhouse_connect.driver.exceptions")
    try:
        (row,) = handle.query("SELECT formatQuerySingleLine({q:String})", parameters={"q": text}).result_rows
        written: str = row[0]
        check_written(written)
        # In parentheses there is no INTO OUTFILE, no FORMAT, and no second statement.
        tree = handle.query(f"EXPLAIN AST SELECT * FROM ({written})").result_rows  # noqa: S608 - as checked
        tables = handle.query("SELECT name FROM system.tables WHERE database = currentDatabase()").result_rows
        check_tree([line for (line,) in tree], _NAMES, [name for (name,) in tables])
        found = handle.query(written)
        columns = list(zip(found.column_names, (kind.name for kind in found.column_types), strict=True))
        if not columns:  # the embedded engine says nothing of columns without rows
            described = handle.query(f"DESCRIBE ({written})").result_rows
            columns = [(row[0], row[1]) for row in described]
    except errors.DatabaseError as error:
        raise SqlError(_words(error)) from error
    return Selected(
        columns=tuple(name for name, _ in columns),
        types=tuple(kind for _, kind in columns),
        rows=[tuple(map(_cell, row)) for row in found.result_rows],
    )


def _cell(value: Any) -> Any:
    """Give an instant the zone that all of ours are in, and what JSON has no kind for a text."""
    match value:
        case dt.datetime():
            return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value
        case None | str() | int() | float() | dt.date():
            return value
        case list() | tuple():
            return [_cell(one) for one in value]
        case dict():
            return {key if isinstance(key, str | int) else str(_cell(key)): _cell(one) for key, one in value.items()}
        case bytes():  # a FixedString
            return value.decode("utf-8", "replace")
        case _:
            return str(value)


def _words(error: Exception) -> str:
    text = _VERSION.sub("", " ".join(str(error).split()))
    return text.split("DB::Exception: ")[-1].strip()[:500]
