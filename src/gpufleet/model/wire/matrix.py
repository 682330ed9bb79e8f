"""Numbers of a block in contiguous memory, row after row, without an object per number.

A matrix has no absent numbers: a column with an absence is a list of cells.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from gpufleet.model.catalogue import CATALOGUE, ValueType

CELL_BYTES = 8
"""Size of a number in a matrix, of either code."""

LISTED = "-"
"""Code of a column that is a list of cells."""

_CODES = {ValueType.INT: "q", ValueType.FLOAT: "d"}

NUMBER_CODES = {metric.name: _CODES[metric.type] for metric in CATALOGUE.values() if metric.type in _CODES}
"""Metric to the `array` type code of its numbers: `q` for 64-bit integers, `d` for floats."""


class MatrixLayout:
    """Column layout of a block. Blocks with equal columns share a layout.

    Attributes:
        names: of the metrics.
        codes: a code per metric: `q`, `d`, or `-` for a list of cells.
        places: metric to its position among the numbers of a row, or among the lists.
        width: numbers per row.
        is_typed: whether every number column has the code of its metric. False if a number column belongs to a metric
            that the catalogue does not have or that is not numeric.
    """

    __slots__ = ("codes", "is_typed", "names", "places", "width")

    def __init__(self, names: list[str], codes: str) -> None:
        """Take names and codes of equal length."""
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
    """Columns of a block. Each access builds the column: an array, or the existing list.

    Attributes:
        layout: the column layout.
        rows: number of rows.
        cells: the numbers, row after row, in native byte order.
        lists: the columns that are lists.
    """

    __slots__ = ("cells", "layout", "lists", "rows")

    def __init__(self, layout: MatrixLayout, rows: int, cells: bytes, lists: list[list[Any]]) -> None:
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
        return read_column(self.cells, code, place, self.layout.width)

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Compare the columns by value; the other side may have lists."""
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return [list(column) for column in self] == [list(column) for column in other]

    __hash__ = None  # type: ignore[assignment]  # unhashable, as a list


def read_column(cells: bytes, code: str, place: int, width: int) -> "array[Any]":
    """Return a column of rows with `width` numbers each."""
    column = array(code)
    if cells:
        column.frombytes(memoryview(cells).cast("q")[place::width].tobytes())
    return column


def join_matrices(matrices: Iterable[Matrix]) -> list[tuple[MatrixLayout, bytes, list[Matrix]]]:
    """Concatenate the numbers of all matrices of each layout; return them with those matrices in order."""
    by_layout: dict[int, list[Matrix]] = {}
    for matrix in matrices:
        by_layout.setdefault(id(matrix.layout), []).append(matrix)
    return [
        (same_layout[0].layout, b"".join([one.cells for one in same_layout]), same_layout)
        for same_layout in by_layout.values()
    ]


def as_matrix(columns: object) -> Matrix | None:
    """Return the columns of a block as a matrix, or None if they are lists or arrays."""
    return columns if isinstance(columns, Matrix) else None
