"""Newest samples of a store as records: rows of a machine, pages of a cluster, and groups of values. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gpufleet.model.catalogue import Metric, ValueType
from gpufleet.model.reading import Value
from gpufleet.stores.clickhouse.schema.columns import DictionaryColumn, NumericArray

ROW_COLUMNS = (
    *("view", "reader", "lane", "measured_at", "received_at", "provenance"),
    *("driver_session", "absence_set", "info_set", "has_totals"),
)
"""Columns of a `NewestRow` after its machine."""


class ValueGroup(msgspec.Struct, frozen=True):
    """Values of consecutive rows with the same metrics.

    Attributes:
        metrics: catalogue numbers.
        columns: values of each metric by row, states as numbers: an array, or a list with None for no value.
        count: number of rows.
    """

    metrics: tuple[int, ...]
    columns: Sequence[NumericArray | list[Any]]
    count: int


class NewestRow(msgspec.Struct, frozen=True):
    """The newest sample of a subject, as stored: sets by id, without values with dimensions."""

    machine: str
    view: str
    reader: str
    lane: str
    measured_at: int
    received_at: int
    provenance: str
    driver_session: int
    absence_set: int
    info_set: int
    has_totals: bool
    values: dict[str, Value]

    @property
    def place(self) -> tuple[str, str, str, str, int]:
        """Machine, view, reader, lane and time of measurement."""
        return self.machine, self.view, self.reader, self.lane, self.measured_at


class SharedGpu(NamedTuple):
    """Newest report of a GPU by one of the machines that reported it."""

    cluster: str
    machine: str
    view: str
    received_at: int


class NewestPage(msgspec.Struct, frozen=True):
    """Newest samples of consecutive machines in columns, one row per subject.

    Attributes:
        machine, view, reader, lane: the subject; the texts of a column are distinct.
        imported: whether the sample is imported.
        measured_at, received_at: nanoseconds since 1970.
        driver_session, absence_set, info_set: as stored.
        values: metric to the number of each row, NaN for none; metrics without any number are left out.
    """

    machine: DictionaryColumn
    view: DictionaryColumn
    reader: DictionaryColumn
    lane: DictionaryColumn
    imported: NumericArray
    measured_at: NumericArray
    received_at: NumericArray
    driver_session: NumericArray
    absence_set: NumericArray
    info_set: NumericArray
    values: dict[str, NumericArray]

    def __len__(self) -> int:
        return len(self.measured_at)

    def select(self, rows: NumericArray) -> "NewestPage":
        """Return some rows."""
        columns: dict[str, Any] = {}
        for name in self.__struct_fields__:
            column = getattr(self, name)
            if isinstance(column, DictionaryColumn):
                columns[name] = DictionaryColumn(column.texts, column.rows[rows])
            elif isinstance(column, dict):
                some = {metric: cells[rows] for metric, cells in column.items()}
                columns[name] = {metric: cells for metric, cells in some.items() if not np.isnan(cells).all()}
            else:
                columns[name] = column[rows]
        return NewestPage(**columns)


def value_of(metric: Metric, stored: float) -> Value:
    """Return a stored value as in readings: a state by name."""
    return metric.states[int(stored)] if metric.type is ValueType.ENUM else stored
