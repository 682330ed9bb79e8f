"""The registry over SQLAlchemy: SQLite by default, PostgreSQL by DSN."""

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.answer import MachineRecord
from gpufleet.model.errors import RegistryError
from gpufleet.model.ledger import FlushIntent, Heard, MachineMatch, Ranges, SenderState, SequenceKey
from gpufleet.model.machine import Machine
from gpufleet.registry import allocations, migrations, tables
from gpufleet.registry.machines import Machines

_BUSY_MILLISECONDS = 10_000


class SqlRegistry:
    """A `ports.Registry` in a database that this process alone writes."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()  # around the machines in memory, and around writing
        self._machines = Machines()

    @classmethod
    def open(cls, dsn: str) -> Self:
        """Open by SQLAlchemy DSN: `sqlite:////path/to/registry.sqlite` or `postgresql+psycopg://...`.

        Raises:
            RegistryError: if the DSN or its driver is unknown, or the database cannot be opened.
        """
        try:
            engine = sa.create_engine(dsn)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise RegistryError(f"the registry's DSN cannot be used: {error}") from error
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", _set_pragmas)
            sa.event.listen(engine, "begin", _begin)
        return cls(engine)

    def migrate(self) -> None:
        """Bring the schema up to date and read the machines."""
        with self._lock, self._transaction() as connection:
            migrations.migrate(connection)
            self._machines.load(connection)

    def register_clusters(self, clusters: Sequence[str], at: int) -> None:
        """Make the clusters known."""
        table = tables.CLUSTERS
        with self._lock, self._transaction() as connection:
            known = set(connection.scalars(sa.select(table.c.id)))
            new = [{"id": cluster, "registered_at": at} for cluster in dict.fromkeys(clusters) if cluster not in known]
            if new:
                connection.execute(table.insert(), new)

    def match(self, cluster: str, sender: str, machine: Machine, at: int) -> MachineMatch:
        """Return the machine that the evidence belongs to."""
        with self._lock:
            return self._machines.match(cluster, sender, machine, at)

    def machines(self, cluster: str | None = None) -> tuple[MachineRecord, ...]:
        """Return every machine, by cluster and name."""
        with self._lock:
            return self._machines.records(cluster)

    def machine(self, id: str) -> MachineRecord:  # noqa: A002 - the word of the domain
        """Return one machine. Raises NotFoundError."""
        with self._lock:
            return self._machines.record(id)

    def put_allocation(self, id: str, spec: AllocationSpec, at: dt.datetime) -> tuple[Allocation, bool]:  # noqa: A002
        """Keep the allocation, and tell whether it is new."""
        with self._lock, self._transaction() as connection:
            return allocations.put(connection, id, spec, at)

    def allocation(self, id: str) -> Allocation:  # noqa: A002
        """Return the newest generation. Raises NotFoundError."""
        with self._transaction(reading=True) as connection:
            return allocations.get(connection, id)

    def allocations(self) -> tuple[Allocation, ...]:
        """Return the newest generation of each."""
        with self._transaction(reading=True) as connection:
            return allocations.list_all(connection)

    def close_allocation(self, id: str, at: dt.datetime) -> Allocation:  # noqa: A002
        """Close it."""
        with self._lock, self._transaction() as connection:
            return allocations.close(connection, id, at)

    def sequences(self) -> dict[SequenceKey, Ranges]:
        """Return the numbers of every batch that has been flushed."""
        with self._transaction(reading=True) as connection:
            return {
                SequenceKey(row.cluster, row.sender, row.epoch): msgspec.msgpack.decode(row.ranges, type=Ranges)
                for row in connection.execute(sa.select(tables.SEQUENCES))
            }

    def senders(self) -> tuple[SenderState, ...]:
        """Return the newest word of every sender."""
        with self._transaction(reading=True) as connection:
            return tuple(
                SenderState(cluster=row.cluster, sender=row.sender, heard=msgspec.msgpack.decode(row.heard, type=Heard))
                for row in connection.execute(sa.select(tables.SENDERS).order_by("cluster", "sender"))
            )

    def begin_flush(self, intent: FlushIntent) -> None:
        """Remember what is about to be written, and save what was learned of machines."""
        table = tables.FLUSH_INTENTS
        with self._lock:
            with self._transaction() as connection:
                self._machines.save(connection)
                connection.execute(table.delete().where(table.c.wal == intent.wal))
                connection.execute(table.insert().values(wal=intent.wal, intent=msgspec.msgpack.encode(intent)))
            self._machines.saved()

    def pending_flush(self, wal: str) -> FlushIntent | None:
        """Return the intent of a flush that was not finished."""
        table = tables.FLUSH_INTENTS
        with self._transaction(reading=True) as connection:
            found = connection.scalar(sa.select(table.c.intent).where(table.c.wal == wal))
        return None if found is None else msgspec.msgpack.decode(found, type=FlushIntent)

    def finish_flush(
        self, intent: FlushIntent, sequences: Mapping[SequenceKey, Ranges], senders: Sequence[SenderState]
    ) -> None:
        """Forget the intent; keep numbers and words of senders."""
        with self._lock, self._transaction() as connection:
            connection.execute(tables.FLUSH_INTENTS.delete().where(tables.FLUSH_INTENTS.c.wal == intent.wal))
            _replace(
                connection,
                tables.SEQUENCES,
                [
                    {**msgspec.structs.asdict(key), "ranges": msgspec.msgpack.encode(ranges)}
                    for key, ranges in sequences.items()
                ],
            )
            _replace(
                connection,
                tables.SENDERS,
                [
                    {"cluster": one.cluster, "sender": one.sender, "heard": msgspec.msgpack.encode(one.heard)}
                    for one in senders
                ],
            )

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _transaction(self, *, reading: bool = False) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect().execution_options(reading=reading) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise RegistryError(f"registry {self._engine.url!r}: {error}") from error


def _replace(connection: sa.Connection, table: sa.Table, rows: list[dict[str, object]]) -> None:
    """Insert rows over those with the same primary key, in SQL that every database speaks."""
    if not rows:
        return
    keys = [column.name for column in table.primary_key]
    same = sa.and_(*(table.c[name] == sa.bindparam(f"key_{name}") for name in keys))
    connection.execute(table.delete().where(same), [{f"key_{name}": row[name] for name in keys} for row in rows])
    connection.execute(table.insert(), rows)


def _set_pragmas(connection: sa.engine.interfaces.DBAPIConnection, _record: object) -> None:
    connection.isolation_level = None  # SQLAlchemy's begin event below opens transactions, not the driver
    cursor = connection.cursor()
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        f"busy_timeout = {_BUSY_MILLISECONDS}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    # A transaction that starts reading cannot safely go on to write; one that only reads need not wait for writers.
    reading = connection.get_execution_options().get("reading")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
