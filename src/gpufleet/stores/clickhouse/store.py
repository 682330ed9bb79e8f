"""The store: `ports.Store` over a ClickHouse dialect, embedded or on a server."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec

from gpufleet.model.declared import DeclaredGpus, DeclaredResource
from gpufleet.model.errors import StoreError
from gpufleet.model.holding import Holding
from gpufleet.model.inventory import ChangeQuestion, GpuPool, StoredChange, StoredSlot
from gpufleet.model.provenance import Provenance
from gpufleet.model.retention import FOR_EVER, Retention
from gpufleet.model.sql import Selected, SqlColumn, SqlLimits, SqlViewRecord
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored import (
    Accepted,
    EventQuestion,
    KnownGpus,
    ProcessQuestion,
    RolledHour,
    Standing,
    StoredEvent,
    StoredProcesses,
    StoredSample,
    StoredSeries,
)
from gpufleet.model.usage import Stretch, Worked
from gpufleet.stores.clickhouse.arrow import arrow_table
from gpufleet.stores.clickhouse.client import Handle, Handles, connector, translated
from gpufleet.stores.clickhouse.columns import Columns
from gpufleet.stores.clickhouse.counts import GpuCounts
from gpufleet.stores.clickhouse.declared import fetch_declared_gpus, fetch_declared_of
from gpufleet.stores.clickhouse.dsn import Dsn, parse_dsn
from gpufleet.stores.clickhouse.events import fetch_events
from gpufleet.stores.clickhouse.find import fetch_tellers_of_text, fetch_tellers_of_view
from gpufleet.stores.clickhouse.fleet import fetch_counts, fetch_gpus_on_buses, fetch_standings
from gpufleet.stores.clickhouse.holdings import fetch_holdings
from gpufleet.stores.clickhouse.inventory import fetch_changes, fetch_pools, fetch_slots
from gpufleet.stores.clickhouse.latest import fetch_latest
from gpufleet.stores.clickhouse.lease import Lease
from gpufleet.stores.clickhouse.lock import FolderLock
from gpufleet.stores.clickhouse.met import Met
from gpufleet.stores.clickhouse.migrate import migrate
from gpufleet.stores.clickhouse.processes import fetch_processes
from gpufleet.stores.clickhouse.readers import fetch_readers
from gpufleet.stores.clickhouse.rollup.hours import Marks, touched
from gpufleet.stores.clickhouse.rollup.job import fetch_next, roll_hour
from gpufleet.stores.clickhouse.rollup.retention import set_retention
from gpufleet.stores.clickhouse.rollup.tables import TOUCHED_HOURS, every_table
from gpufleet.stores.clickhouse.rollup.worked import fetch_worked
from gpufleet.stores.clickhouse.rows import build
from gpufleet.stores.clickhouse.schema import Engine
from gpufleet.stores.clickhouse.series import fetch_series
from gpufleet.stores.clickhouse.sets import Known
from gpufleet.stores.clickhouse.settle import settle
from gpufleet.stores.clickhouse.sql.asking import select, settings_of
from gpufleet.stores.clickhouse.sql.views import VIEWS

_STATS = """
SELECT table, sum(rows), sum(bytes_on_disk), count() FROM system.parts
WHERE database = currentDatabase() AND active GROUP BY table ORDER BY table
"""

_KNOWN_INFO = "SELECT cluster, machine, view, reader, lane, info_set FROM latest FINAL WHERE info_set != 0"

_KNOWN_INVENTORY = (
    "SELECT cluster, machine, argMax(inventory_set, reported_at) FROM inventory GROUP BY cluster, machine"
)


_LIMITS = SqlLimits()


class TableStats(msgspec.Struct, frozen=True):
    """Size of a table: rows (before what is written twice collapses), bytes on disk, and parts."""

    rows: int
    bytes: int
    parts: int


class ClickHouseStore:
    """Keeps samples in ClickHouse tables: in a folder through chDB, or on a server.

    The engine of a folder belongs to one process, one folder a process, and must not be used after a fork.
    """

    def __init__(
        self,
        dsn: Dsn,
        handles: Handles,
        lock: FolderLock | None,
        limits: SqlLimits,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dsn = dsn
        self._limits = limits
        self._handles = handles
        self._lock = lock
        self._writing = threading.Lock()
        self._selecting = threading.Lock()
        self._known: Known | None = None
        self._counts: GpuCounts | None = None
        self._tables = {table.name: table for table in every_table()}
        self._met = Met.nothing(writes_alone=lock is not None)  # of a server, another hub may turn out to be the writer
        self._marks = Marks(monotonic)
        self._retention = FOR_EVER
        self._lease: Lease | None = None
        self._monotonic = monotonic

    @classmethod
    def open(cls, dsn: str, limits: SqlLimits = _LIMITS, monotonic: Callable[[], float] = time.monotonic) -> Self:
        """Open the store at a DSN: `chdb:///absolute/folder` or `clickhouse://user:password@host:port/database`.

        `limits` are those of people's statements; `monotonic` is a clock of seconds.

        Raises:
            StoreError: if the DSN is wrong, a library is missing, the machine cannot run the engine, another
                process has the folder, or the server does not answer.
        """
        parsed = parse_dsn(dsn)
        connect = connector(parsed)
        lock = FolderLock(parsed.path) if parsed.path is not None else None
        try:
            return cls(parsed, Handles(parsed, connect), lock, limits, monotonic)
        except StoreError:
            if lock is not None:
                lock.release()
            raise

    def migrate(self, retention: Retention | None = None, hub: str = "") -> None:
        """Bring the tables to this build's, forward only; see `ports.Store`."""
        self._handles.check()
        with self._writing, translated(f"{self._dsn.shown}: migration"):
            if hub and self._dsn.path is None:
                lease = Lease(hub, self._dsn.shown, self._monotonic)
                lease.take(self._handles.writer, self._dsn.engine)
                self._lease = lease
            migrate(self._handles.patient, tuple(self._tables.values()), self._dsn.engine)
            if retention is not None:
                set_retention(self._handles.patient, retention)
                self._retention = retention

    def write(self, accepted: Sequence[Accepted], token: str, *, begun: bool = False) -> None:
        """Write all of it, durably, before returning; see `ports.Store`.

        It is not one transaction: a write that failed half-way is completed by writing the same again. The token stops
        an insert that a server still works on from being done twice. What is there is told by looking, but with
        Replicated engines: Keeper takes part and token in one transaction, and another replica's parts come later.
        """
        self._handles.check()
        with self._writing:
            self._renew_lease()
            if self._known is None:
                self._known = self._load_known()
            known, self._known = self._known, None  # forgotten unless everything below succeeds
            # All of it is made ready before any of it is written: what does not fit leaves nothing behind.
            columns = build(accepted, known)
            made = self._arrow_tables(columns)
            with translated(f"{self._dsn.shown}: insert into {TOUCHED_HOURS.name}"):
                self._marks.mark(self._handles.writer, touched(accepted))
            try:
                with self._met.telling(accepted, made):
                    for name, table in made:
                        self._insert(name, table, f"{token}/{name}", begun=begun)
                if self._counts is not None:
                    self._counts.take(columns)
            except BaseException:  # any part may be there, however it ended: GPUs are counted anew, and it is raised
                self._counts = None
                raise
            known.trim()
            self._known = known

    def _insert(self, name: str, table: Any, token: str, *, begun: bool) -> None:
        with translated(f"{self._dsn.shown}: insert into {name}"):
            self._handles.writer.insert_arrow(name, table, settings={"insert_deduplication_token": token})
            if begun and self._dsn.engine is not Engine.REPLICATED:
                settle(self._handles.writer, self._tables[name], table, token)

    def _arrow_tables(self, columns: dict[str, Columns]) -> list[tuple[str, Any]]:
        made: dict[str, Any] = {}
        for name, of_table in columns.items():
            # `latest` has the rows of `samples`, and of their columns those that say what a row is about
            begun = made["samples"] if name == "latest" else None
            made[name] = arrow_table(self._tables[name], of_table, begun=begun)
        return list(made.items())

    def latest(self, cluster: str, machine: str, view: str | None = None) -> tuple[StoredSample, ...]:
        """Return the newest sample per view, reader and lane, in that order; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: latest"):
            return fetch_latest(self._handles.reader, self._met, cluster, [machine], view).get(machine, ())

    def latest_of(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[StoredSample, ...]]:
        """Return the newest samples of many machines, as `latest` does of one; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: latest of many"):
            return fetch_latest(self._handles.reader, self._met, cluster, machines)

    def standings(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[Standing, ...]]:
        """Return how it stands with the newest samples of many machines; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: standings"):
            return fetch_standings(self._handles.reader, cluster, machines)

    def reporting_gpus(self, since: int, until: int) -> dict[str, int]:
        """Return cluster to GPUs that report; see `ports.Store`."""
        return self._counted().reporting(since, until)

    def known_gpus(self, without: Sequence[str] = ()) -> dict[str, KnownGpus]:
        """Return cluster to how many GPUs its machines have; see `ports.Store`."""
        return self._counted().known(without)

    def declared_gpus(self, since: int, without: Sequence[str] = ()) -> dict[str, tuple[DeclaredGpus, ...]]:
        """Return cluster to how many GPUs Kubernetes counts in it; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: GPUs that Kubernetes counts"):
            return fetch_declared_gpus(self._handles.reader, since, without)

    def declared_of(self, cluster: str, machines: Sequence[str], since: int) -> dict[str, tuple[DeclaredResource, ...]]:
        """Return what Kubernetes says of machines; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: what Kubernetes says"):
            return fetch_declared_of(self._handles.reader, cluster, machines, since)

    def gpus_on_buses(self, cluster: str, machines: Sequence[str]) -> dict[str, int]:
        """Return machine to GPUs on its buses; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: GPUs on buses"):
            return fetch_gpus_on_buses(self._handles.reader, cluster, machines)

    def tellers_of_view(self, cluster: str, view: str) -> tuple[str, ...]:
        """Return the machines that ever told of a view; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: tellers of a view"):
            return fetch_tellers_of_view(self._handles.reader, cluster, view)

    def tellers_of_text(self, cluster: str, metric: str, text: str) -> tuple[str, ...]:
        """Return the machines of which a newest sample has this text; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: tellers of a text"):
            return fetch_tellers_of_text(self._handles.reader, cluster, metric, text)

    def readers(self, cluster: str, machine: str) -> tuple[ReaderStatus, ...]:
        """Return how each reader of the machine was doing when last heard of."""
        with translated(f"{self._dsn.shown}: readers"):
            return fetch_readers(self._handles.reader, cluster, [machine]).get(machine, ())

    def readers_of(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[ReaderStatus, ...]]:
        """Return how the readers of many machines were doing, as `readers` does of one."""
        with translated(f"{self._dsn.shown}: readers of many"):
            return fetch_readers(self._handles.reader, cluster, machines)

    def holdings_of(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[Holding, ...]]:
        """Return who holds the devices of many machines; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: holdings"):
            return fetch_holdings(self._handles.reader, cluster, machines)

    def series(
        self,
        cluster: str,
        machine: str,
        metrics: Sequence[str],
        start: int,
        end: int,
        step: int,
        provenance: Provenance = Provenance.HOST_LOCAL_PROBE,
    ) -> StoredSeries:
        """Return values over time; see `ports.Store`. At most 11,000 steps."""
        handle, kept = self._handles.reader, self._retention
        with translated(f"{self._dsn.shown}: series"):
            return fetch_series(handle, cluster, machine, metrics, start, end, step, provenance, kept)

    def schema_version(self) -> int:
        """Return the version that the tables were brought to, 0 where there are none. Changes nothing."""
        with translated(f"{self._dsn.shown}: schema version"):
            if not self._handles.reader.query("EXISTS TABLE schema_migrations").result_rows[0][0]:
                return 0
            return int(self._handles.reader.query("SELECT max(version) FROM schema_migrations").result_rows[0][0])

    def slots(
        self, cluster: str, machines: Sequence[str], *, view: str | None = None, address: str | None = None
    ) -> tuple[StoredSlot, ...]:
        """Return which GPUs were told of in which slots; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: slots"):
            return fetch_slots(self._handles.reader, cluster, machines, view, address)

    def changes(self, question: ChangeQuestion) -> tuple[StoredChange, ...]:
        """Return what moved and what was replaced; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: changes"):
            return fetch_changes(self._handles.reader, question)

    def pools(self, cluster: str | None = None) -> tuple[GpuPool, ...]:
        """Return which GPUs are alike; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: pools"):
            return fetch_pools(self._handles.reader, cluster)

    def events(self, question: EventQuestion) -> tuple[StoredEvent, ...]:
        """Return events, the newest first; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: events"):
            return fetch_events(self._handles.reader, question)

    def processes(self, question: ProcessQuestion) -> tuple[StoredProcesses, ...]:
        """Return the newest lists of processes of a machine; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: processes"):
            return fetch_processes(self._handles.reader, self._met.absences, question)

    def select(self, statement: str) -> Selected:
        """Answer a person's statement; see `ports.Store`. One at a time."""
        with self._selecting, translated(f"{self._dsn.shown}: a statement"):
            return select(self._handles.guarded(settings_of(self._limits)), statement)

    def sql_views(self) -> tuple[SqlViewRecord, ...]:
        """Return what a statement may read; see `ports.Store`."""
        return tuple(
            SqlViewRecord(
                name=view.name,
                help=view.help,
                columns=tuple(SqlColumn(name=column.name, help=column.help) for column in view.columns),
            )
            for view in VIEWS
        )

    def roll_up(self, now: int, stopped: Callable[[], bool] = lambda: False) -> RolledHour | None:
        """Make the oldest hour that should be made; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: rollup"):
            with self._writing:  # a mark that is seen is of a write that is over
                self._renew_lease()
                due = fetch_next(self._handles.reader, now, self._retention, self._marks.is_quiet)
                if due is not None:
                    self._marks.forget(due.hour)
            return roll_hour(self._handles.patient, due, self._retention, stopped) if due is not None else None

    def worked(self, stretches: Sequence[Stretch]) -> list[Worked]:
        """Return what is known of each stretch; see `ports.Store`."""
        with translated(f"{self._dsn.shown}: usage"):
            return fetch_worked(self._handles.reader, stretches, self._retention, time.time_ns())

    def stats(self) -> dict[str, TableStats]:
        """Return table name to size; a table without rows is not in it. Takes about a millisecond."""
        with translated(f"{self._dsn.shown}: stats"):
            rows = self._handles.reader.query(_STATS).result_rows
        return {name: TableStats(count, size, parts) for name, count, size, parts in rows}

    def hang_up(self) -> None:
        """Give up whatever waits for a server's answer, and whatever is asked later; see `ports.Store`."""
        self._handles.hang_up()

    def close(self) -> None:
        """Close; whatever `write` returned from stays. A second close does nothing."""
        with self._writing:
            if self._lease is not None:
                with (
                    contextlib.suppress(StoreError),  # then it ends by itself
                    translated(self._dsn.shown),
                    self._handles.last() as handle,
                ):
                    self._lease.release(handle)
                self._lease = None
            self._handles.close()
            if self._lock is not None:
                self._lock.release()

    def _renew_lease(self) -> None:
        if self._lease is None:
            return
        try:
            with translated(f"{self._dsn.shown}: whose it is"):
                self._lease.renew(self._handles.writer)
        except StoreError:
            self._counts = None  # another hub may have written since
            raise

    def _counted(self) -> GpuCounts:
        """Return what GPUs are counted by: kept while nobody else may write, or else made anew."""
        self._handles.check()
        kept = self._counts
        if kept is not None:
            return kept
        with self._writing:  # what a write adds is in it before or after
            if self._counts is None:
                with translated(f"{self._dsn.shown}: GPUs to count"):
                    counts = fetch_counts(self._handles.reader)
                if self._lock is None and self._lease is None:
                    return counts
                self._counts = counts
            return self._counts

    def _load_known(self) -> Known:
        known = Known()
        handle: Handle = self._handles.writer
        with translated(f"{self._dsn.shown}: what is known"):
            known.absence_sets.update(row[0] for row in handle.query("SELECT id FROM absence_sets").result_rows)
            for *subject, number in handle.query(_KNOWN_INFO).result_rows:
                known.info[tuple(subject)] = number
            for *subject, number in handle.query(_KNOWN_INVENTORY).result_rows:
                known.inventory[tuple(subject)] = number
        return known
