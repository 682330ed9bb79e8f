"""Registry ports: durable records of clusters, machines, allocations, the ledger, tokens and the audit log.

Methods block, are thread-safe, and are durable when they return, unless stated otherwise. Every method raises
RegistryError if the registry refuses or cannot be reached.
"""

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from gpufleet.model.access import AuditEntry, AuditRecord, KnownToken
from gpufleet.model.allocation import Allocation, AllocationSpec, Binding
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.cluster import Cluster, ClusterSpec
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.stored.ledger import (
    FlushIntent,
    MachineCounts,
    MachineFreshness,
    MachineFreshnessColumns,
    MachineMatch,
    MachineRoom,
    NameInterval,
    SenderState,
    SequenceKey,
    SequenceState,
    SucceededMachine,
)


class ClusterRegistry(Protocol):
    """Clusters, by id."""

    def register_clusters(self, ids: Sequence[str], at: int) -> None:
        """Register clusters; known clusters are unchanged. `at` is in nanoseconds since 1970."""
        ...

    def put_cluster(self, id: str, spec: ClusterSpec, at: dt.datetime) -> tuple[Cluster, bool]:  # noqa: A002
        """Store the spec of a cluster; return the cluster and whether it had no spec before. Reopens a closed one."""
        ...

    def cluster(self, id: str) -> Cluster:  # noqa: A002
        """Return a cluster. Raises NotFoundError."""
        ...

    def clusters(self) -> tuple[Cluster, ...]:
        """Return every cluster, closed ones included, in order of id."""
        ...

    def close_cluster(self, id: str, at: dt.datetime) -> Cluster:  # noqa: A002
        """Close a cluster; a closed cluster is unchanged. Raises NotFoundError."""
        ...


class MachineRegistry(Protocol):
    """Known machines and their freshness."""

    def machines(
        self,
        cluster: str | None = None,
        *,
        kind: MachineKind | None = None,
        after: tuple[str, str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[MachineRecord, ...]:
        """Return machines (of one cluster, of one kind) in order of cluster, name and id.

        The caller fills in `gpus` and `age_seconds`.

        Args:
            cluster: only machines of this cluster.
            kind: only machines of this kind.
            after: only machines after this cluster, name and id.
            limit: maximum number of machines.
        """
        ...

    def find_machines(self, cluster: str, name: str) -> tuple[MachineRecord, ...]:
        """Return the machine with this id, or the machines with this host name, as `machines` does."""
        ...

    def bearer(self, cluster: str, machine: Machine, at: int) -> MachineRecord | None:
        """Return the known machine to which a report of a third party belongs; None if there is none.

        Args:
            cluster: of the report.
            machine: what the report has of it, such as a name only.
            at: time of the report, nanoseconds since 1970 by the hub's clock.
        """
        ...

    def machines_with_uuid(self, cluster: str, uuid: str) -> tuple[MachineRecord, ...]:
        """Return the machines, nodes and guests, with this system UUID, as `machines` does."""
        ...

    def machines_sharing(self, cluster: str, machine: Machine) -> tuple[MachineRecord, ...]:
        """Return the machines that share any evidence of identity with a machine, also if other evidence differs."""
        ...

    def machine(self, id: str) -> MachineRecord:  # noqa: A002 - the term of the domain
        """Return a machine. Raises NotFoundError."""
        ...

    def machine_names(self, ids: Collection[str]) -> dict[str, str]:
        """Return the host names of machines by id; an unknown machine is missing."""
        ...

    def past_names(self, id: str, start: int, end: int) -> tuple[NameInterval, ...]:  # noqa: A002 - as above
        """Return the host names of a machine within an interval, in order of time; empty if it is not known.

        Args:
            id: the machine.
            start, end: nanoseconds since 1970, `end` excluded.
        """
        ...

    def machine_freshness(
        self, cluster: str | None = None, *, siblings_of_retired: bool = False
    ) -> tuple[MachineFreshness, ...]:
        """Return the freshness of every machine (of one cluster), in any order.

        With `siblings_of_retired`, only of machines whose sender also reports a retired machine. These are few.
        """
        ...

    def machine_freshness_columns(self, cluster: str) -> MachineFreshnessColumns:
        """Return the freshness of every machine of a cluster, in columns."""
        ...

    def machine_counts(self) -> MachineCounts:
        """Return the number of machines of each cluster that are not retired, and the use of its limits."""
        ...

    def retire_machine(self, id: str, at: int) -> MachineRecord:  # noqa: A002
        """Mark a machine as retired since `at`, nanoseconds since 1970. A later report of the machine revives it.

        If the newest report is later than `at`, because the clock moved back, the machine is retired as of that report.

        Raises:
            NotFoundError: if there is no such machine.
        """
        ...

    def expire_machine(self, id: str) -> None:  # noqa: A002
        """Retire a machine as of its newest report: it was removed, and no operator retired it.

        Nothing changes if it is retired already. A later report revives it. Saved with the next flush.

        Raises:
            NotFoundError: if there is no such machine.
        """
        ...

    def revive_expired(self, id: str) -> None:  # noqa: A002
        """Withdraw a retirement by `expire_machine`; one by an operator stays. Saved with the next flush.

        Raises:
            NotFoundError: if there is no such machine.
        """
        ...


class AllocationRegistry(Protocol):
    """Allocations and their generations."""

    def put_allocation(
        self,
        id: str,  # noqa: A002
        spec: AllocationSpec,
        at: dt.datetime,
        bindings: tuple[Binding, ...] = (),
    ) -> tuple[Allocation, bool]:
        """Store an allocation with all its bindings; return it and whether it is new.

        Unchanged spec and bindings change nothing; otherwise the next generation begins. A spec without `valid_from`
        keeps the present one, or starts `at`.

        Raises:
            ConflictError: if the allocation is closed, or the spec has another tenant, kind or cluster.
        """
        ...

    def succeeded_machines(self) -> tuple[SucceededMachine, ...]:
        """Return the machines that only third parties reported, and that a known machine proved to be.

        Later reports of their names are of other machines. Never waits; a concurrent change may be missed.
        """
        ...

    def bind_allocation(self, id: str, bindings: tuple[Binding, ...]) -> Allocation:  # noqa: A002
        """Store the bindings of an allocation's newest generation. Raises NotFoundError."""
        ...

    def allocation(self, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002
        """Return the newest generation.

        Raises:
            NotFoundError: if there is no such allocation, or `tenant` is given and does not own it. The message is the
                same in both cases.
        """
        ...

    def allocations(self, tenant: str | None = None) -> tuple[Allocation, ...]:
        """Return the newest generation of every allocation (of one tenant), closed ones included, in order of id."""
        ...

    def close_allocation(self, id: str, at: dt.datetime) -> Allocation:  # noqa: A002
        """Close an allocation; a closed allocation is unchanged. Raises NotFoundError."""
        ...


class LedgerRegistry(Protocol):
    """Ledger of the flush: matched machines, flushed sequence numbers and the intent of the present flush."""

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
        """Return the machine that the evidence belongs to; register a new machine if no known machine fits.

        Two machines that share evidence but cannot be the same get two ids, with a conflict on both. An unknown
        machine never overwrites what is known. Matches are durable from the next `begin_flush`; no id is written to
        the store before.

        Args:
            cluster: the cluster of the sender.
            sender: the sender.
            machine: the evidence.
            at: the hub's clock on receipt; for a late report, overtaken by a newer one of its epoch, its send time.
            now: the hub's clock now, `at` if None. Reports and retirements far later than this were recorded before
                the clock moved back.
            made_at: when the report was made, if before `at`: a machine has a new name since then.
            host: of a guest, the id of its hypervisor if the same batch has it. Otherwise it is the node with the name
                of the hypervisor that the sender reported last.
            overtaken: whether a newer report of the epoch was received before, under any name of its sender.
            has_ended: whether this is an import that only reports the end of series, which is no sign of life.

        Raises:
            CapacityError: if a new machine would exceed the bound on all machines of the cluster, retired ones
                included; known machines are still matched.
        """
        ...

    def knows_machine(self, cluster: str, sender: str, machine: Machine, at: int) -> bool:
        """Return whether `match` would find a known machine. Never waits; a concurrent change may be missed."""
        ...

    def machine_room(self, cluster: str, sender: str) -> MachineRoom:
        """Return how many new machines a sender may still report. Never waits; a concurrent change may be missed.

        Retired machines do not count, until they report again. Near the limit, machines that reported for a short time
        only and not recently are retired automatically.
        """
        ...

    def match_named(self, cluster: str, sender: str, machine: Machine, at: int, now: int | None = None) -> MachineMatch:
        """Return the machine that a third party such as Kubernetes names; register a new one if it is not known.

        The record of a known machine does not change, and the call does not count as a report of the machine.
        Arguments and errors as in `match`.
        """
        ...

    def past_names(self, id: str, start: int, end: int) -> tuple[NameInterval, ...]:  # noqa: A002 - the API's name
        """Return the host names of a machine within an interval; see `MachineRegistry.past_names`."""
        ...

    def sequences(self) -> dict[SequenceKey, SequenceState]:
        """Return the flushed sequence numbers of every sender epoch, with details of the newest batches."""
        ...

    def senders(self) -> tuple[SenderState, ...]:
        """Return the newest report of every sender."""
        ...

    def begin_flush(self, intent: FlushIntent) -> None:
        """Store the intent of a flush, in place of an earlier intent of the same log."""
        ...

    def pending_flush(self, wal: str) -> FlushIntent | None:
        """Return the intent of an unfinished flush, or None."""
        ...

    def finish_flush(
        self,
        intent: FlushIntent,
        sequences: Mapping[SequenceKey, SequenceState],
        senders: Sequence[SenderState],
        *,
        has_rest: bool = False,
    ) -> None:
        """Delete the intent and store the states of sequences and senders, in one transaction.

        With `has_rest` a part of the intent is still to be written, and the intent stays.
        """
        ...


class Registry(ClusterRegistry, MachineRegistry, AllocationRegistry, LedgerRegistry, Protocol):
    """The whole registry, for the process that opens it."""

    def migrate(self) -> None:
        """Bring the schema to this build's version, forward only. Called once, before any other method.

        Raises:
            RegistryError: if the registry has a newer schema version.
        """
        ...

    def has_machines(self) -> bool:
        """Return whether any machine is registered. May be called before `load`."""
        ...

    def load(self) -> None:
        """Load the machines into memory. Called once, after `migrate` and before any method about machines."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


class Tokens(Protocol):
    """The tokens that a hub accepts. Other processes may change them at any time."""

    def changes(self) -> int:
        """Return a number that differs after every change of a token."""
        ...

    def known(self) -> tuple[KnownToken, ...]:
        """Return every token with its secrets, revoked and expired ones included."""
        ...


class Audit(Protocol):
    """The append-only log of writes."""

    def append(self, entry: AuditEntry) -> None:
        """Append an entry, durably."""
        ...

    def newest(self, before: int | None, limit: int) -> tuple[AuditRecord, ...]:
        """Return up to `limit` entries (with numbers below `before`), newest first."""
        ...
