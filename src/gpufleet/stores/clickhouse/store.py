"""The store: `ports.Store` over a ClickHouse dialect, embedded or on a server.

Ending an insert that was begun before and may not have come to its end.

Accepted batches to the rows of every table. Pure but for what `Known` remembers.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from secrets import token_hex
from typing import Any, Self

import msgspec

from gpufleet.model.api.inventory import ChangeQuestion, GpuPool, StoredChange, StoredSlot
from gpufleet.model.api.sql import Selected, SqlColumn, SqlLimits, SqlViewRecord
from gpufleet.model.api.usage import Stretch, Worked
from gpufleet.model.declared import DeclaredGpus, DeclaredResource
from gpufleet.model.errors import StoreError
from gpufleet.model.holding import Holding
from gpufleet.model.reading import Provenance
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.retention import FOR_EVER, Retention
from gpufleet.model.stored.samples import (
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
from gpufleet.stores.clickhouse.connection.client import Handle, Handles, connector, translated
from gpufleet.stores.clickhouse.connection.dsn import Dsn, parse_dsn
from gpufleet.stores.clickhouse.connection.embedded import FolderLock
from gpufleet.stores.clickhouse.connection.lease import Lease
from gpufleet.stores.clickhouse.machines.counts import GpuCounts
from gpufleet.stores.clickhouse.machines.declared import DeclaredRows, fetch_declared_gpus, fetch_declared_of
from gpufleet.stores.clickhouse.machines.events import fetch_events
from gpufleet.stores.clickhouse.machines.inventory import fetch_changes, fetch_pools, fetch_slots
from gpufleet.stores.clickhouse.machines.processes import ProcessRows, fetch_processes
from gpufleet.stores.clickhouse.machines.rows import PartRows
from gpufleet.stores.clickhouse.machines.standings import fetch_counts, fetch_gpus_on_buses, fetch_standings
from gpufleet.stores.clickhouse.machines.status import (
    fetch_holdings,
    fetch_readers,
    fetch_tellers_of_text,
    fetch_tellers_of_view,
)
from gpufleet.stores.clickhouse.rollup.hours import Marks, touched
from gpufleet.stores.clickhouse.rollup.job import fetch_next, roll_hour
from gpufleet.stores.clickhouse.rollup.tables import TOUCHED_HOURS, every_table, set_retention
from gpufleet.stores.clickhouse.rollup.usage import fetch_worked
from gpufleet.stores.clickhouse.samples.blocks import DimRows, SampleRows, info_rows
from gpufleet.stores.clickhouse.samples.cache import Met
from gpufleet.stores.clickhouse.samples.latest import fetch_latest
from gpufleet.stores.clickhouse.samples.series import fetch_series
from gpufleet.stores.clickhouse.schema.arrow import arrow_table
from gpufleet.stores.clickhouse.schema.columns import Columns, Rows, count
from gpufleet.stores.clickhouse.schema.migrate import migrate
from gpufleet.stores.clickhouse.schema.sets import Known, absence_set_id
from gpufleet.stores.clickhouse.schema.tables import ABSENCE_SETS, INFO, Engine, Table
from gpufleet.stores.clickhouse.sql.statement import select, settings_of
from gpufleet.stores.clickhouse.sql.views import VIEWS

LOG = logging.getLogger(__name__)


def settle(handle: Handle, table: Table, rows: Any, token: str) -> None:
    """Insert those of the rows, an Arrow table, that are not in the table.

    The server writes a token down, in `deduplication_logs`, before it gives the part its name. A process that is
    killed between the two leaves a token without rows, and the insert that repeats it is taken for a repetition
    (MergeTree without Keeper, engine 26.9; `docs/decisions/0010-a-token-proves-nothing.md`). So it is the rows that
    are looked for.
    """
    begun = f"begun_{blake2b(token.encode(), digest_size=8).hexdigest()}"
    missing = render_missing(table, begun)
    handle.command(f"DROP TABLE IF EXISTS {begun} SYNC")  # of a process that was killed here
    handle.command(f"CREATE TABLE {begun} AS {table.name} ENGINE = Memory")
    try:
        handle.insert_arrow(begun, rows)
        count = int(handle.query(f"SELECT count() FROM {missing}").result_rows[0][0])  # noqa: S608 - names are ours
        if count:
            LOG.warning(
                "%d rows of %s were not there, though their insert was: they are inserted now", count, table.name
            )
            # Without a token of its own its content would be one, and could have been written down in the same way.
            settings = {"insert_deduplication_token": token_hex(16)}
            handle.command(f"INSERT INTO {table.name} SELECT * FROM {missing}", settings=settings)  # noqa: S608
    finally:
        handle.command(f"DROP TABLE IF EXISTS {begun} SYNC")


def render_missing(table: Table, begun: str) -> str:
    """Return what to select from to have the rows of `begun` that the table lacks, told by what makes them one.

    Where rows of one key have versions, an insert keeps the greatest of its own, so no other is looked for.
    """
    key = ", ".join(f"`{name}`" for name in table.key)
    one = f"{key}, `{table.version}`" if table.version else key
    there = f"SELECT {one} FROM {table.name} WHERE ({key}) IN (SELECT {key} FROM {begun})"  # noqa: S608
    missing = f"{begun} WHERE ({one}) NOT IN ({there})"
    if not table.version:
        return missing
    return f"{missing} AND ({one}) IN (SELECT {key}, max(`{table.version}`) FROM {begun} GROUP BY {key})"  # noqa: S608


def build(accepted: Sequence[Accepted], known: Known) -> dict[str, Columns]:
    """Return table name to columns, in the order to write them; tables with nothing to write are left out.

    What rows point at comes before the rows, and `latest` comes last, so that a reader never meets a row
    whose absences, texts or dimensions are not there yet.

    Args:
        accepted: the batches.
        known: what the store holds already; what is to be written is added to it.

    Raises:
        UnstorableError: if a state is not one of its metric's states.
    """
    sets = Rows(column.name for column in ABSENCE_SETS.columns)
    samples, dims, parts, processes = SampleRows(known), DimRows(), PartRows(known), ProcessRows()
    declared = DeclaredRows()
    for one in accepted:
        ids = []
        for absences in one.batch.absences:
            number = absence_set_id(absences)
            ids.append(number)
            if absences and number not in known.absence_sets:
                known.absence_sets.add(number)
                ordered = sorted(absences, key=lambda absence: absence.metric)
                sets.add(
                    number,
                    [absence.metric for absence in ordered],
                    [absence.reason.value for absence in ordered],
                    [absence.detail for absence in ordered],
                )
        samples.add(one, ids)
        dims.add(one, ids)
        parts.add(one)
        processes.add(one, ids)
        declared.add(one)
    sample_columns, newest, texts = samples.gather()
    info = Rows(column.name for column in INFO.columns)
    for row in info_rows(texts):
        info.add(*row)
    tables = {
        "absence_sets": sets.columns,
        "info": info.columns,
        **{name: rows.columns for name, rows in parts.tables.items()},
        "processes": processes.columns,
        "declared": declared.columns,
        "dim_samples": dims.columns,
        "samples": sample_columns,
        "latest": newest,
    }
    return {name: columns for name, columns in tables.items() if count(columns)}


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
