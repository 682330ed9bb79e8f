"""Newest samples of the machines of one cluster, in arrays. Pure; not thread-safe.

A subject takes about 150 bytes, and 8 bytes per value; arrays have up to an eighth more space than they need.
"""

import itertools
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gpufleet.model.catalogue import BY_ID, Metric, ValueType
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.view import ViewKind
from gpufleet.stores.clickhouse.samples.newest_rows import ROW_COLUMNS, NewestPage, NewestRow, ValueGroup, value_of
from gpufleet.stores.clickhouse.schema.columns import (
    NO_NUMBER,
    ColumnData,
    Columns,
    DictionaryColumn,
    IndexedColumn,
    NumericArray,
    NumericLists,
    dictionary_of,
)

_SUBJECT_BYTES = 8
"""Size of a subject besides its cells: its place in the list of its machine, and in the index of numbers."""

_NAME_BYTES = 200
"""Size of the name of a reader, lane or provenance."""

_MACHINE_BYTES = 400
"""Size of a machine besides its subjects and views."""

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
    "view": np.int32,  # position among the machine's views
    **dict.fromkeys(("reader", "lane", "provenance"), np.int32),  # positions among all texts
    **dict.fromkeys(("table", "slot"), np.int32),
    "machine": np.int32,
    "kind": np.int8,  # of the view
    "key_hash": np.int64,  # this process's hash of the view's key, which senders cannot choose
    "is_unsaved": np.bool_,  # whether the table `latest` can lack it
}
"""Columns of a subject, except for its values."""

_PAGE_HEADS = ("measured_at", "received_at", "driver_session", "absence_set", "info_set")
"""Columns of a `NewestPage` that are those of the subjects."""

_KINDS = ("", *ViewKind)
"""Kinds of views; the first is the machine itself."""

_GPU, _NAMED_GPU = _KINDS.index(ViewKind.GPU), len(_KINDS)
"""Kinds of GPUs without and with a UUID."""

_GPU_PREFIX = f"{ViewKind.GPU}/"

_NO_UUID = (f"{_GPU_PREFIX}pci/", f"{_GPU_PREFIX}instance/")
"""Prefixes of the keys of GPUs without a UUID."""

NEVER = np.iinfo(np.int64).min
_NO_TABLE = -1
_OTHER = -1


class StoredLists(NamedTuple):
    """Lists of a row's metrics and values: length of each list, and the elements of all lists."""

    counts: list[int]
    ids: NumericArray
    cells: NumericArray


class _ValueTable:
    """Values of all subjects whose newest sample has the same metrics: a row of 64-bit cells per slot."""

    def __init__(self, metrics: tuple[int, ...]) -> None:
        self._metrics = np.array(metrics, np.uint16)
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
            more = self._used + self._used // 8 - len(self._cells)
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
            elif is_float:
                picked = np.array(column, kind)[rows]  # None becomes NaN
                present[:, place] = ~np.isnan(picked)
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

    def stored_lists(self, cells: NumericArray, bits: NumericArray) -> dict[str, "StoredLists"]:
        """Return copied rows as lists of present integers and of floats. Reads nothing that changes."""
        present = np.unpackbits(bits, axis=1, count=cells.shape[1]).astype(np.bool_)
        is_known = np.array([name is not None for name in self._names], np.bool_)
        is_float = np.array(self._is_float, np.bool_)
        found = {}
        for kind, type_, chosen in (("int", np.uint64, ~is_float), ("float", np.float64, is_float)):
            columns = np.flatnonzero(is_known & chosen)
            some = present[:, columns]
            ids = np.broadcast_to(self._metrics[columns], some.shape)[some]
            numbers = np.ascontiguousarray(cells[:, columns]).view(type_)[some]
            found[kind] = StoredLists(some.sum(axis=1).tolist(), ids, numbers)
        return found

    def copy_metrics(
        self, slots: NumericArray, metrics: Sequence[Metric]
    ) -> tuple[dict[int, Metric], NumericArray, NumericArray]:
        """Return the metrics that the table has, by position, copies of their cells in slots, and bits of presence."""
        known = {self._names.index(metric.name): metric for metric in metrics if metric.name in self._names}
        return known, self._cells[np.ix_(slots, np.fromiter(known, np.int64))], self._present[slots]

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


class MachineCopy(msgspec.Struct, frozen=True):
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


class ColumnsCopy(msgspec.Struct, frozen=True):
    """Columns of the subjects of machines, copied.

    Attributes:
        machines: their ids.
        machine: position of each row's machine.
        heads: other columns, by name.
        views: view keys of each machine, by number, encoded.
        texts: names of readers, lanes and provenances, by number.
        values: for each table: the positions of its rows, and the result of `copy_metrics`.
    """

    machines: Sequence[str]
    machine: NumericArray
    heads: dict[str, NumericArray]
    views: list[bytes]
    texts: list[str]
    values: list[tuple[NumericArray, dict[int, Metric], NumericArray, NumericArray]]

    def page(self, metrics: Sequence[Metric]) -> NewestPage:
        """Build the page."""
        is_imported = np.array([text == Provenance.IMPORTED for text in self.texts], np.bool_)
        return NewestPage(
            machine=_used_texts(self.machines, self.machine),
            view=_view_column(self.views, self.machine, self.heads["view"]),
            reader=_used_texts(self.texts, self.heads["reader"]),
            lane=_used_texts(self.texts, self.heads["lane"]),
            imported=is_imported[self.heads["provenance"]],
            values=self._values(metrics),
            **{name: self.heads[name] for name in _PAGE_HEADS},
        )

    def _values(self, metrics: Sequence[Metric]) -> dict[str, NumericArray]:
        found: dict[str, NumericArray] = {}
        for rows, known, cells, bits in self.values:
            present = np.unpackbits(bits, axis=1).astype(np.bool_)
            for column, (position, metric) in zip(cells.T, known.items(), strict=True):
                mine = present[:, position]
                if not mine.any():
                    continue
                column = np.ascontiguousarray(column)
                numbers = column.view(np.float64) if metric.type is ValueType.FLOAT else column.astype(np.float64)
                if metric.name not in found:
                    found[metric.name] = np.full(len(self.machine), np.nan)
                found[metric.name][rows[mine]] = numbers[mine]
        return {metric.name: found[metric.name] for metric in metrics if metric.name in found}


class UnsavedCopy(msgspec.Struct, frozen=True):
    """Subjects that the table `latest` can lack, copied. Rows with equal metrics are consecutive.

    Attributes:
        places: places of the subjects.
        machines, machine: ids of their machines, and the position of each row's.
        heads: other columns, by name.
        views: view keys of each machine, by number, encoded.
        texts: names of readers, lanes and provenances, by number.
        values: for each table its cells.
    """

    places: NumericArray
    machines: Sequence[str]
    machine: NumericArray
    heads: dict[str, NumericArray]
    views: list[bytes]
    texts: list[str]
    values: list[tuple[_ValueTable, tuple[NumericArray, NumericArray]]]

    def columns(self, cluster: str) -> Columns:
        """Return the columns of `latest`."""
        view = _view_column(self.views, self.machine, self.heads["view"])
        texts = {name: DictionaryColumn(self.texts, self.heads[name]) for name in ("reader", "lane", "provenance")}
        lists = {name: NumericLists() for name in ("int_ids", "int_values", "float_ids", "float_values")}
        for table, copied in self.values:
            for kind, part in table.stored_lists(*copied).items():
                lists[f"{kind}_ids"].counts.extend(part.counts)
                lists[f"{kind}_ids"].flat.add(part.ids)
                lists[f"{kind}_values"].counts.extend(part.counts)
                lists[f"{kind}_values"].flat.add(part.cells)
        return {
            "cluster": DictionaryColumn([cluster], np.zeros(len(self.places), np.int32)),
            "machine": DictionaryColumn(self.machines, self.machine),
            "view": IndexedColumn(view.texts, view.rows),
            **texts,
            **{name: self.heads[name] for name in COPIED},
            **lists,
        }


def _view_column(views: Iterable[bytes], machine: NumericArray, view: NumericArray) -> DictionaryColumn:
    """Return the keys of views; machines can have views with equal keys.

    Args:
        views: keys of each machine, by number, encoded.
        machine, view: position of each row's machine, and number of its view.
    """
    codes: dict[str, int] = {}
    decoded = [_decode_keys(keys) for keys in views]
    numbers = [codes.setdefault(key, len(codes)) for keys in decoded for key in keys]
    firsts = np.cumsum([0, *map(len, decoded)])
    rows = np.array(numbers, np.int32)[firsts[machine] + view] if numbers else machine
    return DictionaryColumn(list(codes), rows)


class SubjectPlaces:
    """Places of numbers, in pages: numbers come in ranges with large gaps between them."""

    _BITS = 10

    def __init__(self) -> None:
        self._pages = np.empty(0, np.int32)  # place of each range of 1,024 numbers among the pages
        self._cells = np.empty((0, 1 << self._BITS), np.int32)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._pages.nbytes + self._cells.nbytes

    def find(self, numbers: NumericArray) -> NumericArray:
        """Return the place of each number, `NO_NUMBER` for none."""
        found = np.full(len(numbers), NO_NUMBER, np.int32)
        ranges = numbers >> self._BITS
        rows = np.flatnonzero(ranges < len(self._pages))
        pages = self._pages[ranges[rows]]
        rows, pages = rows[pages != NO_NUMBER], pages[pages != NO_NUMBER]
        found[rows] = self._cells[pages, numbers[rows] & ((1 << self._BITS) - 1)]
        return found

    def put(self, numbers: NumericArray, places: NumericArray) -> None:
        """Set the places of numbers."""
        ranges = numbers >> self._BITS
        wanted = np.unique(ranges)
        if wanted[-1] >= len(self._pages):
            more = np.full(int(wanted[-1]) + 1 - len(self._pages), NO_NUMBER, np.int32)
            self._pages = np.concatenate([self._pages, more])
        new = wanted[self._pages[wanted] == NO_NUMBER]
        if len(new):
            self._pages[new] = np.arange(len(self._cells), len(self._cells) + len(new))
            cells = np.full((len(new), self._cells.shape[1]), NO_NUMBER, np.int32)
            self._cells = np.concatenate([self._cells, cells])
        self._cells[self._pages[ranges], numbers & ((1 << self._BITS) - 1)] = places


class ClusterSamples:
    """Newest samples of the machines of one cluster."""

    def __init__(self) -> None:
        self._machines: dict[str, int] = {}
        self._subjects: list[array[int]] = []  # of each machine
        self._views: list[bytes] = []  # keys of each machine's views, encoded: a third of the size of texts
        self._count = 0
        self._heads = {name: np.empty(0, kind) for name, kind in _HEAD.items()}
        self._texts: dict[str, int] = {}  # readers, lanes and provenances
        self._text_list: list[str] = []
        self._table_numbers: dict[tuple[int, ...], int] = {}
        self._tables: list[_ValueTable] = []
        self._tables_size = self._names_size = 0

    def __len__(self) -> int:
        """Return the number of subjects."""
        return self._count

    @property
    def size(self) -> int:
        """Size in bytes, estimated."""
        heads = sum(column.nbytes for column in self._heads.values())
        return heads + _SUBJECT_BYTES * self._count + self._names_size + self._tables_size

    @property
    def has_unsaved(self) -> bool:
        """Whether there are subjects that the table `latest` can lack."""
        return bool(self._heads["is_unsaved"][: self._count].any())

    def subject_counts(self) -> dict[str, int]:
        """Return machine id to the number of its subjects."""
        return {name: len(self._subjects[number]) for name, number in self._machines.items()}

    def copy(self, machine: str, view: str | None) -> MachineCopy | None:
        """Return the samples of a machine (of one view), or None for an unknown machine."""
        number = self._machines.get(machine)
        if number is None:
            return None
        views = _decode_keys(self._views[number])
        subjects = np.array(self._subjects[number], np.int32)
        if view is not None:
            wanted = views.index(view) if view in views else len(views)
            subjects = subjects[self._heads["view"][subjects] == wanted]
        tables, slots = self._heads["table"][subjects], self._heads["slot"][subjects]
        values = []
        for table in np.unique(tables).tolist():
            places = np.flatnonzero(tables == table)
            values.append((self._tables[table], places, self._tables[table].copy(slots[places])))
        heads = {name: self._heads[name][subjects] for name in ROW_COLUMNS}
        return MachineCopy(machine, heads, views, self._text_list, values)

    def copy_columns(self, machines: Sequence[str], metrics: Sequence[Metric], kinds: Sequence[str]) -> ColumnsCopy:
        """Return the subjects of known machines, without views of other kinds, and the cells of metrics."""
        numbers = [self._machines[one] for one in machines]
        some = [self._subjects[number] for number in numbers]
        subjects = np.concatenate([np.empty(0, np.int32), *(np.frombuffer(one, np.int32) for one in some)])
        machine = np.repeat(np.arange(len(numbers), dtype=np.int32), [len(one) for one in some])
        wanted = [_KINDS.index(kind) for kind in kinds]
        chosen = np.isin(self._heads["kind"][subjects], [*wanted, _NAMED_GPU] if _GPU in wanted else wanted)
        subjects, machine = subjects[chosen], machine[chosen]
        tables, slots = self._heads["table"][subjects], self._heads["slot"][subjects]
        values = []
        for number in np.unique(tables).tolist():
            rows = np.flatnonzero(tables == number)
            values.append((rows, *self._tables[number].copy_metrics(slots[rows], metrics)))
        heads = {name: self._heads[name][subjects] for name in ("view", "reader", "lane", "provenance", *_PAGE_HEADS)}
        views = [self._views[number] for number in numbers]
        return ColumnsCopy(machines, machine, heads, views, self._text_list, values)

    def copy_unsaved(self, first: int, limit: int) -> "UnsavedCopy | None":
        """Return up to `limit` unsaved subjects from a place on, or None if there are none."""
        places = first + np.flatnonzero(self._heads["is_unsaved"][first : self._count])[:limit]
        if not len(places):
            return None
        tables, slots = self._heads["table"][places], self._heads["slot"][places]
        order, values = [], []
        for number in np.unique(tables).tolist():
            rows = np.flatnonzero(tables == number)
            order.append(rows)
            values.append((self._tables[number], self._tables[number].copy(slots[rows])))
        places = places[np.concatenate(order)]
        heads = {name: self._heads[name][places] for name in (*COPIED, "view", "reader", "lane", "provenance")}
        machines = np.unique(self._heads["machine"][places])
        names = list(self._machines)
        return UnsavedCopy(
            places=places,
            machines=[names[number] for number in machines.tolist()],
            machine=np.searchsorted(machines, self._heads["machine"][places]),
            heads=heads,
            views=[self._views[number] for number in machines.tolist()],
            texts=self._text_list,
            values=values,
        )

    def mark_saved(self, places: NumericArray) -> None:
        """Note that the table `latest` has subjects as they are."""
        self._heads["is_unsaved"][places] = False

    def named_gpus(self, since: int) -> tuple[NumericArray, NumericArray, NumericArray]:
        """Return place, machine and hash of the key of GPUs with a UUID whose newest report is not older."""
        used = slice(self._count)
        is_recent = self._heads["known_at"][used] >= since
        places = np.flatnonzero(is_recent & (self._heads["kind"][used] == _NAMED_GPU))
        return places, self._heads["machine"][places], self._heads["key_hash"][places]

    def reports(self, places: NumericArray) -> Iterator[tuple[str, str, int, int]]:
        """Yield machine, view key, place in the order of reports and receipt of subjects."""
        machines = list(self._machines)
        names = ("machine", "view", "known_at", "received_at")
        for machine, view, *times in zip(*(self._heads[name][places].tolist() for name in names), strict=True):
            yield machines[machine], _decode_keys(self._views[machine])[view], *times

    def add(
        self,
        known: SubjectPlaces,
        numbers: NumericArray,
        head: Columns,
        groups: Sequence[ValueGroup],
        rows: NumericArray,
        *,
        is_unsaved: bool,
    ) -> None:
        """Add these rows of the cluster; those that are `is_unsaved` are to be written to the table `latest`."""
        known_at, measured_at = (np.asarray(head[name]) for name in ("known_at", "measured_at"))
        rows = _newest_of_each(rows[np.lexsort((measured_at[rows], known_at[rows]))], numbers)
        places = known.find(numbers[rows])
        is_new = places == NO_NUMBER
        if is_new.any():
            places[is_new] = self._add_subjects(head, rows[is_new])
            known.put(numbers[rows[is_new]], places[is_new])
        known_before, measured_before = self._heads["known_at"][places], self._heads["measured_at"][places]
        is_newer = (known_at[rows] > known_before) | (
            (known_at[rows] == known_before) & (measured_at[rows] >= measured_before)
        )
        rows, places = rows[is_newer], places[is_newer]
        for name, kind in COPIED.items():
            self._heads[name][places] = np.asarray(head[name], kind)[rows]
        self._heads["provenance"][places] = self._text_numbers(head["provenance"], rows)
        if is_unsaved:
            self._heads["is_unsaved"][places] = True
        ends = np.cumsum([group.count for group in groups])
        firsts = np.searchsorted(ends, rows, side="right")
        for number in np.unique(firsts).tolist():
            mine = firsts == number
            self._put(places[mine], groups[number], rows[mine] - (ends[number] - groups[number].count))

    def _put(self, places: NumericArray, group: ValueGroup, rows: NumericArray) -> None:
        """Store the values of subjects, in other slots if their metrics changed."""
        number = self._table_numbers.setdefault(group.metrics, len(self._tables))
        if number == len(self._tables):
            self._tables.append(_ValueTable(group.metrics))
            self._tables_size += self._tables[number].size
        tables = self._heads["table"][places]
        for old in np.unique(tables[(tables != number) & (tables != _NO_TABLE)]).tolist():
            self._tables_size -= self._tables[old].size
            self._tables[old].release(self._heads["slot"][places[tables == old]])
            self._tables_size += self._tables[old].size
        moved = places[tables != number]
        if len(moved):
            self._tables_size -= self._tables[number].size
            self._heads["slot"][moved] = self._tables[number].take(len(moved))
            self._heads["table"][moved] = number
            self._tables_size += self._tables[number].size
        self._tables[number].put(self._heads["slot"][places], group, rows)

    def _add_subjects(self, head: Columns, rows: NumericArray) -> NumericArray:
        """Add the subjects of rows, and return their places."""
        first, count = self._count, self._count + len(rows)
        if count > len(self._heads["view"]):
            for name, column in self._heads.items():
                more = np.empty(count + count // 8 - len(column), column.dtype)
                self._heads[name] = np.concatenate([column, more])
        new = slice(first, count)
        self._heads["known_at"][new], self._heads["table"][new] = NEVER, _NO_TABLE
        self._heads["is_unsaved"][new] = False
        for name in ("reader", "lane"):
            self._heads[name][new] = self._text_numbers(head[name], rows)
        machine, view = dictionary_of(head["machine"]), head["view"]
        assert isinstance(view, DictionaryColumn | IndexedColumn)
        codes = machine.rows[rows]
        order = np.argsort(codes, kind="stable")
        columns: dict[str, list[int]] = {name: [] for name in ("view", "machine", "kind", "key_hash")}
        keys = [view.texts[place] for place in view.rows[rows[order]].tolist()]
        places = (first + order).tolist()
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1)).tolist()
        for start, end in itertools.pairwise([*starts, len(order)]):
            number = self._machine_number(machine.texts[codes[order[start]]])
            known = {key: position for position, key in enumerate(_decode_keys(self._views[number]))}
            columns["view"] += [known.setdefault(key, len(known)) for key in keys[start:end]]
            columns["machine"] += [number] * (end - start)
            self._subjects[number].extend(places[start:end])
            self._names_size -= len(self._views[number])
            self._views[number] = _encode_keys(list(known))
            self._names_size += len(self._views[number])
        columns["kind"] = list(map(_kind_of, keys))
        columns["key_hash"] = list(map(hash, keys))
        for name, cells in columns.items():
            self._heads[name][places] = cells
        self._count = count
        return np.arange(first, count, dtype=np.int32)

    def _machine_number(self, machine: str) -> int:
        number = self._machines.setdefault(machine, len(self._subjects))
        if number == len(self._subjects):
            self._subjects.append(array("i"))
            self._views.append(_NO_KEYS)
            self._names_size += _MACHINE_BYTES + len(machine)
        return number

    def _text_numbers(self, column: ColumnData, rows: NumericArray) -> NumericArray:
        """Return the number of the text of each of these rows; new texts are added."""
        texts = dictionary_of(column)
        codes, places = np.unique(texts.rows[rows], return_inverse=True)
        numbers = []
        for code in codes.tolist():
            text = texts.texts[code]
            number = self._texts.setdefault(text, len(self._texts))
            if number == len(self._text_list):
                self._text_list.append(text)
                self._names_size += _NAME_BYTES
            numbers.append(number)
        return np.array(numbers, np.int32)[places]


def _used_texts(texts: Sequence[str], rows: NumericArray) -> DictionaryColumn:
    """Return a column with the texts that its rows have."""
    used = np.flatnonzero(np.bincount(rows))
    places = np.zeros(len(texts), np.int32)
    places[used] = np.arange(len(used))
    return DictionaryColumn([texts[place] for place in used.tolist()], places[rows])


_encode_keys, _decode_keys = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(list[str]).decode
_NO_KEYS = _encode_keys([])


def _kind_of(key: str) -> int:
    """Return the kind of a view by its key, as a position in `_KINDS`."""
    if key.startswith(_GPU_PREFIX):
        return _GPU if key.startswith(_NO_UUID) else _NAMED_GPU
    kind = key.partition("/")[0]
    return _KINDS.index(kind) if kind in _KINDS else _OTHER


def _newest_of_each(rows: NumericArray, numbers: NumericArray) -> NumericArray:
    """Return the last row of each number, in the given order of rows."""
    _, last = np.unique(numbers[rows[::-1]], return_index=True)
    return rows[np.sort(len(rows) - 1 - last)]
