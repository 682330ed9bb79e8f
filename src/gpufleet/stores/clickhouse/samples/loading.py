"""Load of the newest samples of a store into memory, page by page."""

from collections.abc import Iterator
from typing import Any, Self

import msgspec
import numpy as np

from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.newest_rows import ValueGroup
from gpufleet.stores.clickhouse.samples.pages import (
    PAGE_ROWS,
    MachineRange,
    fetch_pages,
    lists_of,
    numbers_of,
    texts_of,
)
from gpufleet.stores.clickhouse.schema.columns import (
    NO_NUMBER,
    Columns,
    DictionaryColumn,
    IndexedColumn,
    NumericArray,
)

_ROWS = f"""
SELECT machine, view, reader, lane, provenance, toUnixTimestamp64Nano(known_at) AS known_ns,
    toUnixTimestamp64Nano(measured_at) AS measured_ns, toUnixTimestamp64Nano(received_at) AS received_ns,
    driver_session, absence_set, info_set, has_totals, int_ids, int_values, float_ids, float_values
FROM latest FINAL WHERE {MachineRange.CONDITION}
"""  # noqa: S608 - names are constants; values are bound as parameters

_NUMBERS = {
    "known_at": "known_ns",
    "measured_at": "measured_ns",
    "received_at": "received_ns",
    **{name: name for name in ("driver_session", "absence_set", "info_set", "has_totals")},
}
"""Columns with numbers, and their names in the result."""

LoadedRows = tuple[Columns, list[ValueGroup]]
"""Rows of `latest` as for `NewestSamples.add`."""


def fetch_newest_pages(handle: Handle, page_rows: int = PAGE_ROWS) -> Iterator[LoadedRows]:
    """Yield all rows of `latest`, page by page."""
    for cluster, rows in fetch_pages(handle, _ROWS, page_rows):
        yield loaded_rows(cluster, rows)


def loaded_rows(cluster: str, rows: Any) -> LoadedRows:
    """Return an Arrow table of rows in the order of their metrics: rows with equal metrics are consecutive."""
    ints = _Lists.of(rows, "int_ids", "int_values")
    floats = _Lists.of(rows, "float_ids", "float_values")
    order: list[NumericArray] = []
    groups: list[ValueGroup] = []
    for members in _alike(ints, floats):
        metrics = (*ints.ids_of(members[0]), *floats.ids_of(members[0]))
        order.append(members)
        groups.append(ValueGroup(metrics, [*ints.columns(members), *floats.columns(members)], len(members)))
    return _head(cluster, rows, np.concatenate(order)), groups


def with_subjects(rows: LoadedRows, numbers: NumericArray) -> tuple[NumericArray, LoadedRows]:
    """Return the rows that have a subject, with their numbers. After a restore of single tables, rows may have none."""
    has_subject = numbers != NO_NUMBER
    if has_subject.all():
        return numbers, rows
    head, groups = rows
    kept: Columns = {}
    for name, column in head.items():
        match column:
            case DictionaryColumn(texts, places):
                kept[name] = DictionaryColumn(texts, places[has_subject])
            case IndexedColumn(texts, places):
                kept[name] = IndexedColumn(texts, places[has_subject])
            case _:
                kept[name] = np.asarray(column)[has_subject]
    some, first = [], 0
    for group in groups:
        mine = has_subject[first : first + group.count]
        columns = [np.asarray(cells)[mine] for cells in group.columns]
        some.append(ValueGroup(group.metrics, columns, int(mine.sum())))
        first += group.count
    return numbers[has_subject], (kept, some)


class _Lists(msgspec.Struct, frozen=True):
    """Lists of metrics and values: length and first position of each row's list, and the elements of all lists."""

    counts: NumericArray
    firsts: NumericArray
    ids: NumericArray
    cells: NumericArray

    @classmethod
    def of(cls, rows: Any, ids: str, cells: str) -> Self:
        """Return two columns of lists of equal lengths."""
        counts, elements = lists_of(rows, ids)
        return cls(counts, np.cumsum(counts) - counts, elements, lists_of(rows, cells)[1])

    def ids_of(self, row: int) -> tuple[int, ...]:
        """Return the metrics of a row."""
        first = self.firsts[row]
        return tuple(self.ids[first : first + self.counts[row]].tolist())

    def columns(self, rows: NumericArray) -> list[NumericArray]:
        """Return the values of rows with equal metrics by metric."""
        return list(np.ascontiguousarray(self.cells[self._places(rows)].T))

    def hashes(self) -> NumericArray:
        """Return a hash of each row's metrics. Senders can choose metrics with equal hashes."""
        position = np.arange(len(self.ids)) - np.repeat(self.firsts, self.counts)
        mixed = (self.ids.astype(np.uint64) + np.uint64(1)) * _MIX[0] + position.astype(np.uint64) * _MIX[1]
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX[2]
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
        hashes: NumericArray = sums[self.firsts + self.counts] - sums[self.firsts]
        return hashes

    def are_alike(self, rows: NumericArray) -> bool:
        """Return whether rows have equal metrics."""
        if (self.counts[rows] != self.counts[rows[0]]).any():
            return False
        ids = self.ids[self._places(rows)]
        return bool((ids == ids[0]).all())

    def _places(self, rows: NumericArray) -> NumericArray:
        places: NumericArray = self.firsts[rows][:, None] + np.arange(self.counts[rows[0]])
        return places


_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
"""Odd multipliers without a bit pattern."""


def _alike(ints: _Lists, floats: _Lists) -> Iterator[NumericArray]:
    """Yield the rows with equal metrics."""
    hashes = ints.hashes() * _MIX[0] + floats.hashes()
    _, groups = np.unique(hashes, return_inverse=True)
    order = np.argsort(groups, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if ints.are_alike(members) and floats.are_alike(members):
            yield members
            continue
        by_metrics: dict[tuple[int, ...], list[int]] = {}
        for row in members.tolist():
            by_metrics.setdefault((*ints.ids_of(row), -1, *floats.ids_of(row)), []).append(row)
        yield from map(np.array, by_metrics.values())


def _head(cluster: str, rows: Any, order: NumericArray) -> Columns:
    head: Columns = {name: numbers_of(rows, queried)[order] for name, queried in _NUMBERS.items()}
    for name in ("machine", "reader", "lane", "provenance"):
        column = texts_of(rows, name)
        head[name] = DictionaryColumn(column.texts, column.rows[order])
    view = texts_of(rows, "view")
    head["view"] = IndexedColumn(view.texts, view.rows[order])
    head["cluster"] = DictionaryColumn([cluster], np.zeros(len(order), np.int32))
    return head
