"""Newest samples of machines in memory, as arrays indexed by subject number. Pure.

A subject is a view of a machine as read by one reader in one lane. Its newest sample is the last in the hub's order of
reports, so rows can be added in any order, and again, with the same result.

Per subject, the samples take 61 bytes, 8 bytes per value, and about 100 bytes for names and indexes.
"""

import threading
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from gpufleet.model.catalogue import BY_ID, Metric, ValueType
from gpufleet.model.reading import Value
from gpufleet.stores.clickhouse.samples.keys import dictionary_column
from gpufleet.stores.clickhouse.schema.columns import (
    ColumnData,
    Columns,
    DictionaryColumn,
    IdIndex,
    IndexedColumn,
    NumericArray,
    mix_hashes,
    text_hashes,
)

Machine = tuple[str, str]
"""(cluster, machine id)."""

SUBJECT_LIMIT = 2_000_000
"""Subjects kept before everything is dropped and read from the store again: about 1 GB with 40 values each."""

TABLE_LIMIT = 10_000
"""The same limit for distinct lists of metrics: a sender can invent any number of them."""

_COPIED: dict[str, type[np.generic]] = {
    **dict.fromkeys(("known_at", "measured_at", "received_at"), np.int64),
    **dict.fromkeys(("driver_session", "absence_set", "info_set"), np.uint64),
    "has_totals": np.bool_,
}
"""Columns that are kept as they are."""

_HEAD: dict[str, type[np.generic]] = {
    **_COPIED,
    "machine": np.int32,
    "view": np.int32,  # position among the machine's views
    **dict.fromkeys(("reader", "lane", "provenance"), np.int32),  # positions among all texts
    **dict.fromkeys(("table", "slot"), np.int32),
}
"""Columns of a subject, except for its values."""

_NEVER = np.iinfo(np.int64).min
_NO_TABLE = -1

_QUERIED = (
    *("machine", "view", "reader", "lane", "measured_at", "received_at", "provenance"),
    *("driver_session", "absence_set", "info_set", "has_totals"),
)
"""Columns of `latest` as queried. After them: ids and values of integers, ids and values of floats, and `known_at`."""

_INT_IDS = len(_QUERIED)
_FLOAT_IDS = _INT_IDS + 2
_UNKNOWN = -1


class ValueGroup(msgspec.Struct, frozen=True):
    """Values of consecutive rows with the same metrics.

    Attributes:
        metrics: catalogue numbers.
        columns: values of each metric by row, states as numbers: an array, or a list with None for no value.
        count: number of rows.
    """

    metrics: tuple[int, ...]
    columns: Sequence[NumericArray | list[Any]]
    count: int


class NewestRow(msgspec.Struct, frozen=True):
    """The newest sample of a subject, as stored: sets by id, without values with dimensions."""

    machine: str
    view: str
    reader: str
    lane: str
    measured_at: int
    received_at: int
    provenance: str
    driver_session: int
    absence_set: int
    info_set: int
    has_totals: bool
    values: dict[str, Value]

    @property
    def place(self) -> tuple[str, str, str, str, int]:
        """Machine, view, reader, lane and time of measurement."""
        return self.machine, self.view, self.reader, self.lane, self.measured_at


class NewestRead(msgspec.Struct, frozen=True):
    """Result of a read: rows in any order, machines that must be loaded, and the generation of the content."""

    rows: list[NewestRow]
    missing: list[str]
    generation: int


def value_of(metric: Metric, stored: float) -> Value:
    """Return a stored value as in readings: a state by name."""
    return metric.states[int(stored)] if metric.type is ValueType.ENUM else stored


class _ValueTable:
    """Values of all subjects whose newest sample has the same metrics: a row of 64-bit cells per slot."""

    def __init__(self, metrics: tuple[int, ...]) -> None:
        known = [BY_ID.get(number) for number in metrics]
        # A newer build may have written metrics that are unknown to this build.
        self._names = [None if metric is None else metric.name for metric in known]
        self._is_float = [metric is not None and metric.type is ValueType.FLOAT for metric in known]
        self._floats = np.flatnonzero(self._is_float)
        self._states = [(place, one) for place, one in enumerate(known) if one and one.type is ValueType.ENUM]
        self._cells = np.empty((0, len(metrics)), np.uint64)
        self._present = np.empty((0, (len(metrics) + 7) // 8), np.uint8)
        self._free: list[int] = []
        self._used = 0

    def take(self, count: int) -> NumericArray:
        """Return slots for new rows."""
        again = [self._free.pop() for _ in range(min(count, len(self._free)))]
        first, self._used = self._used, self._used + count - len(again)
        if self._used > len(self._cells):
            more = self._used + self._used // 4 - len(self._cells)
            self._cells = np.concatenate([self._cells, np.empty((more, self._cells.shape[1]), np.uint64)])
            self._present = np.concatenate([self._present, np.empty((more, self._present.shape[1]), np.uint8)])
        return np.array([*again, *range(first, self._used)], np.int32)

    def release(self, slots: NumericArray) -> None:
        """Free the slots of rows that moved to another table."""
        self._free.extend(slots.tolist())

    def put(self, slots: NumericArray, group: ValueGroup, rows: NumericArray) -> None:
        """Store rows of a group in slots."""
        cells = np.zeros((len(slots), len(self._is_float)), np.uint64)
        present = np.ones(cells.shape, np.bool_)
        for place, (column, is_float) in enumerate(zip(group.columns, self._is_float, strict=True)):
            if self._names[place] is None:
                continue
            kind = np.float64 if is_float else np.uint64
            if isinstance(column, np.ndarray):
                picked = column[rows].astype(kind, copy=False)
            else:
                some = [column[row] for row in rows.tolist()]
                present[:, place] = [cell is not None for cell in some]
                picked = np.array([0 if cell is None else cell for cell in some], kind)
            cells[:, place] = picked.view(np.uint64)
        self._cells[slots] = cells
        self._present[slots] = np.packbits(present, axis=1)

    def values(self, slot: int) -> dict[str, Value]:
        """Return the values of a row by metric name."""
        cells = self._cells[slot]
        values: list[Any] = cells.tolist()
        for place, value in zip(self._floats.tolist(), cells.view(np.float64)[self._floats].tolist(), strict=True):
            values[place] = value
        present = np.unpackbits(self._present[slot], count=len(cells)).tolist()
        for place, metric in self._states:
            if present[place]:
                values[place] = value_of(metric, values[place])
        return {
            name: value
            for name, value, is_present in zip(self._names, values, present, strict=True)
            if is_present and name is not None
        }


class NewestSamples:
    """Newest samples of the machines that were loaded. Thread-safe.

    A machine is loaded by a query of the store. Rows that are written meanwhile and later are added to it.
    """

    def __init__(self, limit: int = SUBJECT_LIMIT) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._generation = 0
        self._clear()

    def _clear(self) -> None:
        self._generation += 1
        self._machines: dict[Machine, int] = {}
        self._loaded: list[bool] = []
        self._subjects: list[array[int]] = []  # of each machine
        self._views: list[dict[str, int]] = []  # of each machine
        self._index = IdIndex()
        self._heads = {name: np.empty(0, kind) for name, kind in _HEAD.items()}
        self._texts: dict[str, int] = {}  # readers, lanes and provenances
        self._table_numbers: dict[tuple[int, ...], int] = {}
        self._tables: list[_ValueTable] = []

    def __len__(self) -> int:
        """Return the number of subjects."""
        return len(self._index)

    def drop(self) -> None:
        """Drop everything: the content of the store is not known any more."""
        with self._lock:
            self._clear()

    def read(self, cluster: str, machines: Iterable[str], view: str | None = None) -> NewestRead:
        """Return the newest samples of machines (of one view), and the machines that must be loaded.

        Rows that are written from now on are added to those machines. So the caller queries them after this call.
        """
        with self._lock:
            self._bound()
            texts = list(self._texts)
            rows: list[NewestRow] = []
            missing: list[str] = []
            for machine in dict.fromkeys(machines):
                number = self._machines.setdefault((cluster, machine), len(self._loaded))
                if number == len(self._loaded):
                    self._loaded.append(False)
                    self._subjects.append(array("i"))
                    self._views.append({})
                if self._loaded[number]:
                    rows += self._rows_of(machine, number, texts, view)
                else:
                    missing.append(machine)
            return NewestRead(rows, missing, self._generation)

    def load(self, read: NewestRead, cluster: str, head: Columns, groups: Sequence[ValueGroup]) -> None:
        """Add all rows of the missing machines. No effect if everything was dropped since the read."""
        with self._lock:
            if read.generation != self._generation:
                return
            self._add(head, groups)
            for machine in read.missing:
                self._loaded[self._machines[cluster, machine]] = True

    def add(self, head: Columns, groups: Sequence[ValueGroup]) -> None:
        """Add rows that were written; rows of machines that are not loaded are left out.

        Args:
            head: the columns of `latest` without values.
            groups: the values of all rows, in the same order.
        """
        with self._lock:
            self._bound()
            if self._machines:
                self._add(head, groups)

    def _bound(self) -> None:
        if len(self._index) > self._limit or len(self._tables) > TABLE_LIMIT:
            self._clear()

    def _rows_of(self, machine: str, number: int, texts: list[str], view: str | None) -> Iterable[NewestRow]:
        views = list(self._views[number])
        subjects = np.array(self._subjects[number], np.int32)
        if view is not None:
            subjects = subjects[self._heads["view"][subjects] == self._views[number].get(view, len(views))]
        rows = []
        for head in zip(*(column[subjects].tolist() for column in self._heads.values()), strict=True):
            _, measured_at, received_at, session, absence_set, info_set, has_totals, _, place, *codes = head
            reader, lane, provenance, table, slot = codes
            rows.append(
                NewestRow(
                    machine=machine,
                    view=views[place],
                    reader=texts[reader],
                    lane=texts[lane],
                    measured_at=measured_at,
                    received_at=received_at,
                    provenance=texts[provenance],
                    driver_session=session,
                    absence_set=absence_set,
                    info_set=info_set,
                    has_totals=has_totals,
                    values=self._tables[table].values(slot),
                )
            )
        return rows

    def _add(self, head: Columns, groups: Sequence[ValueGroup]) -> None:
        machines = self._machine_numbers(head)
        rows = np.flatnonzero(machines != _UNKNOWN)
        known_at, measured_at = (np.asarray(head[name]) for name in ("known_at", "measured_at"))
        rows = rows[np.lexsort((measured_at[rows], known_at[rows]))]
        numbers = self._subject_numbers(head, rows, machines)
        rows, numbers = _last_of_each(rows, numbers)
        known_before, measured_before = self._heads["known_at"][numbers], self._heads["measured_at"][numbers]
        is_newer = (known_at[rows] > known_before) | (
            (known_at[rows] == known_before) & (measured_at[rows] >= measured_before)
        )
        rows, numbers = rows[is_newer], numbers[is_newer]
        for name, kind in _COPIED.items():
            self._heads[name][numbers] = np.asarray(head[name], kind)[rows]
        self._heads["provenance"][numbers] = self._text_numbers(head["provenance"])[rows]
        first = 0
        for group in groups:
            start, end = np.searchsorted(rows, [first, first + group.count])
            if start < end:
                self._put(numbers[start:end], group, rows[start:end] - first)
            first += group.count

    def _put(self, numbers: NumericArray, group: ValueGroup, rows: NumericArray) -> None:
        """Store the values of subjects, in other slots if their metrics changed."""
        number = self._table_numbers.setdefault(group.metrics, len(self._tables))
        if number == len(self._tables):
            self._tables.append(_ValueTable(group.metrics))
        tables = self._heads["table"][numbers]
        for old in np.unique(tables[(tables != number) & (tables != _NO_TABLE)]).tolist():
            self._tables[old].release(self._heads["slot"][numbers[tables == old]])
        moved = numbers[tables != number]
        if len(moved):
            self._heads["slot"][moved] = self._tables[number].take(len(moved))
            self._heads["table"][moved] = number
        self._tables[number].put(self._heads["slot"][numbers], group, rows)

    def _machine_numbers(self, head: Columns) -> NumericArray:
        """Return the number of each row's machine, or `_UNKNOWN`."""
        cluster, machine = _dictionary(head["cluster"]), _dictionary(head["machine"])
        count = len(machine.texts)
        pairs, rows = np.unique(cluster.rows.astype(np.int64) * count + machine.rows, return_inverse=True)
        names = ((cluster.texts[pair // count], machine.texts[pair % count]) for pair in pairs.tolist())
        return np.array([self._machines.get(name, _UNKNOWN) for name in names], np.int32)[rows]

    def _subject_numbers(self, head: Columns, rows: NumericArray, machines: NumericArray) -> NumericArray:
        """Return the subject number of each of these rows; new subjects are added."""
        view = head["view"]
        assert isinstance(view, IndexedColumn)
        mine = machines[rows]
        reader, lane = (self._text_numbers(head[name])[rows] for name in ("reader", "lane"))
        names = mix_hashes(mine.astype(np.int64), text_hashes(view)[rows])
        names = mix_hashes(mix_hashes(names, reader), lane)
        while True:
            numbers, firsts = self._index.assign(names)
            if len(firsts):
                self._add_subjects(view, rows[firsts], mine[firsts], reader[firsts], lane[firsts])
            collides = self._heads["machine"][numbers] != mine
            if not collides.any():
                return numbers
            names[collides] = mix_hashes(names[collides], 1)

    def _add_subjects(
        self, view: IndexedColumn, rows: NumericArray, machines: NumericArray, reader: NumericArray, lane: NumericArray
    ) -> None:
        first, count = len(self._index) - len(rows), len(self._index)
        if count > len(self._heads["machine"]):
            for name, column in self._heads.items():
                more = np.empty(count + count // 4 - len(column), column.dtype)
                self._heads[name] = np.concatenate([column, more])
        new = slice(first, count)
        self._heads["known_at"][new], self._heads["table"][new] = _NEVER, _NO_TABLE
        for name, cells in (("machine", machines), ("reader", reader), ("lane", lane)):
            self._heads[name][new] = cells
        for number, row, machine in zip(range(first, count), rows.tolist(), machines.tolist(), strict=True):
            views = self._views[machine]
            self._heads["view"][number] = views.setdefault(view.texts[view.rows[row]], len(views))
            self._subjects[machine].append(number)

    def _text_numbers(self, column: ColumnData) -> NumericArray:
        texts = _dictionary(column)
        return np.array([self._texts.setdefault(text, len(self._texts)) for text in texts.texts], np.int64)[texts.rows]


def _last_of_each(rows: NumericArray, numbers: NumericArray) -> tuple[NumericArray, NumericArray]:
    """Return the last row of each number, in order of rows, and its number."""
    numbers, last = np.unique(numbers[::-1], return_index=True)
    rows = rows[::-1][last]
    order = np.argsort(rows)
    return rows[order], numbers[order]


def _dictionary(column: ColumnData) -> DictionaryColumn:
    assert isinstance(column, DictionaryColumn)
    return column


def newest_rows(found: Iterable[tuple[Any, ...]]) -> list[NewestRow]:
    """Return rows of `latest`, as queried, as samples."""
    rows = []
    for *head, int_ids, int_values, float_ids, float_values, _ in found:
        ids, cells = (*int_ids, *float_ids), (*int_values, *float_values)
        values = {
            BY_ID[number].name: value_of(BY_ID[number], cell)
            for number, cell in zip(ids, cells, strict=True)
            if number in BY_ID  # a newer build may have written metrics unknown to this build
        }
        rows.append(NewestRow(**dict(zip(_QUERIED, head, strict=True)), values=values))
    return rows


def newest_columns(cluster: str, found: Sequence[tuple[Any, ...]]) -> tuple[Columns, list[ValueGroup]]:
    """Return rows of `latest`, as queried, as the arguments of `NewestSamples.load`."""
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[Any, ...]]] = {}
    for row in found:
        groups.setdefault((tuple(row[_INT_IDS]), tuple(row[_FLOAT_IDS])), []).append(row)
    rows = [row for some in groups.values() for row in some]
    cells: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * (_FLOAT_IDS + 3)
    columns = dict(zip((*_QUERIED, "known_at"), (*cells[: len(_QUERIED)], cells[-1]), strict=True))
    head: Columns = {name: np.array(columns[name], kind) for name, kind in _COPIED.items()}
    for name in ("machine", "reader", "lane", "provenance"):
        head[name] = dictionary_column(columns[name])
    head["cluster"] = DictionaryColumn([cluster], np.zeros(len(rows), np.int32))
    head["view"] = IndexedColumn(columns["view"], np.arange(len(rows)))
    return head, [
        ValueGroup(
            (*int_ids, *float_ids), [*_transposed(some, _INT_IDS + 1), *_transposed(some, _FLOAT_IDS + 1)], len(some)
        )
        for (int_ids, float_ids), some in groups.items()
    ]


def _transposed(rows: Sequence[tuple[Any, ...]], place: int) -> Iterable[list[Any]]:
    """Return the lists at a position of rows as columns."""
    return map(list, zip(*(row[place] for row in rows), strict=True))
