"""Newest values of a whole cluster in columns, read page by page.

Values are never handled one by one in Python: the numbers of a page are written to a matrix by the position of their
metric, and texts are handled once per distinct text.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from gpufleet.model.catalogue import CATALOGUE, Metric, Storage, ValueType
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.readings import NewestColumns, split_labelled
from gpufleet.model.view import ViewKind
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.facts.labelled import LabelledValues
from gpufleet.stores.clickhouse.facts.mig import MIG_KEY_PREFIX, MIG_PROFILE, fetch_mig_layouts
from gpufleet.stores.clickhouse.facts.projections import ProjectionCache, read_reasons, read_texts
from gpufleet.stores.clickhouse.machines.counts import GPU_KEY_PREFIX
from gpufleet.stores.clickhouse.samples.newest import NewestPages
from gpufleet.stores.clickhouse.samples.newest_rows import NewestPage
from gpufleet.stores.clickhouse.samples.pages import (
    PAGE_ROWS,
    MachineRange,
    TextNumbers,
    fetch_machine_ranges,
    lists_of,
    match_rows,
    numbers_of,
    texts_of,
)
from gpufleet.stores.clickhouse.schema.columns import Columns, DictionaryColumn, NumericArray

_KINDS = ("", ViewKind.GPU, ViewKind.MIG)
"""Kinds of views that are read; the first is the machine itself."""

_ROWS = f"""
SELECT machine, view, reader, lane, provenance = '{Provenance.IMPORTED}' AS is_imported,
    toUnixTimestamp64Nano(measured_at) AS measured_ns, toUnixTimestamp64Nano(received_at) AS received_ns,
    driver_session, absence_set, info_set,
    arrayFilter(id -> id IN {{ints:Array(UInt16)}}, int_ids) AS ints,
    arrayFilter((value, id) -> id IN {{ints:Array(UInt16)}}, int_values, int_ids) AS int_cells,
    arrayFilter(id -> id IN {{floats:Array(UInt16)}}, float_ids) AS floats,
    arrayFilter((value, id) -> id IN {{floats:Array(UInt16)}}, float_values, float_ids) AS float_cells
FROM latest FINAL WHERE {MachineRange.CONDITION}
    AND (view = '' OR startsWith(view, '{GPU_KEY_PREFIX}') OR startsWith(view, '{MIG_KEY_PREFIX}'))
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


class SamplePages(Protocol):
    """Source of the newest samples of a cluster, page by page."""

    def ranges(self) -> Sequence[MachineRange]:
        """Return all machines."""
        ...

    def read(self, machines: MachineRange, metrics: Sequence[Metric]) -> NewestPage | None:
        """Return the newest samples of machines, GPUs and MIG devices with the values of metrics, None without any."""
        ...


class MemoryPages:
    """Newest samples in memory as a `SamplePages`."""

    def __init__(self, pages: NewestPages, cluster: str, page_rows: int = PAGE_ROWS) -> None:
        """Take the samples of a cluster; a page has up to `page_rows` subjects or one machine."""
        self._pages = pages
        self._cluster = cluster
        self._machines = {one[0]: one for one in pages.ranges(page_rows)}

    def ranges(self) -> Sequence[MachineRange]:
        """Return all machines; see `SamplePages`."""
        return [MachineRange(self._cluster, some[0], some[-1]) for some in self._machines.values()]

    def read(self, machines: MachineRange, metrics: Sequence[Metric]) -> NewestPage | None:
        """Return the newest samples of machines; see `SamplePages`."""
        page = self._pages.read(self._machines[machines.first], metrics, _KINDS)
        return page if len(page) else None


class StoredPages:
    """Newest samples in the table `latest` as a `SamplePages`."""

    def __init__(self, handle: Handle, cluster: str, page_rows: int = PAGE_ROWS) -> None:
        """Take the cluster; a page has up to `page_rows` rows or one machine."""
        self._handle = handle
        self._cluster = cluster
        self._page_rows = page_rows

    def ranges(self) -> Sequence[MachineRange]:
        """Return all machines; see `SamplePages`."""
        return list(fetch_machine_ranges(self._handle, self._cluster, self._page_rows))

    def read(self, machines: MachineRange, metrics: Sequence[Metric]) -> NewestPage | None:
        """Return the newest samples of machines; see `SamplePages`."""
        ints = [one.id for one in metrics if one.type is not ValueType.FLOAT]
        floats = [one.id for one in metrics if one.type is ValueType.FLOAT]
        rows = machines.query(self._handle, _ROWS, {"ints": ints, "floats": floats})
        if not rows.num_rows:
            return None
        return NewestPage(
            machine=texts_of(rows, "machine"),
            view=texts_of(rows, "view"),
            reader=texts_of(rows, "reader"),
            lane=texts_of(rows, "lane"),
            imported=numbers_of(rows, "is_imported").astype(np.bool_),
            measured_at=numbers_of(rows, "measured_ns"),
            received_at=numbers_of(rows, "received_ns"),
            driver_session=numbers_of(rows, "driver_session"),
            absence_set=numbers_of(rows, "absence_set"),
            info_set=numbers_of(rows, "info_set"),
            values=_stored_values(rows, metrics),
        )


def _stored_values(rows: Any, metrics: Sequence[Metric]) -> dict[str, NumericArray]:
    """Return metric to the number of each row, NaN for none; metrics without any number are left out."""
    ids = [one.id for one in metrics]
    places = np.zeros(1 + max(ids, default=0), np.int64)  # of the metrics, by catalogue number
    places[ids] = np.arange(len(ids))
    count = rows.num_rows
    cells, present = np.full(len(metrics) * count, np.nan), np.zeros(len(metrics), np.int64)
    for ids_name, cells_name in (("ints", "int_cells"), ("floats", "float_cells")):
        lengths, elements = lists_of(rows, ids_name)
        columns = places[elements]
        present += np.bincount(columns, minlength=len(metrics))
        cells[columns * count + np.repeat(np.arange(count), lengths)] = lists_of(rows, cells_name)[1]
    matrix = cells.reshape(len(metrics), count)
    return {metrics[place].name: matrix[place] for place in np.flatnonzero(present).tolist()}


class _NumberColumn:
    """Column of numbers that is filled from the first to the last row; NaN in rows that are left out."""

    def __init__(self) -> None:
        self._chunks: list[NumericArray] = []
        self._end = 0

    def put(self, first: int, cells: NumericArray) -> None:
        """Set the numbers of consecutive rows after all earlier ones."""
        self._chunks += [np.full(first - self._end, np.nan), cells]
        self._end = first + len(cells)

    def cells(self, rows: int) -> NumericArray:
        """Return the column with so many rows."""
        self.put(rows, np.empty(0))
        return np.concatenate(self._chunks)


class NewestColumnsReader:
    """Reader of the newest values of a cluster in columns; see `ports.FactStore.newest_columns`."""

    def __init__(
        self,
        handle: Handle,
        pages: SamplePages,
        projections: ProjectionCache,
        labelled: LabelledValues,
        cluster: str,
        metrics: Collection[str],
    ) -> None:
        """Take the request.

        Args:
            handle: the database handle.
            pages: newest samples of the cluster.
            projections: sets that were read before.
            labelled: values with dimensions.
            cluster: the cluster.
            metrics: names of metrics, and names that `model.stored.readings.labelled` gave.
        """
        self._handle = handle
        self._pages = pages
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
        self._rows = 0

    def read(self) -> NewestColumns:
        """Read all pages."""
        for machines in self._pages.ranges():
            page = self._pages.read(machines, self._request.numbers)
            if page is not None:
                self._add_page(machines, self._without_mig(machines, page))
        heads = {name: _joined(self._heads.pop(name), kind) for name, kind in _HEADS.items()}
        values = {name: self._values.pop(name).cells(self._rows) for name in list(self._values)}
        return NewestColumns(
            **heads,
            machines=self._machines,
            views=self._views,
            readers=self._readers.texts,
            lanes=self._lanes.texts,
            values=values,
            absences=self._reasons.contents(heads["absence_set"]),
            texts=self._texts.contents(heads["info_set"]),
            addresses=self._addresses.texts,
            mig_layouts=self._layouts,
        )

    def _add_page(self, machines: MachineRange, page: NewestPage) -> None:
        if not len(page):
            return
        self._add_subjects(page)
        for name in ("imported", "measured_at", "received_at", "driver_session"):
            self._add_head(name, getattr(page, name))
        self._add_head("interval_seconds", self._intervals(machines, page))
        self._add_head("address", self._page_addresses(machines, page))
        self._add_head("absence_set", read_reasons(self._handle, self._reasons, page.absence_set))
        info = read_texts(self._handle, self._cluster, self._texts, page.machine, page.info_set)
        self._add_head("info_set", info)
        subjects: Columns = {"cluster": DictionaryColumn([self._cluster], np.zeros(len(page), np.int32))}
        subjects |= {"machine": page.machine, "view": page.view, "reader": page.reader, "lane": page.lane}
        labelled = self._labelled.find(self._request.labelled, subjects, page.measured_at)
        for name, cells in {**page.values, **labelled}.items():
            self._values.setdefault(name, _NumberColumn()).put(self._rows, cells)
        self._rows += len(page)

    def _add_head(self, name: str, cells: NumericArray) -> None:
        self._heads[name].append(cells.astype(_HEADS[name], copy=False))

    def _add_subjects(self, page: NewestPage) -> None:
        """Add the subjects of a page. The rows of a machine are in one page."""
        self._add_head("machine", page.machine.rows + len(self._machines))
        self._machines += page.machine.texts
        pairs = page.machine.rows * np.int64(len(page.view.texts)) + page.view.rows
        devices, places = np.unique(pairs, return_inverse=True)
        self._add_head("view", places + len(self._views))
        self._views += [page.view.texts[place] for place in (devices % len(page.view.texts)).tolist()]
        self._add_head("reader", self._readers.assign(page.reader.texts)[page.reader.rows])
        self._add_head("lane", self._lanes.assign(page.lane.texts)[page.lane.rows])

    def _without_mig(self, machines: MachineRange, page: NewestPage) -> NewestPage:
        """Return the rows of machines and GPUs; the layouts of MIG devices are added."""
        is_mig = np.array([key.startswith(MIG_KEY_PREFIX) for key in page.view.texts], np.bool_)[page.view.rows]
        if not is_mig.any():
            return page
        newest = np.zeros(len(page.machine.texts), np.int64)
        np.maximum.at(newest, page.machine.rows, page.received_at)
        newest_of = dict(zip(page.machine.texts, newest.tolist(), strict=True))
        devices = page.select(np.flatnonzero(is_mig))
        self._layouts |= fetch_mig_layouts(self._handle, machines, self._profiles, devices, newest_of)
        return page.select(np.flatnonzero(~is_mig))

    def _intervals(self, machines: MachineRange, page: NewestPage) -> NumericArray:
        """Return the declared interval of each row, NaN for none."""
        found = machines.query(self._handle, _INTERVALS)
        if not found.num_rows:
            return np.full(len(page.machine.rows), np.nan)
        declared = (texts_of(found, name) for name in ("machine", "reader", "lane"))
        places = match_rows((page.machine, page.reader, page.lane), tuple(declared))
        return np.append(numbers_of(found, "interval_seconds"), np.nan)[places]

    def _page_addresses(self, machines: MachineRange, page: NewestPage) -> NumericArray:
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
