"""Rows of Arrow tables as Python values."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Return the rows as dictionaries; instants are integers, because `datetime` has no nanoseconds."""
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(number, field.name, table.column(number).cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
