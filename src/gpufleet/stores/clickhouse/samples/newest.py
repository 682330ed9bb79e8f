"""Newest samples of machines in memory: for each cluster, arrays indexed by subject number. Pure.

A subject is a view of a machine as read by one reader in one lane. Its newest sample is the last in the hub's order of
reports, so rows can be added in any order, and again, with the same result.

A subject takes about 300 bytes, and 8 bytes per value; arrays have up to a quarter more space than they need.
"""

import threading
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from gpufleet.model.catalogue import BY_ID, Metric, ValueType
from gpufleet.model.reading import Value
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

SIZE_LIMIT = 1 << 30
"""Bytes above which the largest cluster is dropped, and read from the store again: no cluster evicts a smaller one."""

_SUBJECT_BYTES = 200
"""Size of a subject besides its cells: its view's key, and its place in the lists and indexes."""

_NAME_BYTES = 200
"""Size of a machine, or of the name of a reader or lane."""

_LIST_BYTES, _METRIC_BYTES = 1_200, 100
"""Size of a list of metrics, and of each of its entries. A sender can invent any number of lists."""

COPIED: dict[str, type[np.generic]] = {
    **dict.fromkeys(("known_at", "measured_at", "received_at"), np.int64),
    **dict.fromkeys(("driver_session", "absence_set", "info_set"), np.uint64),
    "has_totals": np.bool_,
}
"""Columns that are kept as they are."""

_HEAD: dict[str, type[np.generic]] = {
    **COPIED,
    "machine": np.int32,
    "view": np.int32,  # position among the machine's views
    **dict.fromkeys(("reader", "lane", "provenance"), np.int32),  # positions among all texts
    **dict.fromkeys(("table", "slot"), np.int32),
}
"""Columns of a subject, except for its values."""

ROW_COLUMNS = (
    *("view", "reader", "lane", "measured_at", "received_at", "provenance"),
    *("driver_session", "absence_set", "info_set", "has_totals"),
)
"""Columns of a `NewestRow` after its machine."""

_NEVER = np.iinfo(np.int64).min
_NO_TABLE = -1

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
    """Result of a read.

    Attributes:
        rows: in any order.
        missing: machines that must be loaded.
        content: the rows in memory at the time of the read, which may be dropped before `missing` is loaded.
    """

    rows: list[NewestRow]
    missing: list[str]
    content: "_ClusterSamples"


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
        self._states = {place: one for place, one in enumerate(known) if one and one.type is ValueType.ENUM}
        self._cells = np.empty((0, len(metrics)), np.uint64)
        self._present = np.empty((0, (len(metrics) + 7) // 8), np.uint8)
        self._free = array("i")
        self._used = 0

    @property
    def size(self) -> int:
        """Size in bytes."""
        metrics = _LIST_BYTES + _METRIC_BYTES * len(self._names)
        return metrics + self._cells.nbytes + self._present.nbytes + self._free.itemsize * len(self._free)

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
        if len(self._free) == self._used:
            self._free, self._used = array("i"), 0
            self._cells, self._present = self._cells[:0].copy(), self._present[:0].copy()

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

    def copy(self, slots: NumericArray) -> tuple[NumericArray, NumericArray]:
        """Return copies of the cells of slots and of their bits of presence, for `values`."""
        return self._cells[slots], self._present[slots]

    def values(
        self, cells: NumericArray, bits: NumericArray, metrics: Collection[str] | None
    ) -> Iterator[dict[str, Value]]:
        """Return the values of copied rows by metric name, of `metrics` or all. Reads nothing that changes."""
        wanted = [place for place, name in enumerate(self._names) if name and (metrics is None or name in metrics)]
        names = [self._names[place] for place in wanted]
        present = np.unpackbits(bits, axis=1, count=cells.shape[1])[:, wanted].tolist()
        floats = [place for place, column in enumerate(wanted) if self._is_float[column]]
        states = [(place, self._states[column]) for place, column in enumerate(wanted) if column in self._states]
        cells = cells[:, wanted]
        numbers = cells.view(np.float64)[:, floats].tolist()
        for values, some, is_present in zip(cells.tolist(), numbers, present, strict=True):
            for place, value in zip(floats, some, strict=True):
                values[place] = value
            for place, metric in states:
                if is_present[place]:
                    values[place] = value_of(metric, values[place])
            yield {name: value for name, value, here in zip(names, values, is_present, strict=True) if here and name}


class NewestSamples:
    """Newest samples of the machines that were loaded. Thread-safe.

    A machine is loaded by a query of the store. Rows that are written meanwhile and later are added to it.
    """

    def __init__(self, limit: int = SIZE_LIMIT) -> None:
        self._lock = threading.Lock()
        self._limit = limit
        self._clusters: dict[str, _ClusterSamples] = {}

    @property
    def size(self) -> int:
        """Size in bytes, estimated."""
        return sum(one.size for one in self._clusters.values())

    def drop(self) -> None:
        """Drop all rows, because the content of the store is unknown."""
        with self._lock:
            self._clusters.clear()

    def read(
        self,
        cluster: str,
        machines: Iterable[str],
        view: str | None = None,
        metrics: Collection[str] | None = None,
    ) -> NewestRead:
        """Return the newest samples of machines (of one view), and the machines that must be loaded.

        Rows have the values of `metrics`, or all.
        Rows that are written from now on are added to those machines. So the caller queries them after this call.
        """
        with self._lock:
            content = self._clusters.setdefault(cluster, _ClusterSamples())
            copies: list[_MachineCopy] = []
            missing: list[str] = []
            for machine in dict.fromkeys(machines):
                copied = content.copy(machine, view)
                if copied is None:
                    missing.append(machine)
                else:
                    copies.append(copied)
        return NewestRead([row for one in copies for row in one.rows(metrics)], missing, content)

    def load(self, read: NewestRead, cluster: str, head: Columns, groups: Sequence[ValueGroup]) -> None:
        """Add all rows of the missing machines. No effect if the cluster was dropped since the read."""
        with self._lock:
            if self._clusters.get(cluster) is not read.content:
                return
            try:
                read.content.add(head, groups, np.arange(sum(group.count for group in groups)))
            except BaseException:  # half of the rows may be there
                del self._clusters[cluster]
                raise
            read.content.note_loaded(read.missing)
            self._bound()

    def add(self, head: Columns, groups: Sequence[ValueGroup]) -> None:
        """Add rows that were written; rows of machines that are not loaded are left out.

        Args:
            head: the columns of `latest` without values.
            groups: the values of all rows, in the same order.
        """
        clusters = _dictionary(head["cluster"])
        with self._lock:
            for code, cluster in enumerate(clusters.texts):
                if cluster in self._clusters:
                    self._clusters[cluster].add(head, groups, np.flatnonzero(clusters.rows == code))
            self._bound()

    def _bound(self) -> None:
        """Drop the largest clusters above the limit."""
        while self.size > self._limit:
            del self._clusters[max(self._clusters, key=lambda one: self._clusters[one].size)]


class _MachineCopy(msgspec.Struct, frozen=True):
    """The samples of a machine, copied, so that its rows are built while other rows are added.

    Attributes:
        machine: its id.
        heads: columns of its subjects, by name.
        views: its view keys, by number.
        texts: names of readers, lanes and provenances, by number; more may be added.
        values: for each table: the positions of its rows among the subjects, and their cells.
    """

    machine: str
    heads: dict[str, NumericArray]
    views: list[str]
    texts: list[str]
    values: list[tuple[_ValueTable, NumericArray, tuple[NumericArray, NumericArray]]]

    def rows(self, metrics: Collection[str] | None) -> Iterable[NewestRow]:
        """Build the rows with the values of `metrics`, or all."""
        values: list[dict[str, Value]] = [{}] * len(self.heads["view"])
        for table, places, cells in self.values:
            for place, one in zip(places.tolist(), table.values(*cells, metrics), strict=True):
                values[place] = one
        columns: dict[str, list[Any]] = {name: column.tolist() for name, column in self.heads.items()}
        columns["view"] = [self.views[number] for number in columns["view"]]
        for name in ("reader", "lane", "provenance"):
            columns[name] = [self.texts[number] for number in columns[name]]
        columns["values"] = values
        for row in zip(*columns.values(), strict=True):
            yield NewestRow(machine=self.machine, **dict(zip(columns, row, strict=True)))


class _ClusterSamples:
    """Newest samples of the machines of one cluster."""

    def __init__(self) -> None:
        self._machines: dict[str, int] = {}
        self._loaded: list[bool] = []
        self._subjects: list[array[int]] = []  # of each machine
        self._views: list[dict[str, int]] = []  # of each machine
        self._index = IdIndex()
        self._heads = {name: np.empty(0, kind) for name, kind in _HEAD.items()}
        self._texts: dict[str, int] = {}  # readers, lanes and provenances
        self._text_list: list[str] = []
        self._table_numbers: dict[tuple[int, ...], int] = {}
        self._tables: list[_ValueTable] = []
        self._tables_size = 0

    @property
    def size(self) -> int:
        """Size in bytes, estimated."""
        heads = sum(column.nbytes for column in self._heads.values())
        names = _NAME_BYTES * (len(self._machines) + len(self._texts))
        return heads + _SUBJECT_BYTES * len(self._index) + names + self._tables_size

    def copy(self, machine: str, view: str | None) -> _MachineCopy | None:
        """Return the samples of a machine (of one view), or None if it must be loaded."""
        number = self._machines.setdefault(machine, len(self._loaded))
        if number == len(self._loaded):
            self._loaded.append(False)
            self._subjects.append(array("i"))
            self._views.append({})
        if not self._loaded[number]:
            return None
        views = list(self._views[number])
        subjects = np.array(self._subjects[number], np.int32)
        if view is not None:
            subjects = subjects[self._heads["view"][subjects] == self._views[number].get(view, len(views))]
        tables, slots = self._heads["table"][subjects], self._heads["slot"][subjects]
        values = []
        for table in np.unique(tables).tolist():
            places = np.flatnonzero(tables == table)
            values.append((self._tables[table], places, self._tables[table].copy(slots[places])))
        heads = {name: self._heads[name][subjects] for name in ROW_COLUMNS}
        return _MachineCopy(machine, heads, views, self._text_list, values)

    def note_loaded(self, machines: Iterable[str]) -> None:
        """Note that machines have all their rows."""
        for machine in machines:
            self._loaded[self._machines[machine]] = True

    def add(self, head: Columns, groups: Sequence[ValueGroup], rows: NumericArray) -> None:
        """Add these rows of the cluster, as far as their machines were requested."""
        machines = self._machine_numbers(head, rows)
        is_known = machines != _UNKNOWN
        rows, machines = rows[is_known], machines[is_known]
        if not len(rows):
            return
        known_at, measured_at = (np.asarray(head[name]) for name in ("known_at", "measured_at"))
        order = np.lexsort((measured_at[rows], known_at[rows]))
        rows, machines = rows[order], machines[order]
        rows, numbers = _last_of_each(rows, self._subject_numbers(head, rows, machines))
        known_before, measured_before = self._heads["known_at"][numbers], self._heads["measured_at"][numbers]
        is_newer = (known_at[rows] > known_before) | (
            (known_at[rows] == known_before) & (measured_at[rows] >= measured_before)
        )
        rows, numbers = rows[is_newer], numbers[is_newer]
        for name, kind in COPIED.items():
            self._heads[name][numbers] = np.asarray(head[name], kind)[rows]
        self._heads["provenance"][numbers] = self._text_numbers(head["provenance"], rows)
        ends = np.cumsum([group.count for group in groups])
        firsts = np.searchsorted(ends, rows, side="right")
        for place in np.unique(firsts).tolist():
            mine = firsts == place
            self._put(numbers[mine], groups[place], rows[mine] - (ends[place] - groups[place].count))

    def _put(self, numbers: NumericArray, group: ValueGroup, rows: NumericArray) -> None:
        """Store the values of subjects, in other slots if their metrics changed."""
        number = self._table_numbers.setdefault(group.metrics, len(self._tables))
        if number == len(self._tables):
            self._tables.append(_ValueTable(group.metrics))
            self._tables_size += self._tables[number].size
        tables = self._heads["table"][numbers]
        for old in np.unique(tables[(tables != number) & (tables != _NO_TABLE)]).tolist():
            self._tables_size -= self._tables[old].size
            self._tables[old].release(self._heads["slot"][numbers[tables == old]])
            self._tables_size += self._tables[old].size
        moved = numbers[tables != number]
        if len(moved):
            self._tables_size -= self._tables[number].size
            self._heads["slot"][moved] = self._tables[number].take(len(moved))
            self._heads["table"][moved] = number
            self._tables_size += self._tables[number].size
        self._tables[number].put(self._heads["slot"][numbers], group, rows)

    def _machine_numbers(self, head: Columns, rows: NumericArray) -> NumericArray:
        """Return the number of the machine of each of these rows, or `_UNKNOWN`."""
        machine = _dictionary(head["machine"])
        codes, places = np.unique(machine.rows[rows], return_inverse=True)
        return np.array([self._machines.get(machine.texts[code], _UNKNOWN) for code in codes.tolist()], np.int32)[
            places
        ]

    def _subject_numbers(self, head: Columns, rows: NumericArray, mine: NumericArray) -> NumericArray:
        """Return the subject number of each of these rows, of these machines; new subjects are added."""
        view = head["view"]
        assert isinstance(view, IndexedColumn)
        reader, lane = (self._text_numbers(head[name], rows) for name in ("reader", "lane"))
        codes, places = np.unique(view.rows[rows], return_inverse=True)
        views = text_hashes(IndexedColumn([view.texts[code] for code in codes.tolist()], places))
        names = mix_hashes(mine.astype(np.int64), views)
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

    def _text_numbers(self, column: ColumnData, rows: NumericArray) -> NumericArray:
        """Return the number of the text of each of these rows; new texts are added."""
        texts = _dictionary(column)
        codes, places = np.unique(texts.rows[rows], return_inverse=True)
        numbers = []
        for code in codes.tolist():
            text = texts.texts[code]
            number = self._texts.setdefault(text, len(self._texts))
            if number == len(self._text_list):
                self._text_list.append(text)
            numbers.append(number)
        return np.array(numbers, np.int64)[places]


def _last_of_each(rows: NumericArray, numbers: NumericArray) -> tuple[NumericArray, NumericArray]:
    """Return the last row of each number, in order of rows, and its number."""
    numbers, last = np.unique(numbers[::-1], return_index=True)
    rows = rows[::-1][last]
    order = np.argsort(rows)
    return rows[order], numbers[order]


def _dictionary(column: ColumnData) -> DictionaryColumn:
    assert isinstance(column, DictionaryColumn)
    return column
