"""Queries of the store that need no memory of its writes; `store.py` has the others."""

import threading
from collections.abc import Collection, Sequence

import msgspec

from gpufleet.fleet.facts.metrics import FACT_METRICS
from gpufleet.model.api.inventory import ChangeQuery, GpuPool, StoredChange, StoredSlot
from gpufleet.model.api.sql import QueryResult, SqlColumn, SqlLimits, SqlViewRecord
from gpufleet.model.stored.holdings import HoldingQuery, StoredJob
from gpufleet.model.stored.kubernetes import ObjectQuery, StoredCollector, StoredObject
from gpufleet.model.stored.readings import (
    EventCount,
    NewestColumns,
    ReadingChangeQuery,
    StoredReadingChange,
    StoredText,
    ViewColumns,
)
from gpufleet.model.stored.samples import (
    EventQuery,
    StoredEvent,
)
from gpufleet.stores.clickhouse.connection.client import Handles, translate_errors
from gpufleet.stores.clickhouse.connection.dsn import Dsn
from gpufleet.stores.clickhouse.facts.labelled import LabelledValues
from gpufleet.stores.clickhouse.facts.newest_columns import MemoryPages, NewestColumnsReader, StoredPages
from gpufleet.stores.clickhouse.facts.projections import ProjectionCache
from gpufleet.stores.clickhouse.facts.reports import fetch_duplicate_views, fetch_event_counts, find_duplicate_views
from gpufleet.stores.clickhouse.machines.cluster_objects import fetch_cluster_objects, fetch_collectors
from gpufleet.stores.clickhouse.machines.events import fetch_events
from gpufleet.stores.clickhouse.machines.holdings import fetch_slurm_jobs
from gpufleet.stores.clickhouse.machines.inventory import fetch_changes, fetch_pools, fetch_slots
from gpufleet.stores.clickhouse.machines.reading_changes import fetch_reading_changes
from gpufleet.stores.clickhouse.machines.status import (
    fetch_reporters_of_text,
    fetch_reporters_of_view,
    fetch_shared_gpus,
    fetch_texts_of_machines,
    fetch_texts_of_views,
    fetch_views_with_prefix,
)
from gpufleet.stores.clickhouse.samples.newest import NewestSamples
from gpufleet.stores.clickhouse.sql.statement import limit_settings, run_statement
from gpufleet.stores.clickhouse.sql.views import VIEWS

_STATS = """
SELECT table, sum(rows), sum(bytes_on_disk), count() FROM system.parts
WHERE database = currentDatabase() AND active GROUP BY table ORDER BY table
"""


class TableStats(msgspec.Struct, frozen=True):
    """Size of a table: rows (before duplicates collapse), bytes on disk, and parts."""

    rows: int
    bytes: int
    parts: int


class StoreQueries:
    """Read-only part of a store in ClickHouse tables. Any thread may call it."""

    def __init__(self, dsn: Dsn, handles: Handles, limits: SqlLimits) -> None:
        self._dsn = dsn
        self._handles = handles
        self._limits = limits
        self._selecting = threading.Lock()
        self._projections = ProjectionCache()
        self._labelled = LabelledValues(FACT_METRICS)

    def _complete_latest(self) -> None:
        """Write the rows that `latest` lacks before a query of the table."""
        raise NotImplementedError

    def _loaded_newest(self) -> NewestSamples | None:
        """Return the newest samples in memory, or None if another process may write to the tables."""
        raise NotImplementedError

    def reporters_of_view(self, cluster: str, view: str) -> tuple[str, ...]:
        """Return the machines that ever reported a view; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: reporters of a view"):
            return fetch_reporters_of_view(self._handles.reader, cluster, view)

    def shared_gpus(self, cluster: str) -> dict[str, tuple[str, ...]]:
        """Return the GPUs that several machines reported; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: GPUs of several machines"):
            return fetch_shared_gpus(self._handles.reader, cluster)

    def views_with_prefix(self, cluster: str, prefixes: Sequence[str], limit: int) -> tuple[tuple[str, str], ...]:
        """Return the views whose key starts with one of these; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: views with a prefix"):
            return fetch_views_with_prefix(self._handles.reader, cluster, prefixes, limit)

    def reporters_of_text(self, cluster: str, metric: str, text: str) -> tuple[str, ...]:
        """Return the machines with this text in a newest sample; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: reporters of a text"):
            self._complete_latest()
            return fetch_reporters_of_text(self._handles.reader, cluster, metric, text)

    def slurm_jobs(self, query: HoldingQuery) -> tuple[StoredJob, ...]:
        """Return jobs of known SLURM clusters; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: SLURM jobs"):
            return fetch_slurm_jobs(self._handles.reader, query)

    def cluster_objects(self, query: ObjectQuery) -> tuple[StoredObject, ...]:
        """Return matching objects of Kubernetes; see `ports.ClusterStore`."""
        with translate_errors(f"{self._dsn.shown}: cluster objects"):
            return fetch_cluster_objects(self._handles.reader, query)

    def collectors(self, clusters: Sequence[str]) -> dict[str, tuple[StoredCollector, ...]]:
        """Return the newest reports of collectors; see `ports.ClusterStore`."""
        with translate_errors(f"{self._dsn.shown}: collectors"):
            return fetch_collectors(self._handles.reader, clusters)

    def schema_version(self) -> int:
        """Return the schema version of the tables, 0 if there are none. Read-only."""
        with translate_errors(f"{self._dsn.shown}: schema version"):
            if not self._handles.reader.query("EXISTS TABLE schema_migrations").result_rows[0][0]:
                return 0
            return int(self._handles.reader.query("SELECT max(version) FROM schema_migrations").result_rows[0][0])

    def check(self) -> None:
        """Raise StoreError unless the store answers a small query; see `ports.StoreAdmin`."""
        self.schema_version()

    def is_empty(self) -> bool:
        """Return whether the store has no samples. Read-only."""
        return not {"samples", "latest"} & self.stats().keys()

    def slots(
        self, cluster: str, machines: Sequence[str], *, view: str | None = None, address: str | None = None
    ) -> tuple[StoredSlot, ...]:
        """Return GPUs by PCI slot; see `ports.HistoryStore`."""
        with translate_errors(f"{self._dsn.shown}: slots"):
            self._complete_latest()
            return fetch_slots(self._handles.reader, cluster, machines, view, address)

    def changes(self, query: ChangeQuery) -> tuple[StoredChange, ...]:
        """Return moved and replaced GPUs; see `ports.HistoryStore`."""
        with translate_errors(f"{self._dsn.shown}: changes"):
            return fetch_changes(self._handles.reader, query)

    def reading_changes(self, query: ReadingChangeQuery) -> tuple[StoredReadingChange, ...]:
        """Return changed texts and integers of a machine; see `ports.HistoryStore`."""
        with translate_errors(f"{self._dsn.shown}: changes of readings"):
            return fetch_reading_changes(self._handles.reader, query)

    def texts_of_views(self, cluster: str, metric: str, text: str) -> tuple[StoredText, ...]:
        """Return the texts of views over time; see `ports.HistoryStore`."""
        with translate_errors(f"{self._dsn.shown}: texts of views"):
            return fetch_texts_of_views(self._handles.reader, cluster, metric, text)

    def texts_of_machines(self, cluster: str, machines: Sequence[str], metric: str) -> tuple[StoredText, ...]:
        """Return the texts of machines over time; see `ports.HistoryStore`."""
        with translate_errors(f"{self._dsn.shown}: texts of machines"):
            return fetch_texts_of_machines(self._handles.reader, cluster, machines, metric)

    def pools(self, cluster: str | None = None) -> tuple[GpuPool, ...]:
        """Return groups of equal GPUs; see `ports.FleetStore`."""
        with translate_errors(f"{self._dsn.shown}: pools"):
            self._complete_latest()
            return fetch_pools(self._handles.reader, cluster)

    def newest_columns(self, cluster: str, metrics: Collection[str]) -> NewestColumns:
        """Return the newest values of a cluster; see `ports.FactStore`.

        Values with dimensions are known if this process wrote them, and only those that the facts need.
        """
        with translate_errors(f"{self._dsn.shown}: newest columns"):
            handle, newest = self._handles.reader, self._loaded_newest()
            samples = None if newest is None else newest.pages(cluster)
            if samples is None:
                self._complete_latest()
            pages = StoredPages(handle, cluster) if samples is None else MemoryPages(samples, cluster)
            return NewestColumnsReader(handle, pages, self._projections, self._labelled, cluster, metrics).read()

    def duplicate_views(self, since: int) -> ViewColumns:
        """Return GPU UUIDs of several machines; see `ports.FactStore`."""
        with translate_errors(f"{self._dsn.shown}: duplicate views"):
            newest = self._loaded_newest()
            found = None if newest is None else find_duplicate_views(newest, since)
            if found is None:
                self._complete_latest()
                found = fetch_duplicate_views(self._handles.reader, since)
            return found

    def event_counts(self, cluster: str, kinds: Collection[str], since: int) -> tuple[EventCount, ...]:
        """Return counts of events; see `ports.FactStore`."""
        with translate_errors(f"{self._dsn.shown}: event counts"):
            return fetch_event_counts(self._handles.reader, cluster, kinds, since)

    def events(self, query: EventQuery) -> tuple[StoredEvent, ...]:
        """Return matching events, newest first; see `ports.HistoryStore`."""
        with translate_errors(f"{self._dsn.shown}: events"):
            return fetch_events(self._handles.reader, query)

    def select(self, statement: str) -> QueryResult:
        """Run a user's statement, one at a time; see `ports.SqlStore`."""
        with self._selecting, translate_errors(f"{self._dsn.shown}: SQL statement"):
            self._complete_latest()
            return run_statement(self._handles.restricted(limit_settings(self._limits)), statement)

    def sql_views(self) -> tuple[SqlViewRecord, ...]:
        """Return the views that a statement may read; see `ports.SqlStore`."""
        return tuple(
            SqlViewRecord(
                name=view.name,
                help=view.help,
                columns=tuple(SqlColumn(name=column.name, help=column.help) for column in view.columns),
            )
            for view in VIEWS
        )

    def stats(self) -> dict[str, TableStats]:
        """Return table name to size, without empty tables. Takes about a millisecond."""
        with translate_errors(f"{self._dsn.shown}: stats"):
            rows = self._handles.reader.query(_STATS).result_rows
        return {name: TableStats(row_count, size, parts) for name, row_count, size, parts in rows}
