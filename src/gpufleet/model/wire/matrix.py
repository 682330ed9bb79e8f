"""The numbers of a block as one piece of memory, a row after the other: no object a number.

Nothing is absent in a matrix: what has an absence is a list of cells.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from gpufleet.model.catalogue import CATALOGUE, ValueType

CELL_BYTES = 8
"""Of a number in a matrix, whichever code it has."""

LISTED = "-"
"""Code of a column that is a list of cells."""

_CODES = {ValueType.INT: "q", ValueType.FLOAT: "d"}

NUMBER_CODES = {metric.name: _CODES[metric.type] for metric in CATALOGUE.values() if metric.type in _CODES}
"""Metric to the code, in the module `array`, of its numbers: `q` for integers of 64 bits, `d` for floats."""


class Layout:
    """What the columns of a block are. Blocks that are alike share one.

    Attributes:
        names: of the metrics.
        codes: one a metric: `q`, `d`, or `-` for a list of cells.
        places: metric to its position among the numbers of a row, or among the lists.
        width: numbers a row.
        is_typed: whether every column of numbers has the code of its metric. One of a metric that the catalogue does
            not have, or that is no number, has not.
    """

    __slots__ = ("codes", "is_typed", "names", "places", "width")

    def __init__(self, names: list[str], codes: str) -> None:
        """Take names and codes, as many of one as of the other."""
        self.names = names
        self.codes = codes
        self.width = len(codes) - codes.count(LISTED)
        self.is_typed = all(code in (LISTED, NUMBER_CODES.get(name)) for name, code in zip(names, codes, strict=True))
        numbers = lists = 0
        places: list[int] = []
        for code in codes:
            if code == LISTED:
                places.append(lists)
                lists += 1
            else:
                places.append(numbers)
                numbers += 1
        self.places = tuple(places)


class Matrix(Sequence[Sequence[Any]]):
    """The columns of one block. Each one that is asked for is made anew: an array, or the list that it is.

    Attributes:
        layout: what they are.
        rows: how many each has.
        cells: the numbers, row after row, as this machine has them in memory.
        lists: the columns that are lists.
    """

    __slots__ = ("cells", "layout", "lists", "rows")

    def __init__(self, layout: Layout, rows: int, cells: bytes, lists: list[list[Any]]) -> None:
        self.layout = layout
        self.rows = rows
        self.cells = cells
        self.lists = lists

    def __len__(self) -> int:
        return len(self.layout.codes)

    @overload
    def __getitem__(self, column: int) -> Sequence[Any]: ...
    @overload
    def __getitem__(self, column: slice) -> list[Sequence[Any]]: ...
    def __getitem__(self, column: int | slice) -> Sequence[Any] | list[Sequence[Any]]:
        if isinstance(column, slice):
            return [self[one] for one in range(*column.indices(len(self)))]
        code, place = self.layout.codes[column], self.layout.places[column]
        if code == LISTED:
            return self.lists[place]
        return numbers_of(self.cells, code, place, self.layout.width)

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Tell whether the other has the same columns, be they lists."""
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return [list(column) for column in self] == [list(column) for column in other]

    __hash__ = None  # type: ignore[assignment]  # as a list has none


def numbers_of(cells: bytes, code: str, place: int, width: int) -> "array[Any]":
    """Return one column of rows of `width` numbers."""
    column = array(code)
    if cells:
        column.frombytes(memoryview(cells).cast("q")[place::width].tobytes())
    return column


def joined(matrices: Iterable[Matrix]) -> list[tuple[Layout, bytes, list[Matrix]]]:
    """Return the numbers of all matrices of a layout as one piece of memory, with those matrices in their order."""
    by_layout: dict[int, list[Matrix]] = {}
    for matrix in matrices:
        by_layout.setdefault(id(matrix.layout), []).append(matrix)
    return [(alike[0].layout, b"".join([one.cells for one in alike]), alike) for alike in by_layout.values()]


def matrix_of(columns: object) -> Matrix | None:
    """Return the columns of a block if they are a matrix, or None where they are lists and arrays."""
    return columns if isinstance(columns, Matrix) else None
