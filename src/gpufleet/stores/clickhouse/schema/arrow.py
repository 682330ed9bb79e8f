"""Conversion of columns to an Arrow table, the fastest form for inserts."""

import importlib
import re
from itertools import accumulate
from typing import Any

import numpy as np

from gpufleet.model.errors import UnstorableError
from gpufleet.stores.clickhouse.schema.columns import (
    ChunkedNumbers,
    ColumnData,
    Columns,
    DictionaryColumn,
    IndexedColumn,
    ListColumn,
    NumericArray,
    NumericLists,
)
from gpufleet.stores.clickhouse.schema.tables import TableDefinition

_WRAPPED = re.compile(r"(?:Nullable|LowCardinality)\((.*)\)$")
_ARRAY = re.compile(r"Array\((.*)\)$")
_SIMPLE = {
    "Bool": "bool",
    "String": "string",
    "Float64": "float64",
    "UInt8": "uint8",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
    "Int64": "int64",
}


def arrow_table(table: TableDefinition, columns: Columns, *, reuse: Any = None) -> Any:
    """Return the columns as an Arrow table with the types of `table`.

    Columns that are in `reuse`, an Arrow table of the same rows, are taken from it.

    Raises:
        UnstorableError: if a cell does not fit its column; the message names the column.
    """
    pa = _arrow()

    types = {column.name: column.type for column in table.columns}
    arrays = {}
    for name, cells in columns.items():
        if reuse is not None and name in reuse.column_names:
            arrays[name] = reuse.column(name)
            continue
        try:
            arrays[name] = _array(types[name], cells)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise UnstorableError(f"{table.name}.{name}: a value does not fit {types[name]}: {error}") from error
    return pa.table(arrays)


def _arrow() -> Any:
    """Return pyarrow, which has no types and is installed with the extra `hub`."""
    return importlib.import_module("pyarrow")


def _array(type_: str, cells: ColumnData) -> Any:
    pa = _arrow()

    match cells:
        case ChunkedNumbers():
            return _numbers(_type(type_), cells)
        case NumericLists():
            offsets = pa.array(accumulate(cells.counts, initial=0), pa.int32())
            return pa.ListArray.from_arrays(offsets, _numbers(_type(_element(type_)), cells.flat))
        case DictionaryColumn():
            return pa.DictionaryArray.from_arrays(pa.array(cells.rows, pa.int32()), pa.array(cells.texts, pa.string()))
        case IndexedColumn():
            return pa.array(cells.texts, pa.string()).take(pa.array(cells.rows))
        case ListColumn():
            element = _type(_element(type_))
            offsets = pa.array(accumulate(cells.counts, initial=0), pa.int32())
            return pa.ListArray.from_arrays(offsets, pa.array(cells.flat, element))
        case np.ndarray():
            return _contiguous(_type(type_), cells)
        case list():
            return _plain(_type(type_), cells)


def _contiguous(type_: Any, cells: NumericArray) -> Any:
    pa = _arrow()

    return pa.array(cells, pa.int64()).view(type_) if pa.types.is_timestamp(type_) else pa.array(cells, type_)


def _numbers(type_: Any, cells: ChunkedNumbers) -> Any:
    pa = _arrow()

    chunks = [_chunk(type_, one) for one in cells.chunks]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks or [pa.array([], type_)])


def _chunk(type_: Any, cells: NumericArray | list[Any] | int) -> Any:
    pa = _arrow()

    match cells:
        case np.ndarray():
            return pa.array(cells).cast(type_)
        case int():
            return pa.nulls(cells, type_)
        case list():
            return _plain(type_, cells)


def _plain(type_: Any, cells: list[Any]) -> Any:
    pa = _arrow()

    if pa.types.is_timestamp(type_):
        return pa.array(cells, pa.int64()).view(type_)
    try:
        return pa.array(cells, type_)
    except pa.ArrowInvalid:
        if type_ != pa.float64():
            raise
        # Arrow rejects integers beyond 2^53 here; a float metric takes the nearest float
        return pa.array([None if cell is None else float(cell) for cell in cells], type_)


def _element(type_: str) -> str:
    match = _ARRAY.match(type_)
    if match is None:
        raise ValueError(f"{type_} is not an array")
    return match[1]


def _type(type_: str) -> Any:
    pa = _arrow()

    if type_.startswith("DateTime64(9"):
        return pa.timestamp("ns", "UTC")
    if type_.startswith("DateTime('"):
        return pa.uint32()
    if type_.startswith("Enum8("):
        return pa.int8()
    if match := _WRAPPED.match(type_):
        return _type(match[1])
    if match := _ARRAY.match(type_):
        return pa.list_(_type(match[1]))
    return pa.type_for_alias(_SIMPLE[type_])
