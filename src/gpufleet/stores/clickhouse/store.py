"""Implementation of `ports.Store` over the ClickHouse dialect, embedded or on a server."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from secrets import token_hex
from typing import Any, Self, TypeVar

import numpy as np

from gpufleet.model.api.sql import SqlLimits
from gpufleet.model.api.usage import DeviceInterval, DeviceUsage
from gpufleet.model.declarations import DeclaredGpus, DeclaredResource
from gpufleet.model.errors import StoreError, StoreStartingError, UnstorableError
from gpufleet.model.reading import Provenance
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.findings import NumberedTransition
from gpufleet.model.stored.holdings import HoldingQuery, StoredHolderStates, StoredHolding
from gpufleet.model.stored.retention import UNLIMITED, Retention
from gpufleet.model.stored.samples import (
    AcceptedBatch,
    HourRollup,
    KnownGpus,
    ProcessQuery,
    SampleSummary,
    StoredProcesses,
    StoredSample,
    StoredSeries,
)
from gpufleet.stores.clickhouse.connection.client import Handles, open_connector, translate_errors
from gpufleet.stores.clickhouse.connection.dsn import Dsn, parse_dsn
from gpufleet.stores.clickhouse.connection.embedded import FolderLock
from gpufleet.stores.clickhouse.connection.lease import Lease
from gpufleet.stores.clickhouse.facts.history import transition_columns
from gpufleet.stores.clickhouse.machines.counts import GpuCounts
from gpufleet.stores.clickhouse.machines.declarations import fetch_declared
from gpufleet.stores.clickhouse.machines.declared_values import MAX_ROWS, DeclaredValues
from gpufleet.stores.clickhouse.machines.holder_states import (
    HOLDER_STATE_COLUMNS,
    HOLDER_STATE_KEY_SIZE,
    fetch_holder_states,
)
from gpufleet.stores.clickhouse.machines.holdings import fetch_holdings, written_holdings
from gpufleet.stores.clickhouse.machines.present_holdings import PresentHoldings
from gpufleet.stores.clickhouse.machines.processes import fetch_processes
from gpufleet.stores.clickhouse.machines.status import (
    READER_STATUS_COLUMNS,
    READER_STATUS_KEY,
    fetch_readers,
)
from gpufleet.stores.clickhouse.machines.summaries import (
    NUMA_COLUMNS,
    NUMA_KEY_SIZE,
    fetch_numa_nodes,
    fetch_pci_gpu_counts,
    fetch_summaries,
    load_gpu_counts,
)
from gpufleet.stores.clickhouse.rollup.hours import HourMarks, hours_touched
from gpufleet.stores.clickhouse.rollup.job import fetch_due_hour, roll_up_hour
from gpufleet.stores.clickhouse.rollup.tables import TOUCHED_HOURS, all_tables, apply_retention
from gpufleet.stores.clickhouse.rollup.usage import fetch_device_usage
from gpufleet.stores.clickhouse.samples.blocks import value_columns
from gpufleet.stores.clickhouse.samples.cache import (
    SUBJECT_COLUMNS,
    SUBJECT_KEY_SIZE,
    NewestRowCache,
    ReadCache,
    SubjectRow,
    fetch_subjects,
)
from gpufleet.stores.clickhouse.samples.insert import InsertColumns, build_columns, complete_insert
from gpufleet.stores.clickhouse.samples.latest import fetch_latest
from gpufleet.stores.clickhouse.samples.loading import fetch_newest_pages, with_subjects
from gpufleet.stores.clickhouse.samples.newest import NewestSamples
from gpufleet.stores.clickhouse.samples.series import fetch_series
from gpufleet.stores.clickhouse.samples.snapshot import PART_ROWS, LatestSnapshot, fetch_position, recover_latest
from gpufleet.stores.clickhouse.samples.subjects import CHUNK, SubjectNumbers, load_subjects
from gpufleet.stores.clickhouse.schema.arrow import arrow_table
from gpufleet.stores.clickhouse.schema.columns import Columns, dictionary_of
from gpufleet.stores.clickhouse.schema.migrate import migrate
from gpufleet.stores.clickhouse.schema.sets import WriteCache, load_known
from gpufleet.stores.clickhouse.schema.tables import (
    DECLARED,
    DIM_SAMPLES,
    FINDING_TRANSITIONS,
    HOLDER_STATES,
    HOLDINGS,
    INVENTORY,
    LATEST,
    LATEST_POSITION,
    READER_STATUS,
    SUBJECT_NUMBER,
    SUBJECTS,
    Engine,
)
from gpufleet.stores.clickhouse.sql.queries import StoreQueries

_DEFAULT_LIMITS = SqlLimits()

LOAD_WAIT_SECONDS = 1.0
"""Time that a query waits for a load of the newest samples by another thread."""

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class ClickHouseStore(StoreQueries):
    """Store in ClickHouse tables: in a folder through chDB, or on a server.

    The embedded engine allows one process per folder and one folder per process, and does not work after a fork.
    """

    def __init__(
        self,
        dsn: Dsn,
        handles: Handles,
        lock: FolderLock | None,
        limits: SqlLimits,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(dsn, handles, limits)
        self._lock = lock
        self._writing = threading.Lock()
        self._loading = threading.Lock()
        self._known: WriteCache | None = None
        self._numbers: SubjectNumbers | None = None
        self._snapshot: LatestSnapshot | None = None
        self._counts: GpuCounts | None = None
        self._incomplete_counts: GpuCounts | None = None
        self._declared: DeclaredValues | None = None
        self._newest = NewestSamples()
        self._readers = NewestRowCache(READER_STATUS_COLUMNS, READER_STATUS_KEY)
        self._holder_states = NewestRowCache(HOLDER_STATE_COLUMNS, HOLDER_STATE_KEY_SIZE)
        self._slots = NewestRowCache(NUMA_COLUMNS, NUMA_KEY_SIZE)
        self._subjects = NewestRowCache(SUBJECT_COLUMNS, SUBJECT_KEY_SIZE)
        self._holdings = PresentHoldings()
        self._rows = {
            SUBJECTS.name: self._subjects,
            READER_STATUS.name: self._readers,
            HOLDER_STATES.name: self._holder_states,
            INVENTORY.name: self._slots,
        }
        self._tables = {table.name: table for table in all_tables()}
        self._cache = ReadCache.empty(exclusive=lock is not None)  # on a server another hub may write
        self._marks = HourMarks(monotonic)
        self._retention = UNLIMITED
        self._lease: Lease | None = None
        self._may_lack_lease = False
        self._monotonic = monotonic

    @classmethod
    def open(
        cls, dsn: str, limits: SqlLimits = _DEFAULT_LIMITS, monotonic: Callable[[], float] = time.monotonic
    ) -> Self:
        """Open the store at a DSN: `chdb:///absolute/folder` or `clickhouse://user:password@host:port/database`.

        `limits` apply to users' SQL statements; `monotonic` is a clock of seconds.

        Raises:
            StoreError: if the DSN is invalid, a library is missing, the machine cannot run the engine, another process
                uses the folder, or the server does not respond.
        """
        parsed = parse_dsn(dsn)
        connect = open_connector(parsed)
        lock = FolderLock(parsed.path) if parsed.path is not None else None
        try:
            return cls(parsed, Handles(parsed, connect), lock, limits, monotonic)
        except StoreError:
            if lock is not None:
                lock.release()
            raise

    def migrate(self, retention: Retention | None = None, hub: str = "") -> None:
        """Migrate the tables, forward only; see `ports.StoreAdmin`."""
        self._handles.check()
        with self._writing, translate_errors(f"{self._dsn.shown}: migration"):
            if hub and self._dsn.path is None:
                lease = Lease(hub, self._dsn.shown, self._monotonic)
                lease.take(self._handles.writer, self._dsn.engine)
                self._lease = lease
            migrate(self._handles.long_running, tuple(self._tables.values()), self._dsn.engine)
            if retention is not None:
                apply_retention(self._handles.long_running, retention)
                self._retention = retention
            if self._lock is not None and self._snapshot is None:
                position = recover_latest(self._handles.long_running, fetch_position(self._handles.long_running))
                self._write_position(position)
                self._snapshot = LatestSnapshot(position, self._monotonic)

    def write(self, accepted: Sequence[AcceptedBatch], token: str, *, is_retry: bool = False) -> None:
        """Write all batches, durably, before returning; see `ports.SampleWriter`.

        A write is not a transaction: after a partial failure the caller writes the same batches again. The token
        prevents a double insert while a server still processes the first. Except with Replicated engines, a retry
        compares rows: there Keeper commits part and token together, and parts of other replicas arrive later.
        """
        self._handles.check()
        with self._writing:
            self._renew_lease()
            if self._known is None:
                self._write_newest()
                with translate_errors(f"{self._dsn.shown}: known content"):
                    self._known = load_known(self._handles.writer)
            known, self._known = self._known, None  # dropped unless everything below succeeds
            # Everything is converted before the first insert, so an unstorable batch writes nothing.
            columns = self._build(accepted, known)
            tables = self._arrow_tables(columns)
            with translate_errors(f"{self._dsn.shown}: insert into {TOUCHED_HOURS.name}"):
                self._marks.mark(self._handles.writer, hours_touched(accepted))
            try:
                with self._cache.writing(accepted, tables):
                    for name, table in tables:
                        if name == SUBJECTS.name:
                            self._insert_subjects(table)
                        else:
                            self._insert(name, table, f"{token}/{name}", is_retry=is_retry)
                    self._add_to_memory(columns)
                    self._write_snapshot(columns)
                    if DIM_SAMPLES.name in columns.tables:
                        subjects = np.asarray(columns.tables[DIM_SAMPLES.name][SUBJECT_NUMBER.name])
                        self._labelled.add(accepted, subjects, self._loaded_numbers())
            except BaseException:  # any part may have been written
                self._drop_rows()
                raise
            known.trim()
            self._known = known

    def _build(self, accepted: Sequence[AcceptedBatch], known: WriteCache) -> InsertColumns:
        """Return what to insert; after an unexpected error the numbers of subjects are loaded again."""
        numbers, self._numbers = self._loaded_numbers(), None
        try:
            columns = build_columns(accepted, known, numbers)
        except UnstorableError:  # raised outside the numbering; numbers that were allotted are stored later
            self._numbers = numbers
            raise
        self._numbers = numbers
        return columns

    def _insert_subjects(self, table: Any) -> None:
        """Insert new subjects. No retry has their numbers, so each chunk has a token of its own.

        The lease is renewed before each chunk, as another hub leaves out one chunk only, and after the last: another
        hub that gave these subjects numbers has the lease.
        """
        numbers, self._numbers = self._loaded_numbers(), None  # dropped if a chunk fails: it may still appear
        for start in range(0, table.num_rows, CHUNK):
            self._renew_lease(always=True)
            self._insert(SUBJECTS.name, table.slice(start, CHUNK), token_hex(16), is_retry=False)
        self._renew_lease(always=True)
        numbers.confirm_new()
        self._numbers = numbers

    def _insert(self, name: str, table: Any, token: str, *, is_retry: bool) -> None:
        with translate_errors(f"{self._dsn.shown}: insert into {name}"):
            self._handles.writer.insert_arrow(name, table, settings={"insert_deduplication_token": token})
            if is_retry and self._dsn.engine is not Engine.REPLICATED:
                complete_insert(self._handles.writer, self._tables[name], table, token)

    def _write_snapshot(self, written: InsertColumns) -> None:
        """Write the rows of `latest` that must be written at once, and a part of a pass that is due."""
        rows, snapshot = written.tables.get(LATEST.name), self._snapshot
        if rows is None or snapshot is None:
            return
        received_at = np.asarray(rows["received_at"])
        at_once = (received_at < snapshot.horizon) | self._newest.omits(dictionary_of(rows["cluster"]))
        snapshot.note(int(received_at.max()))
        if at_once.any():
            table = arrow_table(LATEST, {**rows, **value_columns(written.newest)}).filter(at_once)
            self._insert(LATEST.name, table, token_hex(16), is_retry=False)
        if snapshot.is_due:
            if snapshot.goal is None:
                snapshot.begin()
            self._write_part(snapshot)

    def _write_newest(self) -> None:
        """Write all rows that `latest` lacks, while nothing else is written."""
        if self._snapshot:
            self._snapshot.begin()
            while self._snapshot.goal is not None:
                self._write_part(self._snapshot)

    def _write_part(self, snapshot: LatestSnapshot) -> None:
        """Write up to `PART_ROWS` rows of a pass, or finish it."""
        assert snapshot.goal is not None
        if (losses := self._newest.losses) > snapshot.recovered_losses:  # `samples` has the rows
            with translate_errors(f"{self._dsn.shown}: recovery of {LATEST.name}"):
                recover_latest(self._handles.writer, snapshot.position)
            snapshot.recovered_losses = losses
        rows = self._newest.copy_unsaved(snapshot.place, PART_ROWS)
        if rows is None:
            self._write_position(snapshot.goal)
            snapshot.finish()
            return
        self._insert(LATEST.name, arrow_table(LATEST, rows.columns), token_hex(16), is_retry=False)
        self._newest.mark_saved(rows)
        snapshot.place = rows.end

    def _write_position(self, position: int) -> None:
        row: Columns = {"name": [LATEST.name], "received_at": [position]}
        self._insert(LATEST_POSITION.name, arrow_table(LATEST_POSITION, row), token_hex(16), is_retry=False)

    def _complete_latest(self) -> None:
        """Write the rows that `latest` lacks before a query of the table."""
        snapshot = self._snapshot
        if not snapshot:
            return
        with self._writing:
            snapshot.begin()
        while snapshot.goal is not None:
            with self._writing:  # samples are written in between
                if snapshot.goal is not None:
                    self._write_part(snapshot)

    def _arrow_tables(self, columns: InsertColumns) -> list[tuple[str, Any]]:
        """Return the tables to insert; an embedded store writes `latest` from memory."""
        tables: dict[str, Any] = {}
        for name, data in columns.tables.items():
            if name != LATEST.name:
                tables[name] = arrow_table(self._tables[name], data)
            elif self._snapshot is None:
                # `latest` has the rows of `samples`, so their key columns are shared.
                cells = {**data, **value_columns(columns.newest)}
                tables[name] = arrow_table(LATEST, cells, reuse=tables["samples"])
        return list(tables.items())

    def latest(self, cluster: str, machine: str, view: str | None = None) -> tuple[StoredSample, ...]:
        """Return the newest sample per view, reader and lane, in that order; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: latest"):
            return self._fetch_latest(cluster, [machine], view).get(machine, ())

    def latest_of(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[StoredSample, ...]]:
        """Return the newest samples of many machines; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: latest of many"):
            return self._fetch_latest(cluster, machines)

    def _fetch_latest(
        self, cluster: str, machines: Sequence[str], view: str | None = None
    ) -> dict[str, tuple[StoredSample, ...]]:
        newest, subjects_of = self._exclusive(self._newest), self._subjects_of
        reader, complete = self._handles.reader, self._complete_latest
        return fetch_latest(reader, self._cache, newest, complete, subjects_of, cluster, machines, view)

    def sample_summaries(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[SampleSummary, ...]]:
        """Return the newest samples of many machines without values; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: sample summaries"):
            reader, newest = self._handles.reader, self._exclusive(self._newest)
            return fetch_summaries(reader, self._cache.views, newest, self._complete_latest, cluster, machines)

    def reporting_gpus(self, since: int, until: int) -> dict[str, int]:
        """Return cluster to reporting GPUs; see `ports.FleetStore`."""
        return self._loaded_counts().reporting(since, until)

    def known_gpus(self, without: Sequence[str] = ()) -> dict[str, KnownGpus]:
        """Return cluster to the number of its GPUs; see `ports.FleetStore`."""
        return self._loaded_counts().known(without)

    def declared_gpus(self, since: int, without: Sequence[str] = ()) -> dict[str, tuple[DeclaredGpus, ...]]:
        """Return cluster to the GPU counts that Kubernetes declares; see `ports.FleetStore`."""
        return self._loaded_declared().gpus(since, without, self._loaded_counts())

    def declared_resources(
        self, cluster: str, machines: Sequence[str], since: int
    ) -> dict[str, tuple[DeclaredResource, ...]]:
        """Return the GPUs that Kubernetes declares for machines; see `ports.SampleStore`."""
        return self._loaded_declared().resources(cluster, machines, since)

    def pci_gpu_counts(self, cluster: str, machines: Sequence[str]) -> dict[str, int]:
        """Return machine id to the number of GPUs on its PCI buses; see `ports.SampleStore`."""
        if self._is_exclusive:
            return self._loaded_counts().pci_gpus(cluster, machines)
        with translate_errors(f"{self._dsn.shown}: PCI GPU counts"):
            return fetch_pci_gpu_counts(self._handles.reader, cluster, machines)

    def numa_nodes(self, cluster: str, machines: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return machine id to the NUMA nodes of its PCI slots; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: NUMA nodes"):
            return fetch_numa_nodes(self._handles.reader, self._exclusive(self._slots), cluster, machines)

    def holdings(self, query: HoldingQuery) -> tuple[StoredHolding, ...]:
        """Return matching holdings; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: holdings"):
            return fetch_holdings(self._handles.reader, self._exclusive(self._holdings), query)

    def holder_states(
        self, cluster: str, machines: Sequence[str], since: int
    ) -> dict[str, tuple[StoredHolderStates, ...]]:
        """Return the newest reports of holder states; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: holder states"):
            cache = self._exclusive(self._holder_states)
            return fetch_holder_states(self._handles.reader, cache, cluster, machines, since)

    def readers(self, cluster: str, machine: str) -> tuple[ReaderStatus, ...]:
        """Return the last reported status of each reader of a machine."""
        with translate_errors(f"{self._dsn.shown}: readers"):
            return fetch_readers(self._handles.reader, self._exclusive(self._readers), cluster, [machine]).get(
                machine, ()
            )

    def readers_of(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[ReaderStatus, ...]]:
        """Return the last reported reader status of many machines."""
        with translate_errors(f"{self._dsn.shown}: readers of many"):
            return fetch_readers(self._handles.reader, self._exclusive(self._readers), cluster, machines)

    def series(
        self,
        cluster: str,
        machine: str,
        metrics: Sequence[str],
        start: int,
        end: int,
        step: int,
        provenance: Provenance = Provenance.HOST_LOCAL_PROBE,
        views: Collection[str] | None = None,
        xids_since: int = 0,
    ) -> StoredSeries:
        """Return values over time, at most 11,000 steps; see `ports.HistoryStore`."""
        handle, absences, retention = self._handles.reader, self._cache.absences, self._retention
        with translate_errors(f"{self._dsn.shown}: series"):
            subjects = self._subjects_of(cluster, [machine])
            return fetch_series(
                handle, absences, subjects, metrics, start, end, step, provenance, retention, views, xids_since
            )

    def write_findings(self, transitions: Sequence[NumberedTransition]) -> None:
        """Write transitions of findings, durably, before returning; see `ports.FactStore`."""
        if not transitions:
            return
        self._handles.check()
        with self._writing:
            self._renew_lease()
            table = arrow_table(FINDING_TRANSITIONS, transition_columns(transitions))
            self._insert(FINDING_TRANSITIONS.name, table, token_hex(16), is_retry=False)

    def processes(self, query: ProcessQuery) -> tuple[StoredProcesses, ...]:
        """Return the newest process lists of a machine; see `ports.SampleStore`."""
        with translate_errors(f"{self._dsn.shown}: processes"):
            return fetch_processes(self._handles.reader, self._cache.absences, query)

    def roll_up(self, now: int, stopped: Callable[[], bool] = lambda: False) -> HourRollup | None:
        """Compute the rollups of the oldest due hour; see `ports.StoreAdmin`."""
        with translate_errors(f"{self._dsn.shown}: rollup"):
            with self._writing:  # so every mark seen belongs to a completed write
                self._renew_lease()
                due = fetch_due_hour(self._handles.reader, now, self._retention, self._marks.is_quiet)
                if due is not None:
                    self._marks.expire(due.hour)
            return roll_up_hour(self._handles.long_running, due, self._retention, stopped) if due is not None else None

    def device_usage(self, intervals: Sequence[DeviceInterval]) -> list[DeviceUsage]:
        """Return the usage of each interval; see `ports.HistoryStore`."""
        with translate_errors(f"{self._dsn.shown}: usage"):
            reader, subjects_of = self._handles.reader, self._subjects_of
            return fetch_device_usage(reader, subjects_of, intervals, self._retention, time.time_ns())

    def abort_requests(self) -> None:
        """Make waiting and later requests to a server fail; see `ports.StoreAdmin`."""
        self._handles.abort_requests()

    def close(self) -> None:
        """Close; completed writes persist. A second close has no effect."""
        with self._writing:
            self._write_last_rows()
            if self._lease is not None:
                with (
                    contextlib.suppress(StoreError),  # then the lease expires
                    translate_errors(self._dsn.shown),
                    self._handles.final() as handle,
                ):
                    self._lease.release(handle)
                self._lease = None
            self._handles.close()
            if self._lock is not None:
                self._lock.release()

    def _write_last_rows(self) -> None:
        if self._snapshot is None:
            return
        try:
            self._write_newest()
            self._write_position(self._snapshot.last_position)
        except StoreError as error:  # a full disk, for example
            LOG.warning("%s; the next start writes these rows", error)
        self._snapshot = None

    def _renew_lease(self, *, always: bool = False) -> None:
        if self._lease is None:
            return
        try:
            with translate_errors(f"{self._dsn.shown}: lease renewal"):
                self._lease.renew(self._handles.writer, always=always)
        except StoreError:
            self._may_lack_lease = True
            self._drop_memory()  # another hub may have written since
            self._numbers = None
            raise
        self._may_lack_lease = False

    def _add_to_memory(self, written: InsertColumns) -> None:
        """Add written rows to the caches."""
        for name, cache in self._rows.items():
            if name in written.tables:
                cache.add(written.tables[name])
        if HOLDINGS.name in written.tables:
            self._holdings.add(written_holdings(written.tables[HOLDINGS.name]))
        if self._declared is not None and DECLARED.name in written.tables:
            self._declared.add(written.tables[DECLARED.name])
            if len(self._declared) > MAX_ROWS:
                self._declared = None
        try:
            for counts in (self._counts, self._incomplete_counts):
                if counts is not None:
                    counts.add_written(written.tables, written.newest)
            if LATEST.name in written.tables:
                numbers = np.asarray(written.tables["samples"][SUBJECT_NUMBER.name])
                rows, is_unsaved = written.tables[LATEST.name], self._snapshot is not None
                self._newest.add(numbers, rows, written.newest, is_unsaved=is_unsaved)
        except BaseException:  # some of the rows may be there
            self._drop_newest()
            raise

    def _drop_memory(self) -> None:
        """Drop everything that is in memory. It is loaded again when it is needed."""
        self._drop_newest()
        self._drop_rows()

    def _drop_newest(self) -> None:
        """Drop newest samples and GPU counts."""
        self._counts = self._incomplete_counts = None
        self._newest.drop()

    def _drop_rows(self) -> None:
        """Drop the caches of other tables.

        After a failed write, newest samples and GPU counts are kept. The repetition of the write adds its rows.
        """
        self._declared = None
        self._holdings.drop()
        for cache in self._rows.values():
            cache.drop()
        self._labelled.drop()

    @property
    def _is_exclusive(self) -> bool:
        """Whether no other process may write to the tables."""
        return self._lock is not None or (self._lease is not None and not self._may_lack_lease)

    def _exclusive(self, memory: T) -> T | None:
        """Return a cache, or None if another process may write to the tables."""
        return memory if self._is_exclusive else None

    def load(self) -> None:
        """Load GPU counts, then newest samples, into memory; see `ports.StoreAdmin`."""
        self.load_counts()
        if self._is_exclusive:
            with self._loading:
                self._load_newest()

    def load_counts(self) -> None:
        """Load GPU counts into memory; see `ports.StoreAdmin`."""
        self._handles.check()
        if self._is_exclusive:
            with self._loading:
                self._load_counts()

    def _load_counts(self) -> None:
        """Load GPU counts, one thread at a time. Writes go on meanwhile, as for the newest samples."""
        while self._counts is None:
            counts = GpuCounts()
            with self._writing:
                self._write_newest()
                self._incomplete_counts = counts
            with translate_errors(f"{self._dsn.shown}: load of GPU counts"):
                load_gpu_counts(self._handles.reader, counts)
            with self._writing:
                if self._incomplete_counts is counts:  # not dropped meanwhile
                    self._counts, self._incomplete_counts = counts, None

    def _load_newest(self) -> None:
        """Load newest samples, one thread at a time.

        Writes go on meanwhile, and add their rows: the order of reports decides.
        """
        while not self._newest.content.is_loaded:
            with self._writing:
                self._write_newest()
                numbers, content = self._loaded_numbers(), self._newest.content
            with translate_errors(f"{self._dsn.shown}: load of newest samples"):
                for page in fetch_newest_pages(self._handles.reader):
                    of_subjects, (head, groups) = with_subjects(page, numbers.find(page[0]))
                    self._newest.add(of_subjects, head, groups, content)
            content.is_loaded = True  # it is no longer the present content if it was dropped meanwhile

    def _loaded_counts(self) -> GpuCounts:
        """Return the GPU counts, from memory while no other process may write.

        Raises:
            StoreStartingError: if another thread loads them, and does not end soon.
        """
        self._handles.check()
        if not self._is_exclusive:
            counts = GpuCounts()
            with translate_errors(f"{self._dsn.shown}: GPU counts"):
                load_gpu_counts(self._handles.reader, counts)
            return counts
        while (cached := self._counts) is None:
            with self._loading_soon():
                self._load_counts()
        return cached

    def _loaded_newest(self) -> NewestSamples | None:
        """Return the newest samples of all machines, or None while another process may write.

        Raises:
            StoreStartingError: as for the counts.
        """
        if not self._is_exclusive:
            return None
        while not self._newest.content.is_loaded:
            with self._loading_soon():
                self._load_newest()
        return self._newest

    @contextlib.contextmanager
    def _loading_soon(self) -> Iterator[None]:
        """Wait for the end of another thread's load. Raises StoreStartingError if it does not end soon."""
        if not self._loading.acquire(timeout=LOAD_WAIT_SECONDS):
            raise StoreStartingError(f"{self._dsn.shown}: the newest samples are being loaded: retry in seconds")
        try:
            yield
        finally:
            self._loading.release()

    def _loaded_declared(self) -> DeclaredValues:
        """Return the declarations of Kubernetes, cached while no other process may write."""
        self._handles.check()
        cached = self._declared
        if cached is not None:
            return cached
        with self._writing:  # as for the counts
            if self._declared is None:
                with translate_errors(f"{self._dsn.shown}: declarations"):
                    declared = fetch_declared(self._handles.reader)
                if not self._is_exclusive or len(declared) > MAX_ROWS:
                    return declared
                self._declared = declared
            return self._declared

    def _subjects_of(self, cluster: str, machines: Collection[str]) -> Sequence[SubjectRow]:
        return fetch_subjects(self._handles.reader, self._exclusive(self._subjects), cluster, machines)

    def _loaded_numbers(self) -> SubjectNumbers:
        if self._numbers is None:
            with translate_errors(f"{self._dsn.shown}: numbers of subjects"):
                numbers = load_subjects(self._handles.writer, tuple(self._tables.values()))
            self._renew_lease(always=True)  # loading millions of them takes a minute
            self._numbers = numbers
        return self._numbers
