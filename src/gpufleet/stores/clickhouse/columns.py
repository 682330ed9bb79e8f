"""Columns on their way into a table: plain lists, numbers as bytes, numbered names, and lists of lists laid flat."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec


class Coded(msgspec.Struct):
    """A column of texts that repeat: each text once, and a number a row.

    Attributes:
        numbers: text to number.
        rows: number a row.
    """

    numbers: dict[str, int] = {}
    rows: list[int] = []

    def number(self, text: str) -> int:
        """Return the number of a text, giving the next one to a text not seen before."""
        return self.numbers.setdefault(text, len(self.numbers))

    def repeat(self, text: str, count: int) -> None:
        """Add `count` rows of one text."""
        self.rows.extend([self.number(text)] * count)


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


class Packed(msgspec.Struct, frozen=True):
    """Numbers that are all there: their `code` in the module `array` (`q` or `d`), and their bytes as it has them."""

    code: str
    data: bytes
    count: int


class Numbers(msgspec.Struct):
    """A column of numbers, in stretches: packed, as a list, or so many rows without a value."""

    stretches: list[Packed | list[Any] | int] = []
    count: int = 0

    def pad(self, rows: int) -> None:
        """Add rows without a value until there are so many."""
        if self.count < rows:
            self.stretches.append(rows - self.count)
            self.count = rows

    def add(self, cells: list[Any]) -> None:
        """Add a list."""
        self.stretches.append(cells)
        self.count += len(cells)

    def add_packed(self, arrays: "Sequence[array[Any]]") -> Packed:
        """Add arrays of one type; return what they became."""
        packed = Packed(arrays[0].typecode, b"".join(arrays), sum(map(len, arrays)))
        self.stretches.append(packed)
        self.count += packed.count
        return packed


def as_arrays(columns: Sequence[Sequence[Any]]) -> "Sequence[array[Any]] | None":
    """Return the columns if all of them are arrays of one type, or None."""
    kinds = set(map(type, columns))
    if kinds != {array}:
        return None
    return columns if len({column.typecode for column in columns}) == 1 else None  # type: ignore[attr-defined, return-value]


def end_to_end(columns: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the columns as one list."""
    return list(chain.from_iterable(columns))


def laid_out(columns: Sequence[Sequence[Any]]) -> Packed | list[Any]:
    """Return the columns as one: packed if all of them are arrays of one type, or else a list."""
    arrays = as_arrays(columns)
    if arrays is None:
        return end_to_end(columns)
    return Packed(arrays[0].typecode, b"".join(arrays), sum(map(len, arrays)))


def whole_of(cells: Packed) -> "array[Any]":
    """Return packed numbers as an array."""
    whole: array[Any] = array(cells.code)
    whole.frombytes(cells.data)
    return whole


def by_rows(code: str, columns: "Sequence[array[Any]]", rows: int) -> "array[Any]":
    """Return columns of equal length laid out row by row."""
    flat: array[Any] = array(code, bytes(8 * rows * len(columns)))
    for position, column in enumerate(columns):
        flat[position :: len(columns)] = column
    return flat


class Arrays(msgspec.Struct):
    """A column of arrays of numbers.

    Attributes:
        counts: length of each row's array.
        flat: the arrays' elements, one array after the other.
    """

    counts: list[int] = []
    flat: Numbers = msgspec.field(default_factory=Numbers)


Cells = list[Any] | Numbers | Coded | Ragged | Arrays
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
            case Coded():
                return len(cells.rows)
            case Ragged() | Arrays():
                return len(cells.counts)
            case list():
                return len(cells)
    return 0
