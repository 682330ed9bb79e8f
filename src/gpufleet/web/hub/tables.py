"""Tables as bytes: CSV and Arrow."""

import csv
import importlib
import io
from collections.abc import Sequence
from typing import Any

from gpufleet.model.text import no_formula
from gpufleet.web.hub.columns import Column, text_of

ROWS_A_BATCH = 10_000
"""Rows of one record batch."""


def encode_csv(columns: Sequence[Column], rows: Sequence[Any]) -> bytes:
    """Return a header and a line a row (RFC 4180, UTF-8); a text that may be a formula has an apostrophe before it."""
    page = io.StringIO()
    writer = csv.writer(page)
    writer.writerow([no_formula(column.name) for column in columns])
    makers = [(column.get, column.type == "text") for column in columns]
    for row in rows:
        writer.writerow([no_formula(text_of(get(row))) if is_text else text_of(get(row)) for get, is_text in makers])
    return page.getvalue().encode("utf-8", "replace")


def encode_arrow(columns: Sequence[Column], rows: Sequence[Any]) -> bytes:
    """Return a stream of Arrow (IPC), in batches; without rows, the schema alone."""
    arrow = importlib.import_module("pyarrow")  # here: it takes 0.1 s to load, and most hubs are never asked for it
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
        for start in range(0, len(rows), ROWS_A_BATCH):
            some = rows[start : start + ROWS_A_BATCH]
            arrays = [
                arrow.array(_cells(column, some), type=kind, from_pandas=False)
                for column, kind in zip(columns, schema.types, strict=True)
            ]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _cells(column: Column, rows: Sequence[Any]) -> list[Any]:
    cells = [column.get(row) for row in rows]
    if column.type == "text":
        return [None if cell is None else text_of(cell).encode("utf-8", "replace").decode() for cell in cells]
    if column.type == "float64":
        return [None if cell is None else float(cell) for cell in cells]
    return cells
