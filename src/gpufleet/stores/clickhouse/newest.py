"""Values of samples to the columns that `latest` has beside those of `samples`. Pure, and a shape at a time."""

from array import array
from collections.abc import Sequence
from itertools import chain, compress
from typing import Any

import numpy as np

from gpufleet.model.aggregate import AGGREGATED
from gpufleet.model.catalogue import Metric, ValueType
from gpufleet.stores.clickhouse.columns import Arrays, Columns, Numeric, by_rows

Stored = tuple[Metric, Numeric | list[Any]]
"""A metric, and what each row has of it, as it is stored."""


class ValueRows:
    """Gathers each row's numbers, whatever metric they are of, with the metrics' catalogue numbers."""

    def __init__(self) -> None:
        self._arrays = {name: Arrays() for name in ("int_ids", "int_values", "float_ids", "float_values")}
        self._tells: list[bool] = []

    def add(self, told: Sequence[Stored], rows: int) -> None:
        """Add so many rows that were told of the same metrics."""
        self._add("int", "q", [one for one in told if one[0].type is not ValueType.FLOAT], rows)
        self._add("float", "d", [one for one in told if one[0].type is ValueType.FLOAT], rows)
        self._tells.extend(_tells([cells for metric, cells in told if metric.name in AGGREGATED], rows))

    @property
    def columns(self) -> Columns:
        """Everything gathered, as columns."""
        return {"tells": list(self._tells), **self._arrays}

    def _add(self, kind: str, code: str, told: Sequence[Stored], rows: int) -> None:
        ids, values = self._arrays[f"{kind}_ids"], self._arrays[f"{kind}_values"]
        numbers = [metric.id for metric, _ in told]
        whole = [_whole(code, cells) for _, cells in told]
        packed = [one for one in whole if one is not None]
        if len(packed) == len(told):
            counts = [len(told)] * rows
            ids.flat.add(np.tile(np.array(numbers, np.int64), rows))
            values.flat.add(by_rows(packed) if packed else np.empty(0))
        else:
            cells = [_cells(one) for _, one in told]
            flat = list(chain.from_iterable(zip(*cells, strict=True)))
            present = [cell is not None for cell in flat]
            counts = list(map(sum, zip(*[iter(present)] * len(told), strict=True)))
            ids.flat.add(list(compress(numbers * rows, present)))
            values.flat.add(list(compress(flat, present)))
        ids.counts.extend(counts)
        values.counts.extend(counts)


def _whole(code: str, cells: Numeric | list[Any]) -> Numeric | None:
    """Return a column in one piece, or None if it has gaps or numbers that do not fit."""
    if isinstance(cells, np.ndarray):
        return cells if code == "q" else cells.astype(np.float64, copy=False)
    try:
        return np.asarray(array(code, cells))
    except (TypeError, OverflowError):
        return None


def _cells(cells: Numeric | list[Any]) -> list[Any]:
    return cells if isinstance(cells, list) else cells.tolist()


def _tells(columns: Sequence[Numeric | list[Any]], rows: int) -> list[bool]:
    """Return whether each row has a number in one of the columns."""
    lists = [cells for cells in columns if isinstance(cells, list)]
    if len(lists) < len(columns):
        return [True] * rows
    return [any(cell is not None for cell in row) for row in zip(*lists, strict=True)] or [False] * rows
