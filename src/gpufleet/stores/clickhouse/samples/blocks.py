"""Sample blocks to the columns of `samples` and `latest`. Pure, and a column at a time.

Values of samples to the columns that `latest` has beside those of `samples`. Pure, and a shape at a time.

Blocks of values with dimensions to the columns of `dim_samples`. Pure, and a column at a time.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from typing import Any

import numpy as np

from gpufleet.model.aggregate import AGGREGATED
from gpufleet.model.catalogue import CATALOGUE, SAID_BY_KUBERNETES, Metric, Storage, ValueType
from gpufleet.model.errors import UnstorableError
from gpufleet.model.stored.samples import Accepted
from gpufleet.model.wire.batch import Cell, DimBlock, SampleBlock, Shapes, WireBatch
from gpufleet.model.wire.matrix import LISTED, joined, matrix_of
from gpufleet.stores.clickhouse.samples.keys import Heads, Told, known_at, repeated, rows_of
from gpufleet.stores.clickhouse.schema.columns import (
    Arrays,
    Column,
    Columns,
    Numbers,
    Numeric,
    Ragged,
    by_rows,
    end_to_end,
    laid_out,
    numeric,
)
from gpufleet.stores.clickhouse.schema.sets import EMPTY, Known, Subject, info_set_id
from gpufleet.stores.clickhouse.schema.tables import DIM_SAMPLES, KNOWN_AT

Stored = tuple[Metric, Numeric | list[Any]]
"""A metric, and what each row has of it, as it is stored."""


class ValueRows:
    """Gathers each row's numbers, whatever metric they are of, with the metrics' catalogue numbers."""

    def __init__(self) -> None:
        self._arrays = {name: Arrays() for name in ("int_ids", "int_values", "float_ids", "float_values")}
        self._tells: list[bool] = []

    def add(self, told: Sequence[Stored], rows: int) -> None:
        """Add so many rows that were told of the same metrics."""
        self._add("int", "q", [one for one in told if one[0].type is not ValueType.FLOAT], rows)
        self._add("float", "d", [one for one in told if one[0].type is ValueType.FLOAT], rows)
        self._tells.extend(_tells([cells for metric, cells in told if metric.name in AGGREGATED], rows))

    @property
    def columns(self) -> Columns:
        """Everything gathered, as columns."""
        return {"tells": list(self._tells), **self._arrays}

    def _add(self, kind: str, code: str, told: Sequence[Stored], rows: int) -> None:
        ids, values = self._arrays[f"{kind}_ids"], self._arrays[f"{kind}_values"]
        numbers = [metric.id for metric, _ in told]
        whole = [_whole(code, cells) for _, cells in told]
        packed = [one for one in whole if one is not None]
        if len(packed) == len(told):
            counts = [len(told)] * rows
            ids.flat.add(np.tile(np.array(numbers, np.int64), rows))
            values.flat.add(by_rows(packed) if packed else np.empty(0))
        else:
            cells = [_cells(one) for _, one in told]
            flat = list(chain.from_iterable(zip(*cells, strict=True)))
            present = [cell is not None for cell in flat]
            counts = list(map(sum, zip(*[iter(present)] * len(told), strict=True)))
            ids.flat.add(list(compress(numbers * rows, present)))
            values.flat.add(list(compress(flat, present)))
        ids.counts.extend(counts)
        values.counts.extend(counts)


def _whole(code: str, cells: Numeric | list[Any]) -> Numeric | None:
    """Return a column in one piece, or None if it has gaps or numbers that do not fit."""
    if isinstance(cells, np.ndarray):
        return cells if code == "q" else cells.astype(np.float64, copy=False)
    try:
        return np.asarray(array(code, cells))
    except (TypeError, OverflowError):
        return None


def _cells(cells: Numeric | list[Any]) -> list[Any]:
    return cells if isinstance(cells, list) else cells.tolist()


def _tells(columns: Sequence[Numeric | list[Any]], rows: int) -> list[bool]:
    """Return whether each row has a number in one of the columns."""
    lists = [cells for cells in columns if isinstance(cells, list)]
    if len(lists) < len(columns):
        return [True] * rows
    return [any(cell is not None for cell in row) for row in zip(*lists, strict=True)] or [False] * rows


InfoRow = tuple[Subject, int, int, int, list[tuple[str, str]]]
"""(cluster, machine, view, reader, lane), set id, since, received_at, (metric, text) pairs."""

_Place = tuple[str, str, int, int, int]


_POSITIONS: dict[str, dict[Cell, Cell]] = {
    metric.name: {None: None, **{state: position for position, state in enumerate(metric.states)}}
    for metric in CATALOGUE.values()
    if metric.type is ValueType.ENUM
}


def stored_numbers(metric: Metric, cells: list[Cell]) -> list[Cell]:
    """Return the cells as they are stored: a state as its position among the metric's states.

    Raises:
        UnstorableError: if a cell is not one of the states.
    """
    if metric.type is not ValueType.ENUM:
        return cells
    try:
        return list(map(_POSITIONS[metric.name].__getitem__, cells))
    except (KeyError, TypeError) as error:
        raise UnstorableError(f"{metric.name}: {error} is not one of its states {', '.join(metric.states)}") from error


def bare_blocks(batch: WireBatch) -> list[SampleBlock]:
    """Return rows without values for samples of which the batch has nothing but values with dimensions.

    The wire has no row of its own for such a sample; `latest` needs one to find its dimensions by. What Kubernetes says
    of a machine gets none: it has a table of its own, and does not show that anybody heard of the machine.
    """
    if not batch.dims:
        return []
    present: set[_Place] = set()
    for block in batch.samples:
        shared = (block.reader, block.lane)
        present.update((*shared, *row) for row in zip(block.machine, block.view, block.measured_at, strict=True))
    bare: dict[tuple[str, str, str], SampleBlock] = {}
    for dim in batch.dims:
        if dim.metric in SAID_BY_KUBERNETES:
            continue
        rows = zip(dim.machine, dim.view, dim.measured_at, dim.driver_session, strict=True)
        for machine, view, measured_at, session in dict.fromkeys(rows):
            place = (dim.reader, dim.lane, machine, view, measured_at)
            if place in present:
                continue
            present.add(place)
            shared_by = (dim.reader, dim.lane, dim.provenance)
            found = bare.setdefault(shared_by, SampleBlock(*shared_by, [], [], [], [], [], [], []))
            found.machine.append(machine)
            found.view.append(view)
            found.measured_at.append(measured_at)
            found.driver_session.append(session)
            found.absence.append(-1)
    return list(bare.values())


class _Shape:
    """Blocks with the same metrics."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.told: list[Told[SampleBlock]] = []


class SampleRows:
    """Gathers sample blocks of many batches. Blocks of the same metrics come to lie together, a metric at a time."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._shapes = Shapes(_Shape)
        self._rows = 0
        self._info: list[InfoRow] = []
        self._heads = Heads()
        self._info_sets: list[int] = []
        self._newest = ValueRows()
        self._core: dict[str, Numbers] = {}
        self._tails = {
            name: Arrays() for name in ("tail_int_ids", "tail_int_values", "tail_float_ids", "tail_float_values")
        }

    def add(self, accepted: Accepted, absence_ids: Sequence[int]) -> None:
        """Add every sample block of a batch; `absence_ids` are the ids of `batch.absences`."""
        batch = accepted.batch
        blocks = (*batch.samples, *bare_blocks(batch))
        for told in self._heads.tell(accepted, blocks, absence_ids):
            self._shapes.of(told.block).told.append(told)

    def gather(self) -> tuple[Columns, Columns, list[InfoRow]]:
        """Return the columns of `samples`, those of `latest`, and what there is to be written of texts.

        A core metric that came in no block has no column.

        Raises:
            UnstorableError: if a state is not one of its metric's states.
        """
        ordered: list[Told[SampleBlock]] = []
        for shape in self._shapes.all():
            for alike in _alike(shape.told):
                ordered += alike
                self._add_values(shape.names, alike)
        for column in self._core.values():
            column.pad(self._rows)
        head: Columns = {**self._heads.columns(ordered), "info_set": self._info_sets}
        newest: Columns = {**head, KNOWN_AT.name: known_at(ordered), **self._newest.columns}
        return {**head, **self._core, **self._tails}, newest, self._info

    def _add_values(self, names: Sequence[str], told: Sequence[Told[SampleBlock]]) -> None:
        count = sum(one.rows for one in told)
        tail_ints: list[Stored] = []
        tail_floats: list[Stored] = []
        infos: list[tuple[str, list[Cell]]] = []
        every = _columns_of(told)
        newest: list[Stored] = []
        for position, name in enumerate(names):
            metric = CATALOGUE[name]
            columns = every(position)
            if metric.storage is Storage.CORE:
                newest.append((metric, self._add_core(metric, columns)))
            elif metric.storage is Storage.INFO:
                infos.append((name, end_to_end(columns)))
            elif metric.type is ValueType.FLOAT:
                tail_floats.append((metric, laid_out(columns)))
            else:
                cells = laid_out(columns)
                tail_ints.append((metric, stored_numbers(metric, cells) if isinstance(cells, list) else cells))
        self._add_tail("tail_int", tail_ints, count)
        self._add_tail("tail_float", tail_floats, count)
        self._add_info(told, infos, count)
        self._newest.add([*newest, *tail_ints, *tail_floats], count)
        self._rows += count

    def _add_core(self, metric: Metric, columns: Sequence[Column]) -> Numeric | list[Cell]:
        column = self._core.setdefault(metric.name, Numbers())
        column.pad(self._rows)
        cells = laid_out(columns)
        if isinstance(cells, list):
            cells = stored_numbers(metric, cells)
        column.add(cells)
        return cells

    def _add_tail(self, name: str, metrics: list[Stored], count: int) -> None:
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
            values.flat.add(by_rows(packed))
        else:
            columns = (cells if isinstance(cells, list) else cells.tolist() for _, cells in metrics)
            flat = end_to_end(zip(*columns, strict=True))
            row_ids = row_ids * count
            if None in flat:
                present = [cell is not None for cell in flat]
                row_ids, flat = list(compress(row_ids, present)), list(compress(flat, present))
                counts = list(map(sum, zip(*[iter(present)] * width, strict=True)))
            ids.flat.add(row_ids)
            values.flat.add(flat)
        ids.counts.extend(counts)
        values.counts.extend(counts)

    def _add_info(self, told: Sequence[Told[SampleBlock]], infos: list[tuple[str, list[Cell]]], count: int) -> None:
        sets = self._info_sets
        if not infos:
            sets.extend([EMPTY] * count)
            return
        names = [name for name, _ in infos]
        rows = ((one, row) for one in told for row in range(one.rows))
        for (one, row), *cells in zip(rows, *(cells for _, cells in infos), strict=True):
            texts = [(name, str(cell)) for name, cell in zip(names, cells, strict=True) if cell is not None]
            number = info_set_id(texts)
            sets.append(number)
            subject = one.subject(row)
            if number != EMPTY and self._known.info.get(subject) != number:
                self._info.append((subject, number, one.block.measured_at[row], one.accepted.received_at, texts))
                self._known.info[subject] = number


def _is_empty(cells: Numeric | list[Cell]) -> bool:
    """Tell whether no row has a value, of which there may be no row at all."""
    return cells.count(None) == len(cells) if isinstance(cells, list) else len(cells) == 0


def _alike(told: Sequence[Told[SampleBlock]]) -> Iterable[list[Told[SampleBlock]]]:
    """Return blocks of the same metrics, those together of which the numbers can be laid end to end."""
    by_layout: dict[int, list[Told[SampleBlock]]] = {}
    for one in told:
        matrix = matrix_of(one.block.columns)
        by_layout.setdefault(0 if matrix is None else id(matrix.layout), []).append(one)
    return by_layout.values()


def _columns_of(told: Sequence[Told[SampleBlock]]) -> Callable[[int], Sequence[Column]]:
    """Return what gives the columns at a position of blocks that are alike; those of matrices as one."""
    of_each = [matrix_of(one.block.columns) for one in told]
    matrices = [one for one in of_each if one is not None]
    if not matrices:
        return lambda position: [one.block.columns[position] for one in told]
    ((layout, cells, _),) = joined(matrices)

    def column(position: int) -> Sequence[Column]:
        code, place = layout.codes[position], layout.places[position]
        if code == LISTED:
            return [matrix.lists[place] for matrix in matrices]
        return [numeric(cells, code, place, layout.width)]

    return column


def info_rows(rows: Sequence[InfoRow]) -> Iterator[tuple[object, ...]]:
    """Return the rows of the table `info`: one a text."""
    for subject, number, since, received_at, texts in rows:
        for metric, text in texts:
            yield (*subject, number, since, received_at, metric, text)


class DimRows:
    """Gathers the blocks of many batches."""

    def __init__(self) -> None:
        self._heads = Heads()
        self._told: list[Told[DimBlock]] = []
        self._ints: list[Cell] = []
        self._floats: list[Cell] = []
        self._labels = Ragged()

    def add(self, accepted: Accepted, absence_ids: Sequence[int]) -> None:
        """Add every block of a batch; `absence_ids` are the ids of `batch.absences`."""
        batch = accepted.batch
        if not batch.dims:
            return
        self._told += self._heads.tell(accepted, batch.dims, absence_ids)
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
        """Everything gathered, as columns."""
        columns: Columns = {
            **self._heads.columns(self._told),
            "metric": repeated((one.block.metric for one in self._told), rows_of(self._told)),
            "labels": self._labels,
            "int_value": self._ints,
            "float_value": self._floats,
        }
        return {column.name: columns[column.name] for column in DIM_SAMPLES.columns}


def tellers(accepted: Sequence[Accepted]) -> set[tuple[str, str]]:
    """Return (cluster, machine) of which batches have values with dimensions."""
    return {
        (one.batch.cluster, one.machine_ids[number])
        for one in accepted
        for block in one.batch.dims
        for number in set(block.machine)
    }
