"""Read cache of the store, and lookups of newest rows, subjects and view descriptions."""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec

from gpufleet.model.reading import Value
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.samples.blocks import machines_with_dims
from gpufleet.stores.clickhouse.schema.columns import Columns, listed_cells
from gpufleet.stores.clickhouse.schema.sets import AbsenceSets, SetCache
from gpufleet.stores.clickhouse.schema.tables import SUBJECTS, VIEWS

Subject = tuple[str, str]
"""(cluster, machine)."""

Content = TypeVar("Content")

_LIMIT = 50_000
"""Maximum entries of a cache: views of 6,000 machines, about 30 MB."""


def machines_in(table: Any) -> set[Subject]:
    """Return the machines of the rows of an Arrow table."""
    return set(zip(table.column("cluster").to_pylist(), table.column("machine").to_pylist(), strict=True))


class ContentCache(Generic[Content]):
    """Contents by machine. Any thread may read; one thread writes.

    A write invalidates its machines before it starts. Until it ends nothing is cached for them, including results of
    queries that started earlier. So the cache always equals the tables, if no other process writes to them; otherwise
    nothing is cached. Cleared completely when full.
    """

    def __init__(self, *, enabled: bool) -> None:
        """Create an empty cache; `enabled` is false if other processes may write to the tables."""
        self._enabled = enabled
        self._contents: dict[Subject, tuple[Content, int]] = {}
        self._entries = 0
        self._being_written: frozenset[Subject] = frozenset()
        self._readers: dict[int, set[Subject]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def reading(self, subjects: Collection[Subject]) -> Iterator[set[Subject]]:
        """Query the tables within the context; yields the machines with cacheable results, for `keep`."""
        may_keep = set(subjects) if self._enabled else set()
        with self._lock:
            may_keep -= self._being_written
            self._readers[id(may_keep)] = may_keep
        try:
            yield may_keep
        finally:
            with self._lock:
                del self._readers[id(may_keep)]

    @contextlib.contextmanager
    def writing(self, subjects: Collection[Subject]) -> Iterator[None]:
        """Write to machines within the context."""
        written = frozenset(subjects)
        with self._lock:
            self._being_written = written
            for may_keep in self._readers.values():
                may_keep -= written
            for subject in self._contents.keys() & written:
                self._entries -= self._contents.pop(subject)[1]
        try:
            yield
        finally:
            with self._lock:
                self._being_written = frozenset()

    def known(self, subjects: Collection[Subject]) -> dict[Subject, Content]:
        """Return the cached contents of machines, which include everything that earlier read samples refer to."""
        with self._lock:
            return {subject: self._contents[subject][0] for subject in subjects if subject in self._contents}

    def keep(self, may_keep: set[Subject], subject: Subject, content: Content, entries: int = 1) -> None:
        """Cache the content of a machine, with its number of entries, unless the machine was written meanwhile."""
        with self._lock:
            if subject not in may_keep or subject in self._contents or entries > _LIMIT:
                return
            if self._entries + entries > _LIMIT:
                self._contents, self._entries = {}, 0
            self._contents[subject] = content, entries
            self._entries += entries


ResultRow = tuple[Any, ...]

_SIZE_LIMIT = 128 << 20
"""Maximum size of a `NewestRowCache` in bytes: reader statuses of some 20,000 machines."""

_ROW_BYTES = 500
"""Size of a row besides its texts and lists."""

_LIST_BYTES, _CELL_BYTES = 60, 60
"""Size of a list, and of each of its cells besides texts."""

_FEW_MACHINES = 16
"""For up to this many machines, unmerged rows are reduced here, because FINAL takes longer."""

_FEW_SETTINGS = "optimize_move_to_prewhere = 0, max_threads = 1"
"""For some hundred rows per part, reading all columns at once is faster than PREWHERE."""


def fetch_newest(
    handle: Handle,
    select: str,
    table: str,
    parameters: Mapping[str, Any],
    *,
    key: int,
    rank: Callable[[ResultRow], Any],
    view: str | None = None,
) -> list[ResultRow]:
    """Return the newest row per key of `machines` of a `cluster`, in order of the key.

    Args:
        handle: the database handle.
        select: the statement up to FROM.
        table: the table; its version column orders rows as `rank` does.
        parameters: query parameters: `cluster`, `machines`, and those of `select`.
        key: number of leading cells that form the key, the machine first.
        rank: key function that is greater for newer rows.
        view: only rows of this view.
    """
    few = len(parameters["machines"]) <= _FEW_MACHINES
    bound = {**parameters, **({} if view is None else {"view": view})}
    clauses = [
        f"{select} FROM {table}{'' if few else ' FINAL'}",
        "WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}",
        *(["AND view = {view:String}"] if view is not None else []),
        *([f"SETTINGS {_FEW_SETTINGS}"] if few else []),
    ]
    newest: dict[ResultRow, ResultRow] = {}
    for row in handle.query(" ".join(clauses), parameters=bound).result_rows:
        before = newest.get(row[:key])
        if before is None or rank(row) >= rank(before):  # of equal ranks the later row wins, as with FINAL
            newest[row[:key]] = row
    return [row for _, row in sorted(newest.items())]


class _CachedCluster:
    """Newest rows of the machines of a cluster.

    Attributes:
        rows: machine to key to row.
        loaded: machines with all their rows.
        size: size in bytes, estimated.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[ResultRow, ResultRow]] = {}
        self.loaded: set[str] = set()
        self.size = 0

    def add(self, row: ResultRow, key: int) -> None:
        """Add a row of a requested machine, unless a newer one is there."""
        rows = self.rows[row[0]]
        before = rows.get(row[:key])
        if before is None or row[-1] >= before[-1]:
            self.size += _row_size(row) - (0 if before is None else _row_size(before))
            rows[row[:key]] = row


def _row_size(row: ResultRow) -> int:
    return _ROW_BYTES + cells_size(row)


def cells_size(cells: Iterable[Any]) -> int:
    """Return the estimated size in bytes of texts, and of lists with everything in them."""
    size = 0
    for cell in cells:
        if isinstance(cell, str):
            size += len(cell)
        elif isinstance(cell, list | tuple):
            size += _LIST_BYTES + _CELL_BYTES * len(cell) + cells_size(cell)
    return size


class NewestRowCache:
    """Newest rows of a small table by key, for the machines that were loaded by a query. Thread-safe.

    Rows that are written during a load and later are added. The order of reports decides which row of a key is newest,
    so rows can be added in any order. Above the limit the largest cluster is dropped, and read again.
    """

    def __init__(self, columns: Sequence[str], key: int, limit: int = _SIZE_LIMIT) -> None:
        """Create an empty cache.

        Args:
            columns: queried columns: the key with the machine first, other columns, and the version column.
            key: number of key columns.
            limit: maximum size in bytes.
        """
        self._columns = columns
        self._key = key
        self._limit = limit
        self._lock = threading.Lock()
        self._clusters: dict[str, _CachedCluster] = {}

    def drop(self) -> None:
        """Drop all entries, because the content of the store is unknown."""
        with self._lock:
            self._clusters.clear()

    def add(self, written: Columns) -> None:
        """Add rows that were written, as columns of the table; rows of machines that are not loaded are left out."""
        with self._lock:
            if not self._clusters:
                return
            rows = zip(*(listed_cells(written[name]) for name in self._columns), strict=True)
            for cluster, row in zip(listed_cells(written["cluster"]), rows, strict=True):
                known = self._clusters.get(cluster)
                if known is not None and row[0] in known.rows:
                    known.add(row, self._key)
            self._bound()

    def fetch(
        self, cluster: str, machines: Collection[str], query: Callable[[Sequence[str]], Sequence[ResultRow]]
    ) -> list[ResultRow]:
        """Return the newest rows of machines in order of the key; `query` returns them for machines not loaded yet."""
        with self._lock:
            known = self._clusters.setdefault(cluster, _CachedCluster())
            rows: list[ResultRow] = []
            missing: list[str] = []
            for machine in dict.fromkeys(machines):
                if machine in known.loaded:
                    rows += known.rows[machine].values()
                else:
                    if machine not in known.rows:
                        known.rows[machine] = {}
                        known.size += _ROW_BYTES
                    missing.append(machine)
        if missing:
            found = query(missing)
            rows += found
            with self._lock:
                if self._clusters.get(cluster) is known:  # it was not dropped meanwhile
                    for row in found:
                        known.add(row, self._key)
                    known.loaded.update(missing)
                    self._bound()
        return sorted(rows, key=itemgetter(slice(self._key)))

    def _bound(self) -> None:
        """Drop the largest clusters above the limit."""
        while sum(one.size for one in self._clusters.values()) > self._limit:
            del self._clusters[max(self._clusters, key=lambda one: self._clusters[one].size)]


class SubjectRow(NamedTuple):
    """Subject of a cluster, with the number that its samples have; see `subjects.py`."""

    machine: str
    view: str
    reader: str
    lane: str
    number: int


SubjectsOf = Callable[[str, Collection[str]], Sequence[SubjectRow]]
"""Returns the subjects of machines of a cluster."""

SUBJECT_COLUMNS, SUBJECT_KEY_SIZE = SubjectRow._fields, len(SubjectRow._fields) - 1
"""Columns of a `NewestRowCache` of subjects, and the size of its key."""

_SELECT_SUBJECTS = f"SELECT {', '.join(SUBJECT_COLUMNS)}"


def fetch_subjects(
    handle: Handle, cache: NewestRowCache | None, cluster: str, machines: Collection[str]
) -> list[SubjectRow]:
    """Return the subjects of machines; `cache` is None if other processes may write to the tables."""

    def query(wanted: Sequence[str]) -> list[ResultRow]:
        parameters = {"cluster": cluster, "machines": list(wanted)}
        return fetch_newest(
            handle, _SELECT_SUBJECTS, SUBJECTS.name, parameters, key=SUBJECT_KEY_SIZE, rank=itemgetter(-1)
        )

    found = query(list(machines)) if cache is None else cache.fetch(cluster, machines, query)
    return [SubjectRow(*row) for row in found]


SUBJECTS_PER_QUERY = 5_000
"""Maximum length of a list of subjects in a query: a server accepts 128 KiB per parameter."""


def subject_slices(numbers: Collection[int]) -> list[list[int]]:
    """Return subject numbers in lists that a query may have."""
    ordered = sorted(numbers)
    return [ordered[start : start + SUBJECTS_PER_QUERY] for start in range(0, len(ordered), SUBJECTS_PER_QUERY)]


Views = dict[tuple[str, str, str], View]
"""(machine, view key, reader) to description."""

_SELECT_VIEWS = """
SELECT machine, view, reader, kind, side, uuid, pci_address, instance, parent, index,
    toUnixTimestamp64Nano(reported_at)
"""


def fetch_views(handle: Handle, parameters: Mapping[str, Any]) -> Views:
    """Return each reader's description of the views of `machines` of a `cluster`."""
    return {
        (machine, key, reader): View(
            kind=ViewKind(kind),
            side=Side(side),
            uuid=uuid,
            pci_address=pci_address,
            instance=instance,
            parent=parent,
            index=index,
        )
        for machine, key, reader, kind, side, uuid, pci_address, instance, parent, index, _ in fetch_newest(
            handle, _SELECT_VIEWS, "views", parameters, key=3, rank=itemgetter(-1)
        )
    }


def cached_views(
    handle: Handle, cache: ContentCache[Views], may_keep: set[tuple[str, str]], cluster: str, machines: Iterable[str]
) -> Views:
    """Return the same as `fetch_views`; only machines that are not cached are queried."""
    subjects = {(cluster, machine) for machine in machines}
    found = cache.known(subjects)
    missing = sorted(machine for _, machine in subjects - found.keys())
    if missing:
        fetched: dict[str, Views] = defaultdict(dict)
        for place, view in fetch_views(handle, {"cluster": cluster, "machines": missing}).items():
            fetched[place[0]][place] = view
        for machine, views in fetched.items():
            found[cluster, machine] = views
            cache.keep(may_keep, (cluster, machine), views, len(views))
    return {place: view for views in found.values() for place, view in views.items()}


class ReadCache(msgspec.Struct, frozen=True):
    """Caches for reads: sets, which never change, and contents of machines, which a write invalidates.

    Attributes:
        absences, texts: sets by id.
        views: view descriptions of machines.
        has_dims: for machines without dimensioned values in their newest samples: whether they ever had any.
    """

    absences: AbsenceSets
    texts: SetCache[dict[str, Value]]
    views: ContentCache[Views]
    has_dims: ContentCache[bool]

    @classmethod
    def empty(cls, *, exclusive: bool) -> Self:
        """Return empty caches; `exclusive` is true if only this store writes to the tables."""
        return cls(SetCache(), SetCache(), ContentCache(enabled=exclusive), ContentCache(enabled=exclusive))

    @contextlib.contextmanager
    def writing(self, accepted: Sequence[AcceptedBatch], tables: Sequence[tuple[str, Any]]) -> Iterator[None]:
        """Write batches, as these Arrow tables by name, within the context."""
        views = {subject for name, table in tables if name == VIEWS.name for subject in machines_in(table)}
        with self.views.writing(views), self.has_dims.writing(machines_with_dims(accepted)):
            yield
