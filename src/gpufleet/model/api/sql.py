"""SQL over the store: requests, answers and limits."""

from typing import Any

import msgspec


class SqlColumn(msgspec.Struct, frozen=True, kw_only=True):
    """Column of a view."""

    name: str
    help: str


class SqlViewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """SQL view: its name, the meaning of a row, and its columns in order."""

    name: str
    help: str
    columns: tuple[SqlColumn, ...]


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a statement.

    Attributes:
        columns: names, in order.
        types: ClickHouse type of each column.
        rows: cells in the order of the columns; instants have a time zone and microseconds.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class SqlLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of a statement.

    Attributes:
        seconds: execution time.
        memory_bytes: memory of the engine during execution.
        rows, result_bytes: size of the answer.
        threads: engine threads.
    """

    seconds: float = 15.0
    memory_bytes: int = 1_000_000_000
    rows: int = 100_000
    result_bytes: int = 16 << 20
    threads: int = 2


class SqlRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/query`: a single SELECT over the views."""

    sql: str


class SqlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /v1/query`. It is complete: a statement that exceeds a limit is rejected.

    Attributes:
        columns: names, in order.
        types: ClickHouse type of each column.
        rows: cells in the order of the columns.
        seconds: execution time.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    seconds: float
