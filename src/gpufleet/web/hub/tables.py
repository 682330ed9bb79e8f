"""Lists of records as flat tables, in CSV and Arrow.

Columns follow from the record type, so that all pages of a list have the same ones. Exception: readings have a column
per metric on the page. A column has one type; values without a scalar type (lists, maps with arbitrary keys) are JSON.
"""

import csv
import datetime as dt
import importlib
import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec.inspect import (
    BoolType,
    DateTimeType,
    DictType,
    EnumType,
    FloatType,
    IntType,
    StrType,
    StructType,
    Type,
    UnionType,
    type_info,
)

from gpufleet.model.catalogue import CATALOGUE, ValueType
from gpufleet.model.reading import Reading
from gpufleet.model.text import escape_formula

Get = Callable[[Any], Any]
"""Function from a record to its cell: a value of the column's type, or None."""


class TableColumn(msgspec.Struct, frozen=True):
    """Column of a table.

    Attributes:
        name: path of the field, separated by dots.
        type: `int64`, `uint64`, `float64`, `bool`, `text`, `instant`.
        get: returns the cell of a record.
    """

    name: str
    type: str
    get: Get


_PLAIN: dict[type[Type], str] = {
    BoolType: "bool",
    DateTimeType: "instant",
    EnumType: "text",
    FloatType: "float64",
    IntType: "int64",
    StrType: "text",
}

_METRIC = {ValueType.INT: "int64", ValueType.FLOAT: "float64", ValueType.ENUM: "text", ValueType.TEXT: "text"}


def columns_of(record: type, rows: Sequence[Any]) -> list[TableColumn]:
    """Return the columns of a record type; `rows` determine only the metrics."""
    return list(_columns(type_info(record), "", lambda one: one, rows))


def _columns(kind: Type, path: str, get: Get, rows: Sequence[Any]) -> Iterable[TableColumn]:
    kind = _without_none(kind)
    if isinstance(kind, StructType):
        for field in kind.fields:
            name = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from _columns(field.type, name, _field(get, field.name), rows)
    elif isinstance(kind, DictType) and isinstance(kind.value_type, StructType) and kind.value_type.cls is Reading:
        names = {name for row in rows for name in get(row) or ()}
        for name in (one for one in CATALOGUE if one in names):
            metric = CATALOGUE[name]
            unsigned = metric.type is ValueType.INT and metric.low is not None and metric.low >= 0
            yield TableColumn(
                f"{path}.{name}", "uint64" if unsigned else _METRIC[metric.type], _reading(get, name, "value")
            )
            yield TableColumn(f"{path}.{name}.absent", "text", _reading(get, name, "absent"))
    elif (
        isinstance(kind, DictType)
        and isinstance(kind.key_type, EnumType)
        and type(_without_none(kind.value_type)) in _PLAIN
    ):
        for key in kind.key_type.cls:
            yield TableColumn(f"{path}.{key.value}", _PLAIN[type(_without_none(kind.value_type))], _entry(get, key))
    elif type(kind) in _PLAIN:
        yield TableColumn(path, _PLAIN[type(kind)], get)
    else:
        yield TableColumn(path, "text", lambda row: _as_json(get(row)))


def _without_none(kind: Type) -> Type:
    """Return the type of a field without None; a union of integer and float is a float."""
    if not isinstance(kind, UnionType):
        return kind
    some = [one for one in kind.types if type(one) is not msgspec.inspect.NoneType]
    if len(some) == 1:
        return some[0]
    return FloatType() if {type(one) for one in some} == {IntType, FloatType} else kind


def _field(get: Get, name: str) -> Get:
    def field(row: Any) -> Any:
        found = get(row)
        return None if found is None else getattr(found, name)

    return field


def _reading(get: Get, name: str, what: str) -> Get:
    def reading(row: Any) -> Any:
        found: Reading | None = (get(row) or {}).get(name)
        return None if found is None else getattr(found, what)

    return reading


def _entry(get: Get, key: Any) -> Get:
    return lambda row: (get(row) or {}).get(key)


def _as_json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


_SQL_TYPES = (
    ("UInt", "uint64"),
    ("Int", "int64"),
    ("Float", "float64"),
    ("Bool", "bool"),
    ("DateTime", "instant"),
)


def sql_columns(names: Sequence[str], types: Sequence[str]) -> list[TableColumn]:
    """Return the columns of a SQL answer, from ClickHouse type names."""
    return [
        TableColumn(name, _sql_type(kind), _cell(place))
        for place, (name, kind) in enumerate(zip(names, types, strict=True))
    ]


def _sql_type(kind: str) -> str:
    plain = kind.removeprefix("LowCardinality(").removeprefix("Nullable(")
    if plain.startswith(("UInt128", "UInt256", "Int128", "Int256")):
        return "text"
    return next((ours for start, ours in _SQL_TYPES if plain.startswith(start)), "text")


def _cell(place: int) -> Get:
    def cell(row: Sequence[Any]) -> Any:
        value = row[place]
        if isinstance(value, list | tuple | dict):
            return _as_json(value)
        return value

    return cell


def text_of(value: Any) -> str:
    """Return a cell as text: instants as RFC 3339, None as empty text."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case dt.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case _:
            return str(value)


ROWS_PER_BATCH = 10_000
"""Rows per Arrow record batch."""


def encode_csv(columns: Sequence[TableColumn], rows: Sequence[Any]) -> bytes:
    """Encode a header and rows as CSV (RFC 4180, UTF-8). An apostrophe precedes text that may be a formula."""
    page = io.StringIO()
    writer = csv.writer(page)
    writer.writerow([escape_formula(column.name) for column in columns])
    makers = [(column.get, column.type == "text") for column in columns]
    for row in rows:
        writer.writerow(
            [escape_formula(text_of(get(row))) if is_text else text_of(get(row)) for get, is_text in makers]
        )
    return page.getvalue().encode("utf-8", "replace")


def encode_arrow(columns: Sequence[TableColumn], rows: Sequence[Any]) -> bytes:
    """Encode an Arrow IPC stream of record batches; without rows it contains only the schema."""
    arrow = importlib.import_module("pyarrow")  # imported on use: it takes 0.1 s, and most hubs never need it
    kinds = {
        "int64": arrow.int64(),
        "uint64": arrow.uint64(),
        "float64": arrow.float64(),
        "bool": arrow.bool_(),
        "text": arrow.string(),
        "instant": arrow.timestamp("us", tz="UTC"),
    }
    schema = arrow.schema([(column.name, kinds[column.type]) for column in columns])
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, schema) as writer:
        for start in range(0, len(rows), ROWS_PER_BATCH):
            some = rows[start : start + ROWS_PER_BATCH]
            arrays = [
                arrow.array(_cells(column, some), type=kind, from_pandas=False)
                for column, kind in zip(columns, schema.types, strict=True)
            ]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _cells(column: TableColumn, rows: Sequence[Any]) -> list[Any]:
    cells = [column.get(row) for row in rows]
    if column.type == "text":
        return [None if cell is None else text_of(cell).encode("utf-8", "replace").decode() for cell in cells]
    if column.type == "float64":
        return [None if cell is None else float(cell) for cell in cells]
    return cells
