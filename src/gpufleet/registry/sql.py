"""Implementation of `ports.Registry` over SQLAlchemy."""

import contextlib
import datetime as dt
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Self

import msgspec
import sqlalchemy as sa

from gpufleet.model.allocation import Allocation, AllocationSpec, Binding
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.cluster import Cluster, ClusterSpec
from gpufleet.model.errors import ConflictError, NotFoundError, RegistryError
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.stored.ledger import (
    FlushIntent,
    MachineCounts,
    MachineFreshness,
    MachineFreshnessColumns,
    MachineMatch,
    MachineRoom,
    NameInterval,
    NewestReport,
    SenderState,
    SequenceKey,
    SequenceState,
    SucceededMachine,
)
from gpufleet.registry import allocations, clusters, tables
from gpufleet.registry.database import Database, read_rows, record_decoder, upsert
from gpufleet.registry.machines import MAX_MACHINES_PER_CLUSTER, MachineCache

_ENCODER = msgspec.msgpack.Encoder()


class SqlRegistry:
    """A `ports.Registry` in a database with this process as its only writer."""

    def __init__(self, database: Database, *, max_machines: int = MAX_MACHINES_PER_CLUSTER) -> None:
        """Take the database, and the limit on the machines of each cluster."""
        self._database = database
        self._lock = threading.Lock()  # guards the machine cache and serialises writes
        self._machines = MachineCache(max_machines)
        self._allocations: dict[str, Allocation] | None = None  # see `_kept_allocations`; None until they are read

    @classmethod
    def open(cls, dsn: str) -> Self:
        """Open by DSN; see `Database.open`."""
        return cls(Database.open(dsn))

    def migrate(self) -> None:
        """Bring the schema up to date."""
        self._database.migrate()

    def has_machines(self) -> bool:
        """Return whether any machine is registered."""
        with self._database.reading() as connection:
            return connection.execute(sa.select(tables.MACHINES.c.id).limit(1)).first() is not None

    def load(self) -> None:
        """Load the machines into memory."""
        with self._lock, self._database.reading() as connection:
            self._machines.load(connection)

    def register_clusters(self, ids: Sequence[str], at: int) -> None:
        """Register clusters that are not known yet."""
        with self._lock, self._database.writing() as connection:
            clusters.register(connection, ids, at)

    def put_cluster(self, id: str, spec: ClusterSpec, at: dt.datetime) -> tuple[Cluster, bool]:  # noqa: A002
        """Store the spec of a cluster; return the cluster and whether it had no spec before."""
        with self._lock, self._database.writing() as connection:
            return clusters.put(connection, id, spec, at)

    def cluster(self, id: str) -> Cluster:  # noqa: A002
        """Return a cluster. Raises NotFoundError."""
        with self._database.reading() as connection:
            return clusters.get(connection, id)

    def clusters(self) -> tuple[Cluster, ...]:
        """Return every cluster."""
        with self._database.reading() as connection:
            return clusters.list_all(connection)

    def close_cluster(self, id: str, at: dt.datetime) -> Cluster:  # noqa: A002
        """Close a cluster. Raises NotFoundError."""
        with self._lock, self._database.writing() as connection:
            return clusters.close(connection, id, at)

    def match(
        self,
        cluster: str,
        sender: str,
        machine: Machine,
        at: int,
        now: int | None = None,
        made_at: int | None = None,
        host: str = "",
        *,
        overtaken: bool = False,
        has_ended: bool = False,
    ) -> MachineMatch:
        """Return the machine that the evidence belongs to."""
        now = at if now is None else now
        with self._lock:
            return self._machines.match(
                cluster, sender, machine, at, now, made_at, host, overtaken=overtaken, has_ended=has_ended
            )

    def match_named(self, cluster: str, sender: str, machine: Machine, at: int, now: int | None = None) -> MachineMatch:
        """Return the machine that a third party names."""
        with self._lock:
            return self._machines.match_named(cluster, sender, machine, at, at if now is None else now)

    def machine_room(self, cluster: str, sender: str) -> MachineRoom:
        """Return the room for new machines, without waiting for a write."""
        return self._machines.room(cluster, sender)

    def knows_machine(self, cluster: str, sender: str, machine: Machine, at: int) -> bool:
        """Return whether `match` would find a known machine, without waiting for a write."""
        return self._machines.knows(cluster, sender, machine, at)

    def machine_counts(self) -> MachineCounts:
        """Return the number of machines of each cluster, and the limit."""
        with self._lock:
            return MachineCounts(
                by_cluster=self._machines.counts(),
                limit=self._machines.max_machines,
                ratios=self._machines.limit_ratios(),
            )

    def machines(
        self,
        cluster: str | None = None,
        *,
        kind: MachineKind | None = None,
        after: tuple[str, str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[MachineRecord, ...]:
        """Return machines in order of cluster, name and id."""
        with self._lock:
            return self._machines.records(cluster, kind, after, limit)

    def bearer(self, cluster: str, machine: Machine, at: int) -> MachineRecord | None:
        """Return the known machine that a third party names; None if there is none."""
        with self._lock:
            return self._machines.bearer(cluster, machine, at)

    def find_machines(self, cluster: str, name: str) -> tuple[MachineRecord, ...]:
        """Return the machine with this id, or the machines with this host name."""
        with self._lock:
            return self._machines.find(cluster, name)

    def machines_with_uuid(self, cluster: str, uuid: str) -> tuple[MachineRecord, ...]:
        """Return the machines with this system UUID."""
        with self._lock:
            return self._machines.with_uuid(cluster, uuid)

    def machines_sharing(self, cluster: str, machine: Machine) -> tuple[MachineRecord, ...]:
        """Return the machines that share any evidence of identity with a machine."""
        with self._lock:
            return self._machines.sharing(cluster, machine)

    def machine(self, id: str) -> MachineRecord:  # noqa: A002 - the term of the domain
        """Return a machine. Raises NotFoundError."""
        with self._lock:
            return self._machines.record(id)

    def machine_names(self, ids: Collection[str]) -> dict[str, str]:
        """Return the host names of machines by id; an unknown machine is missing."""
        with self._lock:
            return self._machines.names(ids)

    def past_names(self, id: str, start: int, end: int) -> tuple[NameInterval, ...]:  # noqa: A002
        """Return the host names of a machine within an interval, without waiting for a write."""
        return self._machines.past_names(id, start, end)

    def machine_freshness(
        self, cluster: str | None = None, *, siblings_of_retired: bool = False
    ) -> tuple[MachineFreshness, ...]:
        """Return the freshness of every machine, or only of those whose sender also reports a retired machine."""
        with self._lock:
            if siblings_of_retired:
                return self._machines.freshness_of_siblings(cluster)
            return self._machines.freshness(cluster)

    def machine_freshness_columns(self, cluster: str) -> MachineFreshnessColumns:
        """Return the freshness of the machines of a cluster, in columns."""
        with self._lock:
            return self._machines.freshness_columns(cluster)

    def retire_machine(self, id: str, at: int) -> MachineRecord:  # noqa: A002
        """Mark a machine as retired. Raises NotFoundError."""
        with self._lock:
            at = max(at, self._machines.last_seen(id))
            with self._database.writing() as connection:
                self._machines.retire(connection, id, at)
            self._machines.confirm_retired(id, at)
            return self._machines.record(id)

    def expire_machine(self, id: str) -> None:  # noqa: A002
        """Retire a machine as of its newest report; see `ports.Registry`."""
        with self._lock:
            self._machines.expire(id)

    def revive_expired(self, id: str) -> None:  # noqa: A002
        """Withdraw a retirement by `expire_machine`; see `ports.Registry`."""
        with self._lock:
            self._machines.revive_expired(id)

    def put_allocation(
        self,
        id: str,  # noqa: A002
        spec: AllocationSpec,
        at: dt.datetime,
        bindings: tuple[Binding, ...] = (),
    ) -> tuple[Allocation, bool]:
        """Store an allocation; return it and whether it is new."""
        with self._changing_allocations() as (connection, changed):
            allocation, is_new = allocations.put(connection, id, spec, at, bindings)
            changed.append(allocation)
        return allocation, is_new

    def succeeded_machines(self) -> tuple[SucceededMachine, ...]:
        """Return the machines that a known machine proved to be, without waiting for a write."""
        return self._machines.succeeded_machines()

    def bind_allocation(self, id: str, bindings: tuple[Binding, ...]) -> Allocation:  # noqa: A002
        """Store the bindings of an allocation's newest generation. Raises NotFoundError."""
        with self._changing_allocations() as (connection, changed):
            changed.append(allocations.bind(connection, id, bindings))
        return changed[0]

    def allocation(self, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002
        """Return the newest generation. Raises NotFoundError, also for an allocation of another tenant."""
        known = self._kept_allocations()
        if known is not None:
            return allocations.visible(known.get(id), id, tenant)
        with self._database.reading() as connection:
            return allocations.get(connection, id, tenant)

    def allocations(self, tenant: str | None = None) -> tuple[Allocation, ...]:
        """Return the newest generation of every allocation (of one tenant)."""
        known = self._kept_allocations()
        if known is not None:
            found = tuple(one for _, one in sorted(known.copy().items()))
        else:
            with self._database.reading() as connection:
                found = allocations.list_all(connection)
        return tuple(one for one in found if tenant is None or one.spec.tenant == tenant)

    def close_allocation(self, id: str, at: dt.datetime) -> Allocation:  # noqa: A002
        """Close an allocation. Raises NotFoundError."""
        with self._changing_allocations() as (connection, changed):
            changed.append(allocations.close(connection, id, at))
        return changed[0]

    def _kept_allocations(self) -> dict[str, Allocation] | None:
        """Return the newest generations by id, which only this process changes; None if the database is a server.

        While a hub replaces another, both can have the database of a server open.
        """
        known = self._allocations
        if known is not None or not self._database.is_file:
            return known
        with self._lock:
            if self._allocations is None:
                with self._database.reading() as connection:
                    self._allocations = {one.id: one for one in allocations.list_all(connection)}
            return self._allocations

    @contextlib.contextmanager
    def _changing_allocations(self) -> Iterator[tuple[sa.Connection, list[Allocation]]]:
        """Change allocations in a transaction; the caller adds them to the list as they are afterwards."""
        changed: list[Allocation] = []
        with self._lock:
            try:
                with self._database.writing() as connection:
                    yield connection, changed
            except (ConflictError, NotFoundError):  # nothing was changed
                raise
            except RegistryError:
                self._allocations = None  # it may have been committed: read them again
                raise
            if self._allocations is not None:
                self._allocations.update((one.id, one) for one in changed)

    def sequences(self) -> dict[SequenceKey, SequenceState]:
        """Return the flushed sequence numbers of every sender epoch."""
        decode = record_decoder(tables.SEQUENCES, SequenceState)
        with self._database.reading() as connection:
            return {
                SequenceKey(cluster, sender, epoch): decode(state)
                for cluster, sender, epoch, state in read_rows(connection, tables.SEQUENCES)
            }

    def senders(self) -> tuple[SenderState, ...]:
        """Return the newest report of every sender."""
        decode = record_decoder(tables.SENDERS, NewestReport)
        with self._database.reading() as connection:
            return tuple(
                SenderState(cluster=cluster, sender=sender, newest_report=decode(newest))
                for cluster, sender, newest in read_rows(connection, tables.SENDERS)
            )

    def begin_flush(self, intent: FlushIntent) -> None:
        """Store the intent of a flush, and save changed machines."""
        table = tables.FLUSH_INTENTS
        with self._lock:
            with self._database.writing() as connection:
                self._machines.save(connection)
                connection.execute(table.delete().where(table.c.wal == intent.wal))
                connection.execute(table.insert().values(wal=intent.wal, intent=msgspec.msgpack.encode(intent)))
            self._machines.confirm_saved()

    def pending_flush(self, wal: str) -> FlushIntent | None:
        """Return the intent of an unfinished flush, or None."""
        table = tables.FLUSH_INTENTS
        with self._database.reading() as connection:
            found = connection.scalar(sa.select(table.c.intent).where(table.c.wal == wal))
        return None if found is None else msgspec.msgpack.decode(found, type=FlushIntent)

    def finish_flush(
        self,
        intent: FlushIntent,
        sequences: Mapping[SequenceKey, SequenceState],
        senders: Sequence[SenderState],
        *,
        has_rest: bool = False,
    ) -> None:
        """Delete the intent, unless it has a rest, and store the states of sequences and senders."""
        with self._lock, self._database.writing() as connection:
            if not has_rest:
                connection.execute(tables.FLUSH_INTENTS.delete().where(tables.FLUSH_INTENTS.c.wal == intent.wal))
            upsert(
                connection,
                tables.SEQUENCES,
                ("cluster", "sender", "epoch", "state"),
                [(key.cluster, key.sender, key.epoch, _ENCODER.encode(state)) for key, state in sequences.items()],
            )
            upsert(
                connection,
                tables.SENDERS,
                ("cluster", "sender", "newest_report"),
                [(one.cluster, one.sender, _ENCODER.encode(one.newest_report)) for one in senders],
            )

    def close(self) -> None:
        """Close every connection."""
        self._database.close()
