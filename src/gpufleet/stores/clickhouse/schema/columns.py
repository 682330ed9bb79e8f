"""Column buffers for inserts, and compact indexes that take 12 bytes per entry."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

NumericArray = np.ndarray[Any, np.dtype[Any]]
"""A contiguous column of numbers without gaps."""

AnyColumn = Sequence[Any] | NumericArray
"""A column of cells in any form."""


class DictionaryColumn(msgspec.Struct, frozen=True):
    """Column of repeated texts: the distinct texts, and the position of each row's text."""

    texts: Sequence[str]
    rows: NumericArray


class IndexedColumn(msgspec.Struct, frozen=True):
    """Column of mostly distinct texts: texts with possible duplicates, and the position of each row's text."""

    texts: Sequence[str]
    rows: NumericArray


class ListColumn(msgspec.Struct):
    """Column of lists.

    Attributes:
        counts: length of each row's list.
        flat: the elements of all lists, row after row.
    """

    counts: list[int] = []
    flat: list[Any] = []

    def add(self, elements: Sequence[Any]) -> None:
        """Append a row."""
        self.counts.append(len(elements))
        self.flat.extend(elements)


class ChunkedNumbers(msgspec.Struct):
    """Column of numbers in chunks: an array, a list, or a number of rows without a value."""

    chunks: list[NumericArray | list[Any] | int] = []
    count: int = 0

    def pad(self, rows: int) -> None:
        """Append rows without a value up to a total of `rows`."""
        if self.count < rows:
            self.chunks.append(rows - self.count)
            self.count = rows

    def add(self, cells: NumericArray | list[Any]) -> None:
        """Append rows."""
        self.chunks.append(cells)
        self.count += len(cells)


_KINDS: dict[str, type[np.generic]] = {"q": np.int64, "d": np.float64}
"""Type code, as in `array`, to numpy type."""


def matrix_column(cells: bytes, code: str, place: int, width: int) -> NumericArray:
    """Return one column of a row-major matrix with `width` columns; `code` is a type code as in `array`."""
    return np.ascontiguousarray(np.frombuffer(cells, _KINDS[code]).reshape(-1, width)[:, place])


def concatenate(columns: Sequence[AnyColumn]) -> NumericArray | list[Any]:
    """Concatenate columns: to an array if all are numeric with one type, otherwise to a list."""
    kinds = {getattr(column, "typecode", None) or getattr(column, "dtype", None) for column in columns}
    if len(kinds) == 1 and None not in kinds:
        return np.concatenate([np.asarray(column) for column in columns])
    return flatten(columns)


def flatten(columns: Iterable[AnyColumn]) -> list[Any]:
    """Concatenate columns to a list."""
    return list(chain.from_iterable(columns))


def interleave(columns: Sequence[NumericArray]) -> NumericArray:
    """Return columns of equal length as one row-major array."""
    return np.stack(columns, axis=1).ravel()


class NumericLists(msgspec.Struct):
    """Column of lists of numbers.

    Attributes:
        counts: length of each row's list.
        flat: the elements of all lists, row after row.
    """

    counts: list[int] = []
    flat: ChunkedNumbers = msgspec.field(default_factory=ChunkedNumbers)


ColumnData = list[Any] | NumericArray | ChunkedNumbers | DictionaryColumn | IndexedColumn | ListColumn | NumericLists
"""Any form of a column."""

Columns = dict[str, ColumnData]
"""Column name to data; all of equal length."""


def dictionary_of(column: ColumnData) -> DictionaryColumn:
    """Return a column of repeated texts as such."""
    assert isinstance(column, DictionaryColumn)
    return column


def listed_cells(cells: ColumnData) -> list[Any]:
    """Return the cells of a column that was filled row by row."""
    assert isinstance(cells, list), "small tables are filled row by row"
    return cells


class RowBuffer:
    """Buffer for a small table that is filled row by row."""

    def __init__(self, names: Iterable[str]) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in names}

    def add(self, *cells: object) -> None:
        """Append a row, with cells in the order of the names."""
        for column, cell in zip(self._columns.values(), cells, strict=True):
            column.append(cell)

    @property
    def columns(self) -> Columns:
        """The rows as columns."""
        return dict(self._columns)


def row_count(columns: Columns) -> int:
    """Return the number of rows."""
    for cells in columns.values():
        match cells:
            case ChunkedNumbers():
                return cells.count
            case DictionaryColumn() | IndexedColumn():
                return len(cells.rows)
            case ListColumn() | NumericLists():
                return len(cells.counts)
            case list() | np.ndarray():
                return len(cells)
    return 0


_MIX = np.int64(-7046029254386353131)
"""Odd multiplier without a bit pattern: 2^64 divided by the golden ratio."""


def text_hashes(column: DictionaryColumn | IndexedColumn) -> NumericArray:
    """Return this process's hash of each row's text: 64 bits, which senders cannot choose."""
    return np.fromiter(map(hash, column.texts), np.int64)[column.rows]


def mix_hashes(names: NumericArray, more: NumericArray | int) -> NumericArray:
    """Combine two columns of hashes or numbers to hashes; the order matters."""
    return names * _MIX + more


NO_NUMBER = -1


class IdIndex:
    """Index from 64-bit names to consecutive numbers 0, 1, 2 ..., in order of arrival."""

    def __init__(self) -> None:
        self._names = np.empty(0, np.int64)  # sorted
        self._numbers = np.empty(0, np.int32)

    def __len__(self) -> int:
        """Return the number of names, which is also the next number."""
        return len(self._names)

    def find(self, names: NumericArray) -> NumericArray:
        """Return the number of each name, or `NO_NUMBER`."""
        order = np.argsort(names)  # sorted lookups share cache lines: half the time for a million
        found = np.empty(len(names), np.int32)
        found[order] = self._find_sorted(names[order])
        return found

    def assign(self, names: NumericArray) -> tuple[NumericArray, NumericArray]:
        """Return the number of each name, and a position of each new name in order of its number.

        New names get the next numbers.
        """
        order = np.argsort(names)
        ordered = names[order]
        found = self._find_sorted(ordered)
        new = np.flatnonzero(found == NO_NUMBER)
        is_first = np.ones(len(new), np.bool_)
        is_first[1:] = ordered[new[1:]] != ordered[new[:-1]]
        found[new] = len(self) - 1 + np.cumsum(is_first)
        firsts = new[is_first]
        if len(firsts):
            self._add(ordered[firsts])
        numbers = np.empty(len(names), np.int32)
        numbers[order] = found
        return numbers, order[firsts]

    def _find_sorted(self, names: NumericArray) -> NumericArray:
        if not len(self):
            return np.full(len(names), NO_NUMBER, np.int32)
        places = np.minimum(np.searchsorted(self._names, names), len(self) - 1)
        found: NumericArray = np.where(self._names[places] == names, self._numbers[places], np.int32(NO_NUMBER))
        return found

    def _add(self, names: NumericArray) -> None:
        """Assign the next numbers to sorted, distinct, unknown names."""
        places = np.searchsorted(self._names, names)
        numbers = np.arange(len(self), len(self) + len(names), dtype=np.int32)
        self._names = np.insert(self._names, places, names)
        self._numbers = np.insert(self._numbers, places, numbers)


class NewestValues:
    """Newest value of each number, by order of reports, which may differ from order of arrival.

    Attributes:
        cells: values by number; `empty` where there is none.
        ranks: places of the values in the order of reports.
    """

    def __init__(self, empty: int) -> None:
        self.cells = np.empty(0, np.int64)
        self.ranks = np.empty(0, np.int64)
        self._empty = empty

    def grow(self, more: int) -> None:
        """Add space for the next numbers."""
        self.cells = np.concatenate([self.cells, np.full(more, self._empty, np.int64)])
        self.ranks = np.concatenate([self.ranks, np.zeros(more, np.int64)])

    def update(self, numbers: NumericArray, ranks: NumericArray, cells: NumericArray) -> None:
        """Store values that are not older than the present ones; `ranks` are ascending places in report order."""
        is_newer = ranks >= self.ranks[numbers]
        numbers = numbers[is_newer]
        self.cells[numbers] = cells[is_newer]  # of duplicate numbers, the last assignment wins
        self.ranks[numbers] = ranks[is_newer]
