"""Conversion of batch blocks to the columns of `samples`, `latest` and `dim_samples`, column by column. Pure."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from typing import Any

import numpy as np

from gpufleet.model.aggregate import AGGREGATED
from gpufleet.model.catalogue import BY_ID, CATALOGUE, KUBERNETES_REPORTED, Metric, Storage, ValueType
from gpufleet.model.errors import UnstorableError
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.wire.batch import Cell, DimBlock, MetricListCache, SampleBlock, WireBatch
from gpufleet.model.wire.matrix import LISTED, as_matrix, join_matrices
from gpufleet.stores.clickhouse.samples.keys import PlacedBlock, RowKeys, repeat_per_row, report_order, row_counts
from gpufleet.stores.clickhouse.samples.newest_rows import ValueGroup
from gpufleet.stores.clickhouse.samples.subjects import SubjectNumbers, numbered
from gpufleet.stores.clickhouse.schema.columns import (
    AnyColumn,
    ChunkedNumbers,
    Columns,
    ListColumn,
    NumericArray,
    NumericLists,
    concatenate,
    flatten,
    interleave,
    matrix_column,
)
from gpufleet.stores.clickhouse.schema.sets import EMPTY_SET, Subject, WriteCache, info_set_id
from gpufleet.stores.clickhouse.schema.tables import DIM_SAMPLES, HAS_TOTALS, KNOWN_AFTER, KNOWN_AT, LATEST

_LATEST = frozenset(column.name for column in LATEST.columns)

StoredColumn = tuple[Metric, NumericArray | list[Any]]
"""Metric, and its stored values by row."""


def value_columns(groups: Iterable[ValueGroup]) -> Columns:
    """Return the value columns of `latest`: the numbers of each row with the catalogue numbers of their metrics."""
    lists = {name: NumericLists() for name in ("int_ids", "int_values", "float_ids", "float_values")}
    for group in groups:
        stored = [(BY_ID[id_], cells) for id_, cells in zip(group.metrics, group.columns, strict=True)]
        for kind, code, is_float in (("int", "q", False), ("float", "d", True)):
            columns = [one for one in stored if (one[0].type is ValueType.FLOAT) == is_float]
            _add_lists(lists[f"{kind}_ids"], lists[f"{kind}_values"], code, columns, group.count)
    return dict(lists)


def _add_lists(ids: NumericLists, values: NumericLists, code: str, stored: Sequence[StoredColumn], rows: int) -> None:
    """Add a list of metrics and one of numbers for each row; `code` is the array code of the numbers."""
    numbers = [metric.id for metric, _ in stored]
    arrays = [_contiguous(code, cells) for _, cells in stored]
    packed = [one for one in arrays if one is not None]
    if len(packed) == len(stored):
        counts = [len(stored)] * rows
        ids.flat.add(np.tile(np.array(numbers, np.int64), rows))
        values.flat.add(interleave(packed) if packed else np.empty(0))
    else:
        cells = [_cells(one) for _, one in stored]
        flat = list(chain.from_iterable(zip(*cells, strict=True)))
        present = [cell is not None for cell in flat]
        counts = list(map(sum, zip(*[iter(present)] * len(stored), strict=True)))
        ids.flat.add(list(compress(numbers * rows, present)))
        values.flat.add(list(compress(flat, present)))
    ids.counts.extend(counts)
    values.counts.extend(counts)


def _contiguous(code: str, cells: NumericArray | list[Any]) -> NumericArray | None:
    """Return a contiguous column, or None if it has gaps or numbers out of range."""
    if isinstance(cells, np.ndarray):
        return cells if code == "q" else cells.astype(np.float64, copy=False)
    try:
        return np.asarray(array(code, cells))
    except (TypeError, OverflowError):
        return None


def _cells(cells: NumericArray | list[Any]) -> list[Any]:
    return cells if isinstance(cells, list) else cells.tolist()


def _any_number(columns: Sequence[NumericArray | list[Any]], rows: int) -> list[bool]:
    """Return whether each row has a number in any of the columns."""
    lists = [cells for cells in columns if isinstance(cells, list)]
    if len(lists) < len(columns):
        return [True] * rows
    return [any(cell is not None for cell in row) for row in zip(*lists, strict=True)] or [False] * rows


InfoRow = tuple[Subject, int, int, int, int, list[tuple[str, str]]]
"""(cluster, machine, view, reader, lane), set id, since, before, received_at, (metric, text) pairs."""

_Place = tuple[str, str, int, int, int]


_POSITIONS: dict[str, dict[Cell, Cell]] = {
    metric.name: {None: None, **{state: position for position, state in enumerate(metric.states)}}
    for metric in CATALOGUE.values()
    if metric.type is ValueType.ENUM
}


def stored_numbers(metric: Metric, cells: list[Cell]) -> list[Cell]:
    """Return the cells as stored: a state as its position among the metric's states.

    Raises:
        UnstorableError: if a cell is not a state of the metric.
    """
    if metric.type is not ValueType.ENUM:
        return cells
    try:
        return list(map(_POSITIONS[metric.name].__getitem__, cells))
    except (KeyError, TypeError) as error:
        raise UnstorableError(f"{metric.name}: {error} is not one of its states {', '.join(metric.states)}") from error


def empty_blocks(batch: WireBatch) -> list[SampleBlock]:
    """Return blocks without values for samples that only have values with dimensions.

    The wire format has no row for such a sample, but `latest` needs a row to look up its dimensions. Declarations by
    Kubernetes get no row: they have a table of their own, and are not reports of the machine.
    """
    if not batch.dims:
        return []
    present: set[_Place] = set()
    for block in batch.samples:
        shared = (block.reader, block.lane)
        present.update((*shared, *row) for row in zip(block.machine, block.view, block.measured_at, strict=True))
    empty: dict[tuple[str, str, str], SampleBlock] = {}
    for dim in batch.dims:
        if dim.metric in KUBERNETES_REPORTED:
            continue
        rows = zip(dim.machine, dim.view, dim.measured_at, dim.driver_session, strict=True)
        for machine, view, measured_at, session in dict.fromkeys(rows):
            place = (dim.reader, dim.lane, machine, view, measured_at)
            if place in present:
                continue
            present.add(place)
            shared_by = (dim.reader, dim.lane, dim.provenance)
            found = empty.setdefault(shared_by, SampleBlock(*shared_by, [], [], [], [], [], [], []))
            found.machine.append(machine)
            found.view.append(view)
            found.measured_at.append(measured_at)
            found.driver_session.append(session)
            found.absence.append(-1)
    return list(empty.values())


class _BlockGroup:
    """Blocks with equal metrics."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.blocks: list[PlacedBlock[SampleBlock]] = []


class SampleRows:
    """Columns of `samples` and `latest` from many batches. Blocks with equal metrics are converted together."""

    def __init__(self, known: WriteCache, subjects: SubjectNumbers) -> None:
        self._known = known
        self._subjects = subjects
        self._groups = MetricListCache(_BlockGroup)
        self._rows = 0
        self._info: list[InfoRow] = []
        self._keys = RowKeys()
        self._info_sets: list[int] = []
        self._has_totals: list[bool] = []
        self._newest_groups: list[ValueGroup] = []
        self._core: dict[str, ChunkedNumbers] = {}
        self._tails = {
            name: NumericLists() for name in ("tail_int_ids", "tail_int_values", "tail_float_ids", "tail_float_values")
        }

    def add(self, accepted: AcceptedBatch, absence_ids: Sequence[int]) -> None:
        """Add every sample block of a batch; `absence_ids` are the ids of `batch.absences`."""
        batch = accepted.batch
        blocks = (*batch.samples, *empty_blocks(batch))
        for placed in self._keys.add(accepted, blocks, absence_ids):
            self._groups.of(placed.block).blocks.append(placed)

    def convert(self) -> tuple[Columns, Columns, list[InfoRow], list[ValueGroup]]:
        """Return the columns of `samples`, those of `latest` without values, the info rows to write, and the values.

        A core metric that is in no block has no column.

        Raises:
            UnstorableError: if a state is not a state of its metric.
        """
        ordered: list[PlacedBlock[SampleBlock]] = []
        for group in self._groups.all():
            for alike in _by_layout(group.blocks):
                ordered += alike
                self._add_values(group.names, alike)
        for column in self._core.values():
            column.pad(self._rows)
        head: Columns = {**self._keys.columns(ordered), "info_set": self._info_sets}
        known_at = report_order(ordered)
        newest: Columns = {name: cells for name, cells in head.items() if name in _LATEST}
        newest |= {KNOWN_AT.name: known_at, HAS_TOTALS.name: np.array(self._has_totals, np.bool_)}
        known_after = known_at - np.asarray(head["received_at"])
        samples = {**numbered(head, self._subjects), KNOWN_AFTER.name: known_after, **self._core, **self._tails}
        return samples, newest, self._info, self._newest_groups

    def _add_values(self, names: Sequence[str], blocks: Sequence[PlacedBlock[SampleBlock]]) -> None:
        count = sum(one.rows for one in blocks)
        tail_ints: list[StoredColumn] = []
        tail_floats: list[StoredColumn] = []
        infos: list[tuple[str, list[Cell]]] = []
        columns_at = _columns_of(blocks)
        newest: list[StoredColumn] = []
        for position, name in enumerate(names):
            metric = CATALOGUE[name]
            columns = columns_at(position)
            if metric.storage is Storage.CORE:
                newest.append((metric, self._add_core(metric, columns)))
            elif metric.storage is Storage.INFO:
                infos.append((name, flatten(columns)))
            elif metric.type is ValueType.FLOAT:
                tail_floats.append((metric, concatenate(columns)))
            else:
                cells = concatenate(columns)
                tail_ints.append((metric, stored_numbers(metric, cells) if isinstance(cells, list) else cells))
        self._add_tail("tail_int", tail_ints, count)
        self._add_tail("tail_float", tail_floats, count)
        self._add_info(blocks, infos, count)
        stored = [*newest, *tail_ints, *tail_floats]
        self._has_totals.extend(_any_number([cells for metric, cells in stored if metric.name in AGGREGATED], count))
        self._newest_groups.append(
            ValueGroup(tuple(metric.id for metric, _ in stored), [cells for _, cells in stored], count)
        )
        self._rows += count

    def _add_core(self, metric: Metric, columns: Sequence[AnyColumn]) -> NumericArray | list[Cell]:
        column = self._core.setdefault(metric.name, ChunkedNumbers())
        column.pad(self._rows)
        cells = concatenate(columns)
        if isinstance(cells, list):
            cells = stored_numbers(metric, cells)
        column.add(cells)
        return cells

    def _add_tail(self, name: str, metrics: list[StoredColumn], count: int) -> None:
        ids, values = self._tails[f"{name}_ids"], self._tails[f"{name}_values"]
        metrics = [(metric, cells) for metric, cells in metrics if not _is_empty(cells)]
        width = len(metrics)
        if not width:
            ids.counts.extend([0] * count)
            values.counts.extend([0] * count)
            return
        row_ids = [metric.id for metric, _ in metrics]
        packed = [cells for _, cells in metrics if not isinstance(cells, list)]
        counts = [width] * count
        if len(packed) == width:
            ids.flat.add(np.tile(np.array(row_ids, np.int64), count))
            values.flat.add(interleave(packed))
        else:
            columns = (cells if isinstance(cells, list) else cells.tolist() for _, cells in metrics)
            flat = flatten(zip(*columns, strict=True))
            row_ids = row_ids * count
            if None in flat:
                present = [cell is not None for cell in flat]
                row_ids, flat = list(compress(row_ids, present)), list(compress(flat, present))
                counts = list(map(sum, zip(*[iter(present)] * width, strict=True)))
            ids.flat.add(row_ids)
            values.flat.add(flat)
        ids.counts.extend(counts)
        values.counts.extend(counts)

    def _add_info(
        self, blocks: Sequence[PlacedBlock[SampleBlock]], infos: list[tuple[str, list[Cell]]], count: int
    ) -> None:
        sets = self._info_sets
        if not infos:
            sets.extend([EMPTY_SET] * count)
            return
        names = [name for name, _ in infos]
        rows = ((one, row) for one in blocks for row in range(one.rows))
        for (one, row), *cells in zip(rows, *(cells for _, cells in infos), strict=True):
            texts = [(name, str(cell)) for name, cell in zip(names, cells, strict=True) if cell is not None]
            number = info_set_id(texts)
            sets.append(number)
            subject = one.subject(row)
            at = one.block.measured_at[row]
            before = None if number == EMPTY_SET else self._known.new_info(subject, number, at)
            if before is not None:
                self._info.append((subject, number, at, before, one.accepted.received_at, texts))


def _is_empty(cells: NumericArray | list[Cell]) -> bool:
    """Return whether no row has a value, or there are no rows."""
    return cells.count(None) == len(cells) if isinstance(cells, list) else len(cells) == 0


def _by_layout(blocks: Sequence[PlacedBlock[SampleBlock]]) -> Iterable[list[PlacedBlock[SampleBlock]]]:
    """Group blocks with equal metrics by matrix layout; numbers of a group can be concatenated."""
    groups: dict[int, list[PlacedBlock[SampleBlock]]] = {}
    for one in blocks:
        matrix = as_matrix(one.block.columns)
        groups.setdefault(0 if matrix is None else id(matrix.layout), []).append(one)
    return groups.values()


def _columns_of(blocks: Sequence[PlacedBlock[SampleBlock]]) -> Callable[[int], Sequence[AnyColumn]]:
    """Return a function from a position to the columns there, for blocks of one layout. Matrices give one column."""
    found = [as_matrix(one.block.columns) for one in blocks]
    matrices = [one for one in found if one is not None]
    if not matrices:
        return lambda position: [one.block.columns[position] for one in blocks]
    ((layout, cells, _),) = join_matrices(matrices)

    def column(position: int) -> Sequence[AnyColumn]:
        code, place = layout.codes[position], layout.places[position]
        if code == LISTED:
            return [matrix.lists[place] for matrix in matrices]
        return [matrix_column(cells, code, place, layout.width)]

    return column


def info_rows(rows: Sequence[InfoRow]) -> Iterator[tuple[object, ...]]:
    """Yield rows of the table `info`: one per text."""
    for subject, number, since, before, received_at, texts in rows:
        for metric, text in texts:
            yield (*subject, number, since, before, received_at, metric, text)


class DimRows:
    """Columns of `dim_samples` from many batches."""

    def __init__(self, subjects: SubjectNumbers) -> None:
        self._subjects = subjects
        self._keys = RowKeys()
        self._blocks: list[PlacedBlock[DimBlock]] = []
        self._ints: list[Cell] = []
        self._floats: list[Cell] = []
        self._labels = ListColumn()

    def add(self, accepted: AcceptedBatch, absence_ids: Sequence[int]) -> None:
        """Add every block of a batch; `absence_ids` are the ids of `batch.absences`."""
        batch = accepted.batch
        if not batch.dims:
            return
        self._blocks += self._keys.add(accepted, batch.dims, absence_ids)
        for block in batch.dims:
            count = len(block.measured_at)
            metric = CATALOGUE[block.metric]
            for labels in zip(*block.labels, strict=True):
                self._labels.add(labels)
            floating = metric.type is ValueType.FLOAT
            self._floats.extend(block.values if floating else [None] * count)
            self._ints.extend([None] * count if floating else stored_numbers(metric, block.values))

    @property
    def columns(self) -> Columns:
        """The rows as columns."""
        columns: Columns = {
            **numbered(self._keys.columns(self._blocks), self._subjects),
            "metric": repeat_per_row((one.block.metric for one in self._blocks), row_counts(self._blocks)),
            "labels": self._labels,
            "int_value": self._ints,
            "float_value": self._floats,
        }
        return {column.name: columns[column.name] for column in DIM_SAMPLES.columns}


def machines_with_dims(accepted: Sequence[AcceptedBatch]) -> set[tuple[str, str]]:
    """Return (cluster, machine) pairs with dimensioned values in the batches."""
    return {
        (one.batch.cluster, one.machine_ids[number])
        for one in accepted
        for block in one.batch.dims
        for number in set(block.machine)
    }
