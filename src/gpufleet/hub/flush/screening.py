"""Screening of many batches together for columns that need a cell-by-cell check. Pure.

Batches of one kind of node have the same metrics. Their columns are concatenated, and each metric is checked once by
operations on whole lists; valid columns need no further check. A batch of eight GPUs alone has forty columns of eight
cells, where the cost of each column exceeds that of its cells.
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
from gpufleet.model.wire.batch import Cell, MetricListCache, SampleBlock, WireBatch
from gpufleet.model.wire.matrix import LISTED, Matrix, MatrixLayout, as_matrix, join_matrices, read_column


class SuspectColumn(msgspec.Struct, frozen=True):
    """A column that needs a cell-by-cell check.

    Attributes:
        column: position in the block.
        values: whether the values need the check; otherwise only the absences do.
    """

    column: int
    values: bool


SuspectColumns = Sequence[SuspectColumn]

NO_SUSPECTS: SuspectColumns = ()

_TYPES: dict[ValueType, frozenset[type]] = {
    ValueType.INT: frozenset((int,)),
    ValueType.FLOAT: frozenset((int, float)),
    ValueType.ENUM: frozenset((str,)),
    ValueType.TEXT: frozenset((str,)),
}
"""Types of valid cells, by value type of the metric."""

SUBJECTS = {kind: Subject(kind.value) for kind in ViewKind}
_STATES = {metric.name: frozenset(metric.states) for metric in CATALOGUE.values() if metric.type is ValueType.ENUM}


def screen(batches: Iterable[WireBatch]) -> list[list[SuspectColumns]]:
    """Return the suspect columns of each sample block of each batch.

    A valid column may be suspect: one bad value makes its metric suspect in all batches with the same metrics. This
    costs time only.
    """
    groups = MetricListCache(_ColumnGroup)
    placed: list[list[tuple[_ColumnGroup, SampleBlock]]] = []
    for batch in batches:
        kinds = kinds_of(batch.views)
        subjects = {SUBJECTS[kind] for kind in kinds}
        blocks: list[tuple[_ColumnGroup, SampleBlock]] = []
        for block in batch.samples:
            group = groups.of(block)
            group.blocks.append(block)
            if len(subjects) > 1:
                group.subjects |= {SUBJECTS[batch.views[view].kind] for view in set(block.view) if view >= 0}
            else:
                group.subjects |= subjects
            if -1 in block.view:
                group.subjects.add(Subject.MACHINE)
            blocks.append((group, block))
        placed.append(blocks)
    for group in groups.all():
        group.check()
    return [[group.suspects(block) for group, block in blocks] for blocks in placed]


def _column_of(suspect: SuspectColumn) -> int:
    return suspect.column


class _ColumnGroup:
    """Sample blocks with the same metrics."""

    def __init__(self, metrics: tuple[str, ...]) -> None:
        self.blocks: list[SampleBlock] = []
        self._joined: list[tuple[MatrixLayout, bytes, list[Matrix]]] = []
        self._others: list[SampleBlock] = []
        self.subjects: set[Subject] = set()
        self._metrics = metrics
        self._bad: list[int] = []
        self._gaps: list[int] = []
        self._listed_gaps: dict[int, list[int]] = {}

    def check(self) -> None:
        """Check every column of all blocks together."""
        matrices = [as_matrix(block.columns) for block in self.blocks]
        self._joined = join_matrices(one for one in matrices if one is not None)
        self._others = [block for block, one in zip(self.blocks, matrices, strict=True) if one is None]
        for column, name in enumerate(self._metrics):
            metric = CATALOGUE.get(name)
            if metric is None or metric.dims or not self.subjects.issubset(metric.subjects):
                self._bad.append(column)
                continue
            columns = self._columns(column)
            packed = [one for one in columns if isinstance(one, array)]
            if packed and not _are_valid_packed(metric, packed):
                self._bad.append(column)
                continue
            if len(packed) == len(columns):
                continue
            cells = list(chain.from_iterable(one for one in columns if not isinstance(one, array)))
            if None in cells:
                self._gaps.append(column)
                cells = [cell for cell in cells if cell is not None]
            if not are_valid(metric, cells):
                self._bad.append(column)

        self._listed_gaps = {
            id(layout): [column for column in self._gaps if layout.codes[column] == LISTED]
            for layout, _, _ in self._joined
        }

    def _columns(self, column: int) -> list[Sequence[Cell]]:
        """Return the parts of a column from all blocks; matrices of the same layout form one part."""
        found: list[Sequence[Cell]] = [block.columns[column] for block in self._others]
        for layout, cells, matrices in self._joined:
            code, place = layout.codes[column], layout.places[column]
            if code == LISTED:
                found += [matrix.lists[place] for matrix in matrices]
            else:
                found.append(read_column(cells, code, place, layout.width))
        return found

    def suspects(self, block: SampleBlock) -> SuspectColumns:
        """Return the suspect columns of one block."""
        if not self._bad and not self._gaps:
            return NO_SUSPECTS
        matrix = as_matrix(block.columns)
        listed = self._gaps if matrix is None else self._listed_gaps[id(matrix.layout)]
        gaps = [column for column in listed if column not in self._bad and None in block.columns[column]]
        found = [
            *(SuspectColumn(column, True) for column in self._bad),
            *(SuspectColumn(column, False) for column in gaps),
        ]
        return sorted(found, key=_column_of)  # the result for a batch must not depend on the other batches


def _are_valid_packed(metric: Metric, columns: Sequence["array[Any]"]) -> bool:
    """Return whether all numbers are valid in columns that `decoded.pack_columns` has packed into arrays."""
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


def are_valid(metric: Metric, cells: Sequence[Cell]) -> bool:
    """Return whether all cells are valid; none of them may be absent."""
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
