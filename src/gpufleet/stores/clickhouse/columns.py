"""Columns on their way into a table: plain lists, numbered names, and lists of lists laid flat."""

from collections.abc import Iterable, Sequence
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


Cells = list[Any] | Coded | Ragged
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
            case Coded():
                return len(cells.rows)
            case Ragged():
                return len(cells.counts)
            case list():
                return len(cells)
    return 0
