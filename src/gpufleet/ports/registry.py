"""Registry ports: clusters, machines, allocations, ledger, tokens, audit."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Protocol

from gpufleet.model.access import AuditEntry, AuditRecord, KnownToken
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.cluster import Cluster, ClusterSpec
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import Round as Round
from gpufleet.model.stored.ledger import (
    FlushIntent,
    Held,
    MachineMark,
    MachineMatch,
    MachinesHeard,
    SenderState,
    SequenceKey,
)


class Registry(Protocol):
    """Keeps what must never be lost or doubled: clusters, machines, allocations, sequence numbers.

    Blocking, safe to call from several threads, and durable when a method returns. Every method raises
    RegistryError when the registry refuses or cannot be reached.
    """

    def migrate(self) -> None:
        """Bring the schema to this build's version, forward only; called once before anything else.

        Raises:
            RegistryError: if a newer build has been here.
        """
        ...

    def register_clusters(self, ids: Sequence[str], at: int) -> None:
        """Make the clusters known; those that are known already stay as they are."""
        ...

    def put_cluster(self, id: str, spec: ClusterSpec, at: dt.datetime) -> tuple[Cluster, bool]:  # noqa: A002
        """Keep what belongs to a cluster and return it, and whether it had nothing before; opens a closed one again."""
        ...

    def cluster(self, id: str) -> Cluster:  # noqa: A002
        """Return one cluster. Raises NotFoundError."""
        ...

    def clusters(self) -> tuple[Cluster, ...]:
        """Return every cluster that is known, closed ones too, by id."""
        ...

    def close_cluster(self, id: str, at: dt.datetime) -> Cluster:  # noqa: A002
        """Close it; one that is closed stays as it was. Raises NotFoundError."""
        ...

    def match(self, cluster: str, sender: str, machine: Machine, at: int, now: int | None = None) -> MachineMatch:
        """Return the machine that the evidence belongs to, a new one if to none that is known.

        `at` is the hub's clock on receipt; for late word, which newer of its run overtook, the time it was sent.
        `now` is that clock now, `at` unless given: what was heard or retired long after it was so before it was set
        back. Two machines that share evidence and cannot be one become two ids with a conflict on both; nothing known
        is overwritten by a stranger. What is learned here is durable from the next `begin_flush`: no id is written to
        the store before that.

        Raises:
            CrowdedError: if it would be one more than the cluster may have; those that are known are matched.
        """
        ...

    def name(self, cluster: str, sender: str, machine: Machine, at: int, now: int | None = None) -> MachineMatch:
        """Return the machine that somebody else than itself names, as Kubernetes does: a new one if none is known so.

        Nothing that is known of a machine changes by it, and it was not heard of. `at`, `now` and raises as `match`.
        """
        ...

    def machines(
        self,
        cluster: str | None = None,
        *,
        kind: MachineKind | None = None,
        after: tuple[str, str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[MachineRecord, ...]:
        """Return every machine (of one cluster, of one kind), by cluster, name and id.

        Only those that come after a cluster, name and id, and at most so many, where that is given. `gpus` and
        `age_seconds` are the caller's to fill.
        """
        ...

    def machines_called(self, cluster: str, word: str) -> tuple[MachineRecord, ...]:
        """Return the machine of this id, or those of this host name, as `machines` does."""
        ...

    def machines_with_uuid(self, cluster: str, uuid: str) -> tuple[MachineRecord, ...]:
        """Return every machine of this system UUID, nodes and guests, as `machines` does."""
        ...

    def machine(self, id: str) -> MachineRecord:  # noqa: A002 - the word of the domain
        """Return one machine. Raises NotFoundError."""
        ...

    def machine_marks(self, cluster: str | None = None, *, beside_retired: bool = False) -> tuple[MachineMark, ...]:
        """Return how recently each machine (of one cluster) was heard of, in any order.

        With `beside_retired` only the machines of senders that speak for one that was retired, which are few.
        """
        ...

    def machines_heard(self, cluster: str) -> MachinesHeard:
        """Return the same of all machines of a cluster, in columns."""
        ...

    def retire_machine(self, id: str, at: int) -> MachineRecord:  # noqa: A002
        """Keep that a machine is gone since `at`, nanoseconds since 1970; what is heard of it later brings it back.

        It is kept as gone since it was heard of last, if that is later: the clock was set back in between.

        Raises:
            NotFoundError: if there is none.
        """
        ...

    def put_allocation(self, id: str, spec: AllocationSpec, at: dt.datetime) -> tuple[Allocation, bool]:  # noqa: A002
        """Keep the allocation and return it, and whether it is new.

        The same spec again changes nothing; another one is the next generation. A spec without
        `valid_from` keeps the one it has, or starts `at`.

        Raises:
            ConflictError: if it is closed, or is of a tenant and the spec is not of the same.
        """
        ...

    def allocation(self, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002
        """Return the newest generation.

        Raises:
            NotFoundError: if there is none; in the same words if a tenant is given and it is not this tenant's.
        """
        ...

    def allocations(self, tenant: str | None = None) -> tuple[Allocation, ...]:
        """Return the newest generation of every allocation (of one tenant), closed ones too, by id."""
        ...

    def close_allocation(self, id: str, at: dt.datetime) -> Allocation:  # noqa: A002
        """Close it; one that is closed stays as it was. Raises NotFoundError."""
        ...

    def sequences(self) -> dict[SequenceKey, Held]:
        """Return the numbers of every batch that has been flushed, and what is remembered of the newest."""
        ...

    def senders(self) -> tuple[SenderState, ...]:
        """Return the newest word of every sender."""
        ...

    def begin_flush(self, intent: FlushIntent) -> None:
        """Remember what is about to be written; replaces an earlier intent of the same log."""
        ...

    def pending_flush(self, wal: str) -> FlushIntent | None:
        """Return the intent of a flush that was begun and not finished."""
        ...

    def finish_flush(
        self,
        intent: FlushIntent,
        sequences: Mapping[SequenceKey, Held],
        senders: Sequence[SenderState],
        *,
        has_rest: bool = False,
    ) -> None:
        """Forget the intent, unless some of it is still to be written, and keep what is held (whole runs) and words
        of senders, all or nothing.
        """
        ...

    def close(self) -> None:
        """Close; what was kept stays."""
        ...


class Tokens(Protocol):
    """The tokens that a hub takes; they can change under it. Blocking; raises RegistryError as the registry does."""

    def changes(self) -> int:
        """Return a number that is another one whenever a token has changed."""
        ...

    def known(self) -> tuple[KnownToken, ...]:
        """Return every token, those that are refused too, with their secrets."""
        ...


class Audit(Protocol):
    """The log of writes; nothing leaves it. Blocking; raises RegistryError as the registry does."""

    def append(self, entry: AuditEntry) -> None:
        """Add an entry, durably."""
        ...

    def newest(self, before: int | None, limit: int) -> tuple[AuditRecord, ...]:
        """Return up to `limit` entries (of lower numbers than `before`), newest first."""
        ...
