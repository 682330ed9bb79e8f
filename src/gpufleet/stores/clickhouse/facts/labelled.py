"""Newest values with dimensions in memory, of the few metrics and labels that the rules need.

The newest values of a fleet are spread over a table of billions of rows, so they are kept while they are written. After
a start they are unknown until the next report. A subject takes about 14 bytes, and 24 bytes per name.

Each name of a subject has the value of its newest report, with the time of its measurement. So the values depend
neither on the sizes of writes nor on the order of arrival, and the values of a sample can be in several reports.
"""

import threading
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.stored.readings import split_labelled
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.wire.batch import Cell, DimBlock
from gpufleet.stores.clickhouse.samples.blocks import stored_numbers
from gpufleet.stores.clickhouse.samples.subjects import SubjectNumbers
from gpufleet.stores.clickhouse.schema.columns import NO_NUMBER, Columns, IdIndex, NumericArray

MAX_SUBJECTS = 8_000_000
"""Number of subjects above which all values are dropped: a million GPUs with eight readers and lanes."""

_NEVER = np.iinfo(np.int64).min


class LabelledValues:
    """Newest values with dimensions of the subjects of a store, for names that `labelled` gave. Thread-safe."""

    def __init__(self, names: Iterable[str]) -> None:
        """Take the names; those without labels are left out."""
        self._places: dict[str, int] = {}
        self._metrics: dict[str, dict[tuple[str, ...], int]] = {}
        for name in names:
            metric, labels = split_labelled(name)
            if labels:
                place = self._places.setdefault(name, len(self._places))
                self._metrics.setdefault(metric, {})[labels] = place
        self._lock = threading.Lock()
        self.drop()

    def drop(self) -> None:
        """Drop all values, because the content of the store is unknown."""
        with self._lock:
            self._numbers: SubjectNumbers | None = None
            self._index = IdIndex()
            self._reported_at = np.empty((len(self._places), 0), np.int64)
            self._measured_at = np.empty((len(self._places), 0), np.int64)
            self._cells = np.empty((len(self._places), 0))

    def add(self, accepted: Iterable[AcceptedBatch], subject: NumericArray, numbers: SubjectNumbers) -> None:
        """Add the values of batches that were written; other metrics and labels are left out.

        Args:
            accepted: the batches.
            subject: number of the subject of each row of their blocks with dimensions, in order of batches and blocks.
            numbers: numbers of all subjects.
        """
        rows = _Rows()
        first = 0
        for one in accepted:
            for block in one.batch.dims:
                places = self._metrics.get(block.metric)
                if places is not None:
                    rows.add(block, places, one.reported_at, first)
                first += len(block.measured_at)
        if not rows.rows:
            return
        with self._lock:
            self._numbers = numbers
            self._update(rows, subject[rows.rows])
        if len(self._index) > MAX_SUBJECTS:
            self.drop()

    def find(self, names: Collection[str], subjects: Columns, measured_at: NumericArray) -> dict[str, NumericArray]:
        """Return name to the value of each row, NaN for none; names without any value are left out.

        Args:
            names: names that `labelled` gave.
            subjects: cluster, machine, view, reader and lane of each row.
            measured_at: time of measurement of each row. Only values of this time count.
        """
        wanted = {name: self._places[name] for name in names if name in self._places}
        if not wanted or self._numbers is None:
            return {}
        of_rows = self._numbers.find(subjects)
        found: dict[str, NumericArray] = {}
        with self._lock:
            slots = self._index.find(of_rows)
            rows = np.flatnonzero((of_rows != NO_NUMBER) & (slots != NO_NUMBER))
            for name, place in wanted.items():
                some = rows[self._measured_at[place, slots[rows]] == measured_at[rows]]
                if len(some):
                    found[name] = np.full(len(measured_at), np.nan)
                    found[name][some] = self._cells[place, slots[some]]
        return found

    def _update(self, rows: "_Rows", subject: NumericArray) -> None:
        reported_at, measured_at = np.array(rows.reported_at, np.int64), np.array(rows.measured_at, np.int64)
        slots, firsts = self._index.assign(subject.astype(np.int64))
        if len(firsts):
            self._grow(len(firsts))
        places, cells = np.array(rows.places), np.array(rows.cells, np.float64)
        order = np.lexsort((measured_at, reported_at))[::-1]
        _, first = np.unique((slots * len(self._places) + places)[order], return_index=True)
        newest = order[first]  # newest row of each name of a subject
        at = places[newest], slots[newest]
        before = self._reported_at[at]
        is_newer = reported_at[newest] > before
        is_newer |= (reported_at[newest] == before) & (measured_at[newest] >= self._measured_at[at])
        newest = newest[is_newer]
        at = places[newest], slots[newest]
        self._reported_at[at], self._measured_at[at] = reported_at[newest], measured_at[newest]
        self._cells[at] = cells[newest]

    def _grow(self, more: int) -> None:
        missing = np.full((len(self._places), more), _NEVER)
        self._reported_at = np.concatenate([self._reported_at, missing], axis=1)
        self._measured_at = np.concatenate([self._measured_at, missing], axis=1)
        self._cells = np.concatenate([self._cells, np.full(missing.shape, np.nan)], axis=1)


class _Rows:
    """Values to add: position among the rows of all blocks, position of the name, times, and value."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.places: list[int] = []
        self.reported_at: list[int] = []
        self.measured_at: list[int] = []
        self.cells: list[Cell] = []

    def add(self, block: DimBlock, places: dict[tuple[str, ...], int], reported_at: int, first: int) -> None:
        """Add the values of a block whose first row is the given one."""
        cells: Sequence[Cell] = stored_numbers(CATALOGUE[block.metric], block.values)
        for row, (cell, *labels) in enumerate(zip(cells, *block.labels, strict=True)):
            place = places.get(tuple(labels))
            if place is not None and cell is not None:
                self.rows.append(first + row)
                self.places.append(place)
                self.measured_at.append(block.measured_at[row])
                self.cells.append(cell)
        self.reported_at += [reported_at] * (len(self.rows) - len(self.reported_at))
