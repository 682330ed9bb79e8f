"""Finds the columns of many batches that need a closer look. Pure.

Batches of one kind of node have the same metrics. Their columns are laid end to end and each metric is looked at once,
by operations on whole lists: of a column that is fine nothing more has to be asked. A batch of eight GPUs alone has
forty columns of eight cells, and looking at each costs more than looking at the cells.
"""

import importlib
import math
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, cast

import msgspec

from gpufleet.model.catalogue import CATALOGUE, Metric, Subject, ValueType
from gpufleet.model.view import ViewKind, kinds_of
from gpufleet.model.wire.batch import Cell, SampleBlock, Shapes, WireBatch
from gpufleet.model.wire.matrix import LISTED, Layout, Matrix, joined, matrix_of, numbers_of


class Doubt(msgspec.Struct, frozen=True):
    """A column that needs a closer look.

    Attributes:
        column: its position in the block.
        values: whether its values do; otherwise only its absences.
    """

    column: int
    values: bool


Doubts = Sequence[Doubt]

NONE: Doubts = ()

_TYPES: dict[ValueType, frozenset[type]] = {
    ValueType.INT: frozenset((int,)),
    ValueType.FLOAT: frozenset((int, float)),
    ValueType.ENUM: frozenset((str,)),
    ValueType.TEXT: frozenset((str,)),
}
"""Types that a column may have without a closer look."""

SUBJECTS = {kind: Subject(kind.value) for kind in ViewKind}
_STATES = {metric.name: frozenset(metric.states) for metric in CATALOGUE.values() if metric.type is ValueType.ENUM}


def screen(batches: Iterable[WireBatch]) -> list[list[Doubts]]:
    """Return for each batch, for each of its sample blocks, the columns that need a closer look.

    A false alarm costs only that look: one bad value has it taken at its metric in all the batches that came with it.
    """
    shapes = Shapes(_Shape)
    placed: list[list[tuple[_Shape, SampleBlock]]] = []
    for batch in batches:
        kinds = kinds_of(batch.views)
        subjects = {SUBJECTS[kind] for kind in kinds}
        blocks: list[tuple[_Shape, SampleBlock]] = []
        for block in batch.samples:
            shape = shapes.of(block)
            shape.blocks.append(block)
            if len(subjects) > 1:
                shape.subjects |= {SUBJECTS[batch.views[view].kind] for view in set(block.view) if view >= 0}
            else:
                shape.subjects |= subjects
            if -1 in block.view:
                shape.subjects.add(Subject.MACHINE)
            blocks.append((shape, block))
        placed.append(blocks)
    for shape in shapes.all():
        shape.look()
    return [[shape.doubts(block) for shape, block in blocks] for blocks in placed]


def _column(doubt: Doubt) -> int:
    return doubt.column


class _Shape:
    """Blocks with the same metrics."""

    def __init__(self, metrics: tuple[str, ...]) -> None:
        self.blocks: list[SampleBlock] = []
        self._joined: list[tuple[Layout, bytes, list[Matrix]]] = []
        self._others: list[SampleBlock] = []
        self.subjects: set[Subject] = set()
        self._metrics = metrics
        self._bad: list[int] = []
        self._gaps: list[int] = []
        self._listed_gaps: dict[int, list[int]] = {}

    def look(self) -> None:
        """Look at every column of all blocks at once."""
        matrices = [matrix_of(block.columns) for block in self.blocks]
        self._joined = joined(one for one in matrices if one is not None)
        self._others = [block for block, one in zip(self.blocks, matrices, strict=True) if one is None]
        for column, name in enumerate(self._metrics):
            metric = CATALOGUE.get(name)
            if metric is None or metric.dims or not self.subjects.issubset(metric.subjects):
                self._bad.append(column)
                continue
            columns = self._columns(column)
            packed = [one for one in columns if isinstance(one, array)]
            if packed and not _is_fine_packed(metric, packed):
                self._bad.append(column)
                continue
            if len(packed) == len(columns):
                continue
            cells = list(chain.from_iterable(one for one in columns if not isinstance(one, array)))
            if None in cells:
                self._gaps.append(column)
                cells = [cell for cell in cells if cell is not None]
            if not is_fine(metric, cells):
                self._bad.append(column)

        self._listed_gaps = {
            id(layout): [column for column in self._gaps if layout.codes[column] == LISTED]
            for layout, _, _ in self._joined
        }

    def _columns(self, column: int) -> list[Sequence[Cell]]:
        """Return the column of all blocks: of matrices that are alike in one piece."""
        found: list[Sequence[Cell]] = [block.columns[column] for block in self._others]
        for layout, cells, matrices in self._joined:
            code, place = layout.codes[column], layout.places[column]
            if code == LISTED:
                found += [matrix.lists[place] for matrix in matrices]
            else:
                found.append(numbers_of(cells, code, place, layout.width))
        return found

    def doubts(self, block: SampleBlock) -> Doubts:
        """Return the columns of one block that need a closer look."""
        if not self._bad and not self._gaps:
            return NONE
        matrix = matrix_of(block.columns)
        listed = self._gaps if matrix is None else self._listed_gaps[id(matrix.layout)]
        gaps = [column for column in listed if column not in self._bad and None in block.columns[column]]
        found = [*(Doubt(column, True) for column in self._bad), *(Doubt(column, False) for column in gaps)]
        return sorted(found, key=_column)  # what is made of a batch does not depend on its company


def _is_fine_packed(metric: Metric, columns: Sequence["array[Any]"]) -> bool:
    """Tell the same of columns that `packing` has made arrays of numbers of their metric's type."""
    pa, compute = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.compute"))
    data = pa.py_buffer(b"".join(columns))
    type_ = pa.float64() if columns[0].typecode == "d" else pa.int64()
    numbers = pa.Array.from_buffers(type_, data.size // 8, [None, data])
    if not len(numbers):
        return True
    if type_ == pa.float64() and not compute.all(compute.is_finite(numbers)).as_py():
        return False
    least, most = compute.min_max(numbers).as_py().values()
    return (metric.low is None or least >= metric.low) and (metric.high is None or most <= metric.high)


def is_fine(metric: Metric, cells: Sequence[Cell]) -> bool:
    """Tell whether all of these cells, of which none is absent, are valid as they are."""
    if not cells:
        return True
    types = set(map(type, cells))
    if not types <= _TYPES[metric.type]:
        return False
    if metric.type is ValueType.TEXT:
        return True
    if metric.type is ValueType.ENUM:
        return _STATES[metric.name].issuperset(cells)
    numbers = cast("Sequence[float]", cells)  # `types` has no str
    if float in types and not math.isfinite(sum(numbers)):
        return False
    low, high = metric.low, metric.high
    return (low is None or min(numbers) >= low) and (high is None or max(numbers) <= high)
