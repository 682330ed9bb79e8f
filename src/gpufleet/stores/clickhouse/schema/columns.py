"""Columns on their way into a table: lists, arrays, numbers as bytes, numbered names, and lists of lists laid flat.

Numbers for things that are too many to be kept by name: 12 bytes each.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

Numeric = np.ndarray[Any, np.dtype[Any]]
"""A column of numbers that are all there, in one piece."""

Column = Sequence[Any] | Numeric
"""A column of cells, in whatever form."""


class Coded(msgspec.Struct, frozen=True):
    """A column of texts that repeat: each text once, and the number of one a row."""

    texts: Sequence[str]
    rows: Numeric


class Chosen(msgspec.Struct, frozen=True):
    """A column of texts that hardly repeat: texts, of which some may be there twice, and the position of one a row."""

    texts: Sequence[str]
    rows: Numeric


class Ragged(msgspec.Struct):
    """A column of arrays.

    Attributes:
        counts: length of each row's array.
        flat: the arrays' elements, one array after the other.
    """

    counts: list[int] = []
    flat: list[Any] = []

    def add(self, elements: Sequence[Any]) -> None:
        """Add one row."""
        self.counts.append(len(elements))
        self.flat.extend(elements)


class Numbers(msgspec.Struct):
    """A column of numbers, in stretches: in one piece, as a list, or so many rows without a value."""

    stretches: list[Numeric | list[Any] | int] = []
    count: int = 0

    def pad(self, rows: int) -> None:
        """Add rows without a value until there are so many."""
        if self.count < rows:
            self.stretches.append(rows - self.count)
            self.count = rows

    def add(self, cells: Numeric | list[Any]) -> None:
        """Add rows."""
        self.stretches.append(cells)
        self.count += len(cells)


_KINDS: dict[str, type[np.generic]] = {"q": np.int64, "d": np.float64}
"""Code of an array to the kind of its numbers."""


def numeric(cells: bytes, code: str, place: int, width: int) -> Numeric:
    """Return one column of rows of `width` numbers that lie in memory one after the other; `code` as in `array`."""
    return np.ascontiguousarray(np.frombuffer(cells, _KINDS[code]).reshape(-1, width)[:, place])


def laid_out(columns: Sequence[Column]) -> Numeric | list[Any]:
    """Return columns as one: in one piece if all of them are numbers of one type, or else a list."""
    kinds = {getattr(column, "typecode", None) or getattr(column, "dtype", None) for column in columns}
    if len(kinds) == 1 and None not in kinds:
        return np.concatenate([np.asarray(column) for column in columns])
    return end_to_end(columns)


def end_to_end(columns: Iterable[Column]) -> list[Any]:
    """Return the columns as one list."""
    return list(chain.from_iterable(columns))


def by_rows(columns: Sequence[Numeric]) -> Numeric:
    """Return columns of equal length laid out row by row."""
    return np.stack(columns, axis=1).ravel()


class Arrays(msgspec.Struct):
    """A column of arrays of numbers.

    Attributes:
        counts: length of each row's array.
        flat: the arrays' elements, one array after the other.
    """

    counts: list[int] = []
    flat: Numbers = msgspec.field(default_factory=Numbers)


Cells = list[Any] | Numeric | Numbers | Coded | Chosen | Ragged | Arrays
"""What a column can be."""

Columns = dict[str, Cells]
"""Column name to cells; all of equal length."""


class Rows:
    """Rows of a small table: a column at a time is not worth it where rows are few and made one by one."""

    def __init__(self, names: Iterable[str]) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in names}

    def add(self, *cells: object) -> None:
        """Add a row, in the order of the names."""
        for column, cell in zip(self._columns.values(), cells, strict=True):
            column.append(cell)

    @property
    def columns(self) -> Columns:
        """The rows as columns."""
        return dict(self._columns)


def count(columns: Columns) -> int:
    """Return the number of rows."""
    for cells in columns.values():
        match cells:
            case Numbers():
                return cells.count
            case Coded() | Chosen():
                return len(cells.rows)
            case Ragged() | Arrays():
                return len(cells.counts)
            case list() | np.ndarray():
                return len(cells)
    return 0


UNKNOWN = -1


class Numbering:
    """Gives 64-bit names the numbers 0, 1, 2 ... in the order in which they come."""

    def __init__(self) -> None:
        self._names = np.empty(0, np.int64)  # sorted
        self._numbers = np.empty(0, np.int32)

    def __len__(self) -> int:
        """Return how many names have a number, which is the next number."""
        return len(self._names)

    def find(self, names: Numeric) -> Numeric:
        """Return the number of each name, `UNKNOWN` where it has none."""
        if not len(self):
            return np.full(len(names), UNKNOWN, np.int32)
        order = np.argsort(names)  # neighbours are looked for in the same memory: half the time, of a million
        places = np.minimum(np.searchsorted(self._names, names[order]), len(self) - 1)
        found = np.empty(len(names), np.int32)
        found[order] = np.where(self._names[places] == names[order], self._numbers[places], UNKNOWN)
        return found

    def number(self, names: Numeric) -> tuple[Numeric, Numeric]:
        """Return the number of each name, giving those that are new the next ones, and where each new one stands first.

        The places of new names are in the order of their numbers.
        """
        numbers = self.find(names)
        unknown = np.flatnonzero(numbers == UNKNOWN)
        if not len(unknown):
            return numbers, unknown
        new, firsts = np.unique(names[unknown], return_index=True)
        self._add(new)
        return self.find(names), unknown[firsts]

    def _add(self, names: Numeric) -> None:
        """Give the next numbers to names that are sorted, different, and have none."""
        places = np.searchsorted(self._names, names)
        numbers = np.arange(len(self), len(self) + len(names), dtype=np.int32)
        self._names = np.insert(self._names, places, names)
        self._numbers = np.insert(self._numbers, places, numbers)


class Newest:
    """Of each number what was told of it last in the order of reports, which is not the order in which it comes.

    Attributes:
        cells: by number; `empty` where nothing was told.
    """

    def __init__(self, empty: int) -> None:
        self.cells = np.empty(0, np.int64)
        self._ranks = np.empty(0, np.int64)
        self._empty = empty

    def grow(self, more: int) -> None:
        """Make room for the next numbers."""
        self.cells = np.concatenate([self.cells, np.full(more, self._empty, np.int64)])
        self._ranks = np.concatenate([self._ranks, np.zeros(more, np.int64)])

    def tell(self, numbers: Numeric, ranks: Numeric, cells: Numeric) -> None:
        """Take in what is told of numbers, each in its place in the order of reports, and all in that order."""
        is_news = ranks >= self._ranks[numbers]
        numbers = numbers[is_news]
        self.cells[numbers] = cells[is_news]  # the last that is assigned stays
        self._ranks[numbers] = ranks[is_news]
