"""What people ask the store in SQL, and what it answers."""

from typing import Any

import msgspec


class SqlColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a view: its name, and what it says."""

    name: str
    help: str


class SqlViewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What may be read: a view, what one row of it is, and its columns in order."""

    name: str
    help: str
    columns: tuple[SqlColumn, ...]


class Selected(msgspec.Struct, frozen=True, kw_only=True):
    """What a statement came to.

    Attributes:
        columns: names, in order.
        types: of each, as ClickHouse calls them.
        rows: cells in the order of the columns; instants with a time zone, to the microsecond.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class SqlLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one statement may take.

    Attributes:
        seconds: until it ends.
        memory_bytes: of the engine, while it runs.
        rows, result_bytes: of its answer.
        threads: that work on it.
    """

    seconds: float = 15.0
    memory_bytes: int = 1_000_000_000
    rows: int = 100_000
    result_bytes: int = 16 << 20
    threads: int = 2


class SqlQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/query`: one SELECT over the views."""

    sql: str


class SqlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `POST /v1/query`: all of it; a statement that comes to more than it may is refused.

    Attributes:
        columns: names, in order.
        types: of each, as ClickHouse calls them.
        rows: cells in the order of the columns.
        seconds: how long it took.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    seconds: float
