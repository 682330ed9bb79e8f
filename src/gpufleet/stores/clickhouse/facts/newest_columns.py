"""Newest values of a whole cluster in columns, read page by page.

Values are never handled one by one in Python: the numbers of a page are written to a matrix by the position of their
metric, and texts are handled once per distinct text.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from gpufleet.model.catalogue import CATALOGUE, Metric, Storage, ValueType
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.readings import NewestColumns, split_labelled
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.facts.labelled import LabelledValues
from gpufleet.stores.clickhouse.facts.mig import MIG_KEY_PREFIX, MIG_PROFILE, fetch_mig_layouts
from gpufleet.stores.clickhouse.facts.pages import (
    PAGE_ROWS,
    MachineRange,
    TextNumbers,
    fetch_machine_ranges,
    lists_of,
    match_rows,
    numbers_of,
    split_rows,
    texts_of,
)
from gpufleet.stores.clickhouse.facts.projections import ProjectionCache, read_reasons, read_texts
from gpufleet.stores.clickhouse.machines.counts import GPU_KEY_PREFIX
from gpufleet.stores.clickhouse.schema.columns import Columns, DictionaryColumn, NumericArray

_SUBJECTS = f"""{MachineRange.CONDITION}
    AND (view = '' OR startsWith(view, '{GPU_KEY_PREFIX}') OR startsWith(view, '{MIG_KEY_PREFIX}'))"""

_ROWS = f"""
SELECT machine, view, reader, lane, provenance = '{Provenance.IMPORTED}' AS is_imported,
    toUnixTimestamp64Nano(measured_at) AS measured_ns, toUnixTimestamp64Nano(received_at) AS received_ns,
    driver_session, absence_set, info_set,
    arrayFilter(id -> id IN {{ints:Array(UInt16)}}, int_ids) AS ints,
    arrayFilter((value, id) -> id IN {{ints:Array(UInt16)}}, int_values, int_ids) AS int_cells,
    arrayFilter(id -> id IN {{floats:Array(UInt16)}}, float_ids) AS floats,
    arrayFilter((value, id) -> id IN {{floats:Array(UInt16)}}, float_values, float_ids) AS float_cells
FROM latest FINAL WHERE {_SUBJECTS}
"""  # noqa: S608 - names are constants; values are bound as parameters
"""Values of other metrics are left out here, which is faster than to transfer them."""

_INTERVALS = f"""
SELECT machine, reader, lane, interval_seconds FROM reader_status FINAL WHERE {MachineRange.CONDITION}
"""  # noqa: S608 - as above

_ADDRESSES = f"""
SELECT machine, view, reader, pci_address AS address FROM views FINAL
WHERE {MachineRange.CONDITION} AND startsWith(view, '{GPU_KEY_PREFIX}') AND isNotNull(pci_address)
"""  # noqa: S608 - as above


class _ColumnsRequest(msgspec.Struct, frozen=True):
    """Requested metrics.

    Attributes:
        numbers: metrics with a number, without dimensions.
        texts: text metrics.
        labelled: names of values with dimensions.
        metrics: all metrics.
    """

    numbers: tuple[Metric, ...]
    texts: tuple[str, ...]
    labelled: tuple[str, ...]
    metrics: tuple[str, ...]

    @classmethod
    def of(cls, names: Collection[str]) -> "_ColumnsRequest":
        """Return the request for names of metrics, and names that `labelled` gave."""
        split = {name: split_labelled(name) for name in names}
        plain = [CATALOGUE[metric] for metric, labels in split.values() if not labels]
        return cls(
            numbers=tuple(one for one in plain if one.storage in (Storage.CORE, Storage.TAIL)),
            texts=tuple(one.name for one in plain if one.storage is Storage.INFO),
            labelled=tuple(name for name, (_, labels) in split.items() if labels),
            metrics=tuple({metric for metric, _ in split.values()}),
        )

    def ids(self, *, floats: bool) -> list[int]:
        """Return the catalogue numbers of the metrics stored as floats, or as integers."""
        return [one.id for one in self.numbers if (one.type is ValueType.FLOAT) is floats]


class _PageSubjects(msgspec.Struct, frozen=True):
    """Machine, view, reader and lane of the rows of a page."""

    machine: DictionaryColumn
    view: DictionaryColumn
    reader: DictionaryColumn
    lane: DictionaryColumn

    @classmethod
    def of(cls, rows: Any) -> "_PageSubjects":
        """Return the subjects of rows."""
        return cls(**{name: texts_of(rows, name) for name in cls.__struct_fields__})

    def columns(self, cluster: str) -> Columns:
        """Return the subjects as columns of a table."""
        of_cluster = DictionaryColumn([cluster], np.zeros(len(self.machine.rows), np.int32))
        return {"cluster": of_cluster, **msgspec.structs.asdict(self)}


class _NumberColumn:
    """Column of numbers that is filled from the first to the last row; NaN in rows that are left out.

    It has space for the expected number of rows. Space that is not used takes no memory.
    """

    def __init__(self, expected: int) -> None:
        self._cells = np.empty(expected)
        self._end = 0

    def put(self, first: int, cells: NumericArray) -> None:
        """Set the numbers of consecutive rows after all earlier ones."""
        end = first + len(cells)
        if end > len(self._cells):
            self._cells = np.concatenate([self._cells[: self._end], np.empty(end - self._end)])
        self._cells[self._end : first] = np.nan
        self._cells[first:end] = cells
        self._end = end

    def cells(self, rows: int) -> NumericArray:
        """Return the column with so many rows."""
        self.put(rows, np.empty(0))
        return self._cells[:rows]


class NewestColumnsReader:
    """Reader of the newest values of a cluster in columns; see `ports.FactStore.newest_columns`."""

    def __init__(
        self,
        handle: Handle,
        projections: ProjectionCache,
        labelled: LabelledValues,
        cluster: str,
        metrics: Collection[str],
        page_rows: int = PAGE_ROWS,
    ) -> None:
        """Take the request.

        Args:
            handle: the database handle.
            projections: sets that were read before.
            labelled: values with dimensions.
            cluster: the cluster.
            metrics: names of metrics, and names that `model.stored.readings.labelled` gave.
            page_rows: maximum rows of a page, unless a single machine has more.
        """
        self._page_rows = page_rows
        self._handle = handle
        self._labelled = labelled
        self._cluster = cluster
        self._request = request = _ColumnsRequest.of(metrics)
        self._reasons = projections.of("absence_sets", request.metrics)
        self._texts = projections.of("info", request.texts)
        self._profiles = projections.of("info", [MIG_PROFILE])
        self._machines: list[str] = []
        self._views: list[str] = []
        self._readers, self._lanes, self._addresses = TextNumbers(), TextNumbers(), TextNumbers()
        self._heads: dict[str, list[NumericArray]] = {name: [] for name in _HEADS}
        self._values: dict[str, _NumberColumn] = {}
        self._layouts: dict[tuple[str, str], str] = {}
        self._rows = self._expected = 0
        numbers = [one.id for one in request.numbers]
        self._places = np.zeros(1 + max(numbers, default=0), np.int64)  # of the metrics, by catalogue number
        self._places[numbers] = np.arange(len(numbers))
        self._cells = np.empty(0)  # of a page, metric after metric

    def read(self) -> NewestColumns:
        """Read all pages."""
        pages = list(fetch_machine_ranges(self._handle, self._cluster, self._page_rows))
        self._expected = sum(machines.rows for machines in pages)
        for machines in pages:
            self._read_page(machines)
        heads = {name: _joined(self._heads.pop(name), kind) for name, kind in _HEADS.items()}
        return NewestColumns(
            **heads,
            machines=self._machines,
            views=self._views,
            readers=self._readers.texts,
            lanes=self._lanes.texts,
            values={name: column.cells(self._rows) for name, column in self._values.items()},
            absences=self._reasons.contents(heads["absence_set"]),
            texts=self._texts.contents(heads["info_set"]),
            addresses=self._addresses.texts,
            mig_layouts=self._layouts,
        )

    def _read_page(self, machines: MachineRange) -> None:
        request = self._request
        parameters = {"ints": request.ids(floats=False), "floats": request.ids(floats=True)}
        rows = machines.query(self._handle, _ROWS, parameters)
        rows = self._without_mig(machines, rows) if rows.num_rows else rows
        if not rows.num_rows:
            return
        page, measured_at = _PageSubjects.of(rows), numbers_of(rows, "measured_ns")
        self._add_subjects(page)
        self._add_head("imported", numbers_of(rows, "is_imported").astype(np.bool_))
        self._add_head("measured_at", measured_at)
        self._add_head("received_at", numbers_of(rows, "received_ns"))
        self._add_head("driver_session", numbers_of(rows, "driver_session"))
        self._add_head("interval_seconds", self._intervals(machines, page))
        self._add_head("address", self._page_addresses(machines, page))
        self._add_head("absence_set", read_reasons(self._handle, self._reasons, numbers_of(rows, "absence_set")))
        info = read_texts(self._handle, self._cluster, self._texts, page.machine, numbers_of(rows, "info_set"))
        self._add_head("info_set", info)
        subjects = page.columns(self._cluster)
        labelled = self._labelled.find(request.labelled, subjects, measured_at)
        for name, cells in {**self._numbers(rows), **labelled}.items():
            self._values.setdefault(name, _NumberColumn(self._expected)).put(self._rows, cells)
        self._rows += rows.num_rows

    def _add_head(self, name: str, cells: NumericArray) -> None:
        self._heads[name].append(cells.astype(_HEADS[name], copy=False))

    def _add_subjects(self, page: _PageSubjects) -> None:
        """Add the subjects of a page. The rows of a machine are in one page."""
        self._add_head("machine", page.machine.rows + len(self._machines))
        self._machines += page.machine.texts
        pairs = page.machine.rows * np.int64(len(page.view.texts)) + page.view.rows
        devices, places = np.unique(pairs, return_inverse=True)
        self._add_head("view", places + len(self._views))
        self._views += [page.view.texts[place] for place in (devices % len(page.view.texts)).tolist()]
        self._add_head("reader", self._readers.assign(page.reader.texts)[page.reader.rows])
        self._add_head("lane", self._lanes.assign(page.lane.texts)[page.lane.rows])

    def _without_mig(self, machines: MachineRange, rows: Any) -> Any:
        """Return the rows of machines and GPUs; the layouts of MIG devices are added."""
        mig, others = split_rows(rows, "view", MIG_KEY_PREFIX)
        if mig.num_rows:
            machine = texts_of(rows, "machine")
            newest = np.zeros(len(machine.texts), np.int64)
            np.maximum.at(newest, machine.rows, numbers_of(rows, "received_ns"))
            newest_of = dict(zip(machine.texts, newest.tolist(), strict=True))
            self._layouts |= fetch_mig_layouts(self._handle, machines, self._profiles, mig, newest_of)
        return others

    def _numbers(self, rows: Any) -> dict[str, NumericArray]:
        """Return metric to the number of each row, NaN for none; metrics without any number are left out.

        The arrays are valid until the next call.
        """
        metrics, count = self._request.numbers, rows.num_rows
        if len(self._cells) < len(metrics) * count:
            self._cells = np.empty(len(metrics) * count)
        cells, present = self._cells[: len(metrics) * count], np.zeros(len(metrics), np.int64)
        cells.fill(np.nan)
        for ids_name, cells_name in (("ints", "int_cells"), ("floats", "float_cells")):
            lengths, ids = lists_of(rows, ids_name)
            columns = self._places[ids]
            present += np.bincount(columns, minlength=len(metrics))
            cells[columns * count + np.repeat(np.arange(count), lengths)] = lists_of(rows, cells_name)[1]
        matrix = cells.reshape(len(metrics), count)
        return {metrics[place].name: matrix[place] for place in np.flatnonzero(present).tolist()}

    def _intervals(self, machines: MachineRange, page: _PageSubjects) -> NumericArray:
        """Return the declared interval of each row, NaN for none."""
        found = machines.query(self._handle, _INTERVALS)
        if not found.num_rows:
            return np.full(len(page.machine.rows), np.nan)
        declared = (texts_of(found, name) for name in ("machine", "reader", "lane"))
        places = match_rows((page.machine, page.reader, page.lane), tuple(declared))
        return np.append(numbers_of(found, "interval_seconds"), np.nan)[places]

    def _page_addresses(self, machines: MachineRange, page: _PageSubjects) -> NumericArray:
        """Return the number of the PCI address of each row's view, as its reader describes it; -1 for none."""
        found = machines.query(self._handle, _ADDRESSES)
        if not found.num_rows:
            return np.full(len(page.machine.rows), -1)
        address = texts_of(found, "address")
        described = (texts_of(found, name) for name in ("machine", "view", "reader"))
        places = match_rows((page.machine, page.view, page.reader), tuple(described))
        return np.append(self._addresses.assign(address.texts)[address.rows], np.int32(-1))[places]


_HEADS: Mapping[str, type[np.generic]] = {
    **dict.fromkeys(("machine", "view", "reader", "lane", "address"), np.int32),
    "imported": np.bool_,
    **dict.fromkeys(("measured_at", "received_at"), np.int64),
    "driver_session": np.uint64,
    "interval_seconds": np.float64,
    **dict.fromkeys(("absence_set", "info_set"), np.int32),
}
"""Columns of the result except for its values."""


def _joined(parts: Sequence[NumericArray], kind: type[np.generic]) -> NumericArray:
    return np.concatenate([np.empty(0, kind), *parts]).astype(kind, copy=False)
