"""The registry over SQLAlchemy."""

import datetime as dt
import threading
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec
import sqlalchemy as sa

from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.cluster import Cluster, ClusterSpec
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.stored.ledger import (
    FlushIntent,
    Heard,
    Held,
    MachineMark,
    MachineMatch,
    MachinesHeard,
    Ranges,
    SenderState,
    SequenceKey,
)
from gpufleet.registry import allocations, clusters, migrations, tables
from gpufleet.registry.database import Database, Row, replace
from gpufleet.registry.machines import Machines

_ENCODER = msgspec.msgpack.Encoder()


class SqlRegistry:
    """A `ports.Registry` in a database that this process alone writes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()  # around the machines in memory, and around writing
        self._machines = Machines()

    @classmethod
    def open(cls, dsn: str) -> Self:
        """Open by DSN; see `Database.open`."""
        return cls(Database.open(dsn))

    def migrate(self) -> None:
        """Bring the schema up to date and read the machines."""
        with self._lock, self._database.writing() as connection:
            migrations.migrate(connection)
            self._machines.load(connection)

    def register_clusters(self, ids: Sequence[str], at: int) -> None:
        """Make the clusters known."""
        with self._lock, self._database.writing() as connection:
            clusters.make_known(connection, ids, at)

    def put_cluster(self, id: str, spec: ClusterSpec, at: dt.datetime) -> tuple[Cluster, bool]:  # noqa: A002
        """Keep what belongs to a cluster, and tell whether that is new."""
        with self._lock, self._database.writing() as connection:
            return clusters.put(connection, id, spec, at)

    def cluster(self, id: str) -> Cluster:  # noqa: A002
        """Return one cluster. Raises NotFoundError."""
        with self._database.reading() as connection:
            return clusters.get(connection, id)

    def clusters(self) -> tuple[Cluster, ...]:
        """Return every cluster."""
        with self._database.reading() as connection:
            return clusters.list_all(connection)

    def close_cluster(self, id: str, at: dt.datetime) -> Cluster:  # noqa: A002
        """Close it."""
        with self._lock, self._database.writing() as connection:
            return clusters.close(connection, id, at)

    def match(self, cluster: str, sender: str, machine: Machine, at: int, now: int | None = None) -> MachineMatch:
        """Return the machine that the evidence belongs to."""
        with self._lock:
            return self._machines.match(cluster, sender, machine, at, at if now is None else now)

    def name(self, cluster: str, sender: str, machine: Machine, at: int, now: int | None = None) -> MachineMatch:
        """Return the machine that somebody else names."""
        with self._lock:
            return self._machines.name(cluster, sender, machine, at, at if now is None else now)

    def machines(
        self,
        cluster: str | None = None,
        *,
        kind: MachineKind | None = None,
        after: tuple[str, str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[MachineRecord, ...]:
        """Return every machine, or a part of them, by cluster, name and id."""
        with self._lock:
            return self._machines.records(cluster, kind, after, limit)

    def machines_called(self, cluster: str, word: str) -> tuple[MachineRecord, ...]:
        """Return the machine of this id, or those of this host name."""
        with self._lock:
            return self._machines.called(cluster, word)

    def machines_with_uuid(self, cluster: str, uuid: str) -> tuple[MachineRecord, ...]:
        """Return the machines of this system UUID."""
        with self._lock:
            return self._machines.with_uuid(cluster, uuid)

    def machine(self, id: str) -> MachineRecord:  # noqa: A002 - the word of the domain
        """Return one machine. Raises NotFoundError."""
        with self._lock:
            return self._machines.record(id)

    def machine_marks(self, cluster: str | None = None, *, beside_retired: bool = False) -> tuple[MachineMark, ...]:
        """Return how recently each machine was heard of, or those of senders that speak for a retired one."""
        with self._lock:
            return self._machines.marks_beside_retired(cluster) if beside_retired else self._machines.marks(cluster)

    def machines_heard(self, cluster: str) -> MachinesHeard:
        """Return how recently the machines of a cluster were heard of."""
        with self._lock:
            return self._machines.heard(cluster)

    def retire_machine(self, id: str, at: int) -> MachineRecord:  # noqa: A002
        """Keep that a machine is gone. Raises NotFoundError."""
        with self._lock:
            at = max(at, self._machines.last_seen(id))
            with self._database.writing() as connection:
                self._machines.retire(connection, id, at)
            self._machines.retired(id, at)
            return self._machines.record(id)

    def put_allocation(self, id: str, spec: AllocationSpec, at: dt.datetime) -> tuple[Allocation, bool]:  # noqa: A002
        """Keep the allocation, and tell whether it is new."""
        with self._lock, self._database.writing() as connection:
            return allocations.put(connection, id, spec, at)

    def allocation(self, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002
        """Return the newest generation, if it is of the tenant. Raises NotFoundError."""
        with self._database.reading() as connection:
            return allocations.get(connection, id, tenant)

    def allocations(self, tenant: str | None = None) -> tuple[Allocation, ...]:
        """Return the newest generation of each, or of each of a tenant."""
        with self._database.reading() as connection:
            found = allocations.list_all(connection)
        return found if tenant is None else tuple(one for one in found if one.spec.tenant == tenant)

    def close_allocation(self, id: str, at: dt.datetime) -> Allocation:  # noqa: A002
        """Close it."""
        with self._lock, self._database.writing() as connection:
            return allocations.close(connection, id, at)

    def sequences(self) -> dict[SequenceKey, Held]:
        """Return the numbers of every batch that has been flushed, and what is remembered of the newest."""
        with self._database.reading() as connection:
            return {
                SequenceKey(row.cluster, row.sender, row.epoch): _held(row)
                for row in connection.execute(sa.select(tables.SEQUENCES))
            }

    def senders(self) -> tuple[SenderState, ...]:
        """Return the newest word of every sender."""
        with self._database.reading() as connection:
            return tuple(
                SenderState(cluster=row.cluster, sender=row.sender, heard=msgspec.msgpack.decode(row.heard, type=Heard))
                for row in connection.execute(sa.select(tables.SENDERS).order_by("cluster", "sender"))
            )

    def begin_flush(self, intent: FlushIntent) -> None:
        """Remember what is about to be written, and save what was learned of machines."""
        table = tables.FLUSH_INTENTS
        with self._lock:
            with self._database.writing() as connection:
                self._machines.save(connection)
                connection.execute(table.delete().where(table.c.wal == intent.wal))
                connection.execute(table.insert().values(wal=intent.wal, intent=msgspec.msgpack.encode(intent)))
            self._machines.saved()

    def pending_flush(self, wal: str) -> FlushIntent | None:
        """Return the intent of a flush that was not finished."""
        table = tables.FLUSH_INTENTS
        with self._database.reading() as connection:
            found = connection.scalar(sa.select(table.c.intent).where(table.c.wal == wal))
        return None if found is None else msgspec.msgpack.decode(found, type=FlushIntent)

    def finish_flush(
        self,
        intent: FlushIntent,
        sequences: Mapping[SequenceKey, Held],
        senders: Sequence[SenderState],
        *,
        has_rest: bool = False,
    ) -> None:
        """Forget the intent, unless it has a rest; keep numbers and words of senders."""
        with self._lock, self._database.writing() as connection:
            if not has_rest:
                connection.execute(tables.FLUSH_INTENTS.delete().where(tables.FLUSH_INTENTS.c.wal == intent.wal))
            replace(
                connection,
                tables.SEQUENCES,
                ("cluster", "sender", "epoch", "ranges", "held"),
                [_sequence_row(key, held) for key, held in sequences.items()],
            )
            replace(
                connection,
                tables.SENDERS,
                ("cluster", "sender", "heard"),
                [(one.cluster, one.sender, _ENCODER.encode(one.heard)) for one in senders],
            )

    def close(self) -> None:
        """Close every connection."""
        self._database.close()


def _sequence_row(key: SequenceKey, held: Held) -> Row:
    rest = msgspec.structs.replace(held, ranges=())
    return key.cluster, key.sender, key.epoch, _ENCODER.encode(held.ranges), _ENCODER.encode(rest)


def _held(row: "sa.Row[tuple[object, ...]]") -> Held:
    """Put together what is held; before version 3 of the schema it was the numbers alone."""
    ranges = msgspec.msgpack.decode(row.ranges, type=Ranges)
    if row.held is None:
        return Held(ranges=ranges)
    return msgspec.structs.replace(msgspec.msgpack.decode(row.held, type=Held), ranges=ranges)
