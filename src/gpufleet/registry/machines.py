"""In-memory cache of a registry's machines: matching by evidence, sorted listing, and changes saved in batches."""

import base64
import bisect
import secrets
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import msgspec
import sqlalchemy as sa

from gpufleet.fleet.identity import (
    EVIDENCE,
    BorneName,
    KnownMachine,
    MatchDecision,
    MatchOutcome,
    decide,
    has_name_only,
    name_end,
    names_within,
    new_machine,
    with_imported_at,
    with_made_at,
)
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.errors import CapacityError, NotFoundError, RegistryError
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.stored.ledger import (
    MachineFreshness,
    MachineFreshnessColumns,
    MachineMatch,
    MachineRoom,
    NameInterval,
    SucceededMachine,
)
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.registry.conflicts import ConflictLog
from gpufleet.registry.freshness import PlainMachines
from gpufleet.registry.machine_rows import (
    RETIRED_FACTOR,
    MachineRow,
    evidence_keys,
    limit_ratio,
    load_machines,
    retire_machine,
    save_last_seen,
    save_machines,
    save_retirements,
    sender_limit,
)

CLOCK_TOLERANCE_NS = 60 * NANOS
"""Instants further ahead of the hub's clock than this were recorded before that clock moved back."""

MAX_MACHINES_PER_CLUSTER = 100_000
"""Maximum machines of a cluster that are not retired; each takes about 1.4 kB of memory and a database row."""

NAMES_OVERLAP_NS = 600 * NANOS
"""Time for which third parties can report a renamed machine under both names: they learn of the new one separately."""

EXPIRY_RATIO = 0.9
"""Part of the limit beyond which short-lived machines expire."""

SHORT_LIVED_NS = 24 * 3600 * NANOS
"""A machine that reported for less than this is short-lived, such as an invented or automatically scaled host name."""

EXPIRY_NS = 7 * SHORT_LIVED_NS
"""Time without a report after which a short-lived machine expires: it is retired as of its last report."""

EXPIRY_INTERVAL_NS = 3600 * NANOS
"""Interval between searches for expired machines."""


class MachineCache:
    """All machines of a registry. Not thread-safe: the registry takes its lock around each call."""

    def __init__(self, max_machines: int = MAX_MACHINES_PER_CLUSTER) -> None:
        self._max_machines = max_machines
        self._in_order = MachineOrder()
        self._retired: set[str] = set()  # ever retired; a machine that reported again is still in it
        self._succeeded: set[str] = set()  # ids of machines with a successor
        self._rows: dict[str, MachineRow] = {}
        self._by_cluster: dict[str, dict[str, MachineRow]] = {}
        self._plain: dict[str, PlainMachines] = {}  # by cluster
        self._by_evidence: dict[tuple[str, str, str], tuple[str, ...]] = {}  # a set would take 200 bytes
        self._renamed: dict[tuple[str, str], set[str]] = {}  # ids by cluster and name among their `renames`
        self._by_report: dict[tuple[str, str, Machine], str] = {}
        self._conflicts = ConflictLog()
        self._changed: dict[str, None] = {}
        self._seen: dict[str, None] = {}
        self._unsaved_retirements: dict[str, int | None] = {}
        self._active: Counter[str] = Counter()  # by cluster
        self._active_of: Counter[tuple[str, str]] = Counter()  # by cluster and sender
        self._expired_at = 0

    def load(self, connection: sa.Connection) -> None:
        """Load all machines and conflicts."""
        self._conflicts.load(connection)
        rows = list(load_machines(connection))
        for row in rows:
            self._add(row)
            self._index_renames(None, row)
        self._in_order.add_all(map(_order, rows))

    @property
    def max_machines(self) -> int:
        """Limit on the machines of a cluster that are not retired."""
        return self._max_machines

    def counts(self) -> dict[str, int]:
        """Return cluster to the number of its machines that are not retired."""
        return {cluster: count for cluster, count in self._active.items() if count}

    def limit_ratios(self) -> dict[str, float]:
        """Return cluster to its use of the nearest limit; see `limit_ratio`."""
        of_sender: dict[str, int] = {}
        for (cluster, _), count in self._active_of.items():
            of_sender[cluster] = max(count, of_sender.get(cluster, 0))
        return {
            one: limit_ratio(self._max_machines, self._active[one], self._in_order.count(one), of_sender.get(one, 0))
            for one in self._by_cluster
        }

    def room(self, cluster: str, sender: str) -> MachineRoom:
        """Return the room for new machines; see `ports.Registry.machine_room`."""
        free = min(
            self._max_machines - self._active[cluster],
            RETIRED_FACTOR * self._max_machines - self._in_order.count(cluster),
        )
        share = sender_limit(self._max_machines)
        return MachineRoom(cluster=free, sender=min(free, share - self._active_of[cluster, sender]))

    def knows(self, cluster: str, sender: str, machine: Machine, at: int) -> bool:
        """Return whether `match` would find a known machine.

        Call it without the registry's lock: each step reads a dict or set at once, and records are immutable.
        """
        if machine.boot_id and machine.kind is MachineKind.NODE and (cluster, sender, machine) in self._by_report:
            return True  # as in `_repeated`, whose other conditions hold for a node with a boot id
        host = self._host_of(cluster, sender, machine)
        if self._repeated(cluster, sender, machine, host) is not None:
            return True
        candidates = self._candidates(cluster, machine)
        return decide(candidates, machine, at, host).verdict is not MatchOutcome.NEW

    def match(
        self,
        cluster: str,
        sender: str,
        machine: Machine,
        at: int,
        now: int,
        made_at: int | None = None,
        host: str = "",
        *,
        overtaken: bool = False,
        has_ended: bool = False,
    ) -> MachineMatch:
        """Return the machine that the evidence belongs to; see `ports.Registry.match`."""
        self._expire(now)
        host = host or self._host_of(cluster, sender, machine)
        row = self._repeated(cluster, sender, machine, host)
        if row is not None:
            self._clamp_future(row, now)
            if not has_ended:
                row.known = msgspec.structs.replace(row.known, last_seen=max(at, row.known.last_seen))
                row.known = with_imported_at(row.known, machine, at)
            row.known = with_made_at(row.known, machine, at if made_at is None else min(made_at, at))
            self._recount(row)
            self._seen[row.known.id] = None
            return MachineMatch(row.known.id, self._conflicts.text(row.known))
        for one in self._candidates(cluster, machine):
            self._clamp_future(self._rows[one.id], now)
        made_at = at if made_at is None else min(made_at, at)
        decision = decide(self._candidates(cluster, machine), machine, at, host, made_at, overtaken=overtaken)
        if decision.verdict is MatchOutcome.SAME and decision.known is not None:
            before = self._rows[decision.known.id]
            self._conflicts.record_name(before.known, before.sender, sender, machine, at)
        row = self._apply(decision, cluster, sender, machine, at, made_at)
        named_only = row.known.named_only and has_ended
        row.known = msgspec.structs.replace(row.known, named_only=named_only, host=host or row.known.host)
        if not has_ended:
            row.known = with_imported_at(row.known, machine, at)
        elif decision.known is not None:
            row.known = msgspec.structs.replace(row.known, last_seen=self._rows[row.known.id].known.last_seen)
        self._store(row)
        self._conflicts.record_decision(row.known.id, row.evidence, decision, at)
        if row.evidence is machine and row.sender == sender:  # else `_store` would not remove it
            self._by_report[cluster, sender, machine] = row.known.id
        return MachineMatch(row.known.id, self._conflicts.text(row.known))

    def _repeated(self, cluster: str, sender: str, machine: Machine, host: str) -> MachineRow | None:
        """Return the machine whose previous report has the same sender and evidence, if the report is still its own."""
        id_ = self._by_report.get((cluster, sender, machine))
        row = None if id_ is None else self._rows.get(id_)
        if (
            row is None
            or row.known.named_only
            or row.known.successor is not None
            or host not in ("", row.known.host)
            or self._is_shared_name(cluster, machine)
        ):
            return None
        return row

    def match_named(self, cluster: str, sender: str, machine: Machine, at: int, now: int) -> MachineMatch:
        """Return the machine that a third party names; see `ports.Registry.match_named`."""
        self._expire(now)
        decision = decide(self._candidates(cluster, machine), machine, at)
        if decision.verdict is MatchOutcome.NEW:
            row = self._apply(decision, cluster, sender, machine, at)
            row.known = msgspec.structs.replace(row.known, named_only=True)
            self._store(row)
            return MachineMatch(row.known.id)
        assert decision.known is not None
        row = self._rows[decision.known.id]
        if row.known.named_only:
            self._clamp_future(row, now)
        if row.known.named_only and (row.retired_at is None or row.has_expired) and at > row.known.last_seen:
            row.known, row.sender = msgspec.structs.replace(row.known, last_seen=at), sender
            self._recount(row)
            self._changed[row.known.id] = None
        return MachineMatch(row.known.id, self._conflicts.text(row.known))

    def bearer(self, cluster: str, machine: Machine, at: int) -> MachineRecord | None:
        """Return the machine that `match_named` would return, or None if it would register a new one."""
        decision = decide(self._candidates(cluster, machine), machine, at)
        if decision.verdict is MatchOutcome.NEW or decision.known is None:
            return None
        return self._record(self._rows[decision.known.id])

    def _clamp_future(self, row: MachineRow, now: int) -> None:
        """Move instants from before a clock step to just before now."""
        if row.known.last_seen > now + CLOCK_TOLERANCE_NS:
            row.known = msgspec.structs.replace(row.known, last_seen=now - 1)
            self._changed[row.known.id] = None
        if row.retired_at is not None and row.retired_at > now + CLOCK_TOLERANCE_NS:
            row.retired_at = self._unsaved_retirements[row.known.id] = now - 1
        self._recount(row)

    def _recount(self, row: MachineRow) -> None:
        """Count a machine for its sender unless it is retired. Call it after each change of a row."""
        is_plain = row.retired_at is None and not row.known.named_only and not self._conflicts.has(row.known.id)
        plain = self._plain.get(row.cluster) or self._plain.setdefault(row.cluster, PlainMachines())
        plain.update(row, is_plain=is_plain)
        now = None if row.is_retired else row.sender
        before, row.counted_for = row.counted_for, now
        if before == now:
            return
        for sender, step in ((before, -1), (now, 1)):
            if sender is not None:
                self._active[row.cluster] += step
                self._active_of[row.cluster, sender] += step
                if not self._active_of[row.cluster, sender]:
                    del self._active_of[row.cluster, sender]

    def _expire(self, now: int) -> None:
        """Retire short-lived machines of nearly full clusters, at most once in `EXPIRY_INTERVAL_NS`."""
        if self._expired_at <= now < self._expired_at + EXPIRY_INTERVAL_NS:
            return
        self._expired_at = now
        for cluster, count in self.counts().items():
            if count < EXPIRY_RATIO * self._max_machines:
                continue
            for row in self._by_cluster[cluster].values():
                last_seen = row.known.last_seen
                if (
                    row.counted_for is not None
                    and now - last_seen > EXPIRY_NS
                    and last_seen - row.first_seen < SHORT_LIVED_NS
                ):
                    row.retired_at = self._unsaved_retirements[row.known.id] = last_seen
                    self._retired.add(row.known.id)
                    self._recount(row)

    def records(
        self,
        cluster: str | None,
        kind: MachineKind | None = None,
        after: tuple[str, str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[MachineRecord, ...]:
        """Return machines in order; see `ports.Registry.machines`."""
        found: list[MachineRecord] = []
        for id_ in self._in_order.after(cluster, after):
            if len(found) == limit:
                break
            row = self._rows[id_]
            if kind is None or row.known.machine.kind is kind:
                found.append(self._record(row))
        return tuple(found)

    def find(self, cluster: str, name: str) -> tuple[MachineRecord, ...]:
        """Return the machine with this id or those with this host name; see `ports.Registry.find_machines`."""
        row = self._rows.get(name)
        if row is not None and row.cluster == cluster:
            return (self._record(row),)
        rows = [self._rows[id_] for id_ in self._by_evidence.get((cluster, "name", name), ())]
        return tuple(self._record(row) for row in sorted(rows, key=_order))

    def with_uuid(self, cluster: str, uuid: str) -> tuple[MachineRecord, ...]:
        """Return the machines with this system UUID; see `ports.Registry.machines_with_uuid`."""
        rows = [self._rows[id_] for id_ in self._by_evidence.get((cluster, "system_uuid", uuid), ())]
        return tuple(self._record(row) for row in sorted(rows, key=_order))

    def sharing(self, cluster: str, machine: Machine) -> tuple[MachineRecord, ...]:
        """Return the machines that share any evidence; see `ports.Registry.machines_sharing`."""
        return tuple([self._record(self._rows[one.id]) for one in self._candidates(cluster, machine)])

    def record(self, id: str) -> MachineRecord:  # noqa: A002 - the term of the domain
        """Return a machine. Raises NotFoundError."""
        row = self._rows.get(id)
        if row is None:
            raise NotFoundError(f"there is no machine {id!r}")
        return self._record(row)

    def names(self, ids: Collection[str]) -> dict[str, str]:
        """Return the host names of machines by id; an unknown machine is missing."""
        return {id_: row.known.machine.name for id_ in ids if (row := self._rows.get(id_)) is not None}

    def past_names(self, id: str, start: int, end: int) -> tuple[NameInterval, ...]:  # noqa: A002
        """Return the host names of a machine within an interval; see `ports.Registry.past_names`."""
        row = self._rows.get(id)
        return () if row is None else names_within(row.known, start, end)

    def last_seen(self, id: str) -> int:  # noqa: A002
        """Return the instant of the newest report of a machine. Raises NotFoundError."""
        self.record(id)
        return self._rows[id].known.last_seen

    def freshness(self, cluster: str | None) -> tuple[MachineFreshness, ...]:
        """Return the freshness of every machine; see `ports.Registry.machine_freshness`."""
        return tuple(map(self._freshness, self._rows_of(cluster)))

    def freshness_of_siblings(self, cluster: str | None) -> tuple[MachineFreshness, ...]:
        """Return the freshness of machines whose sender also reports a retired machine."""
        retired = [self._rows[id_] for id_ in self._retired]
        senders = {(row.cluster, row.sender) for row in retired if cluster in (None, row.cluster)}
        found = (row for one in {cluster for cluster, _ in senders} for row in self._rows_of(one))
        return tuple(self._freshness(row) for row in found if (row.cluster, row.sender) in senders)

    def freshness_columns(self, cluster: str) -> MachineFreshnessColumns:
        """Return the freshness of a cluster's machines; see `ports.Registry.machine_freshness_columns`."""
        plain = self._plain.get(cluster, PlainMachines())
        plain.leave_out(self._conflicts.machines())
        return MachineFreshnessColumns(
            ids=list(plain.ids),
            senders=list(plain.senders),
            last_seen=array("q", plain.last_seen),
            others=tuple(self._freshness(self._rows[id_]) for id_ in plain.others),
            version=plain.version,
        )

    def _freshness(self, row: MachineRow) -> MachineFreshness:
        id_ = row.known.id
        return MachineFreshness(
            id=id_,
            cluster=row.cluster,
            sender=row.sender,
            last_seen=row.known.last_seen,
            retired_at=row.retired_at,
            conflict=self._conflicts.text(row.known) is not None,
            named_only=row.known.named_only,
        )

    def _rows_of(self, cluster: str | None) -> Collection[MachineRow]:
        """Return the machines of one cluster, or of all, in any order."""
        return (self._rows if cluster is None else self._by_cluster.get(cluster, {})).values()

    def retire(self, connection: sa.Connection, id: str, at: int) -> None:  # noqa: A002
        """Write a retirement inside the caller's transaction; call `confirm_retired` after. Raises NotFoundError."""
        self.record(id)
        retire_machine(connection, self._rows[id], self._retirement(id, at))

    def confirm_retired(self, id: str, at: int) -> None:  # noqa: A002
        """Apply a committed retirement to the cache."""
        row = self._rows[id]
        row.retired_at = self._retirement(id, at)
        self._retired.add(id)
        self._unsaved_retirements.pop(id, None)  # earlier than the committed one
        self._recount(row)

    def _retirement(self, id: str, at: int) -> int:  # noqa: A002
        """Return the time of an operator's retirement: after the last report, at which only expiry retires."""
        return max(at, self._rows[id].known.last_seen + 1)

    def expire(self, id: str) -> None:  # noqa: A002
        """Retire a machine as of its newest report unless it is retired. Raises NotFoundError."""
        self.record(id)
        row = self._rows[id]
        if not row.is_retired:
            row.retired_at = self._unsaved_retirements[id] = row.known.last_seen
            self._retired.add(id)
            self._recount(row)

    def revive_expired(self, id: str) -> None:  # noqa: A002
        """Withdraw the retirement of a machine unless an operator retired it. Raises NotFoundError."""
        self.record(id)
        row = self._rows[id]
        if row.has_expired:
            row.retired_at = self._unsaved_retirements[id] = None
            self._recount(row)

    def save(self, connection: sa.Connection) -> None:
        """Write changes inside the caller's transaction; call `confirm_saved` after the commit."""
        save_machines(connection, [self._rows[id_] for id_ in self._changed])
        seen = [(self._rows[id_].known.last_seen, id_) for id_ in self._seen if id_ not in self._changed]
        save_last_seen(connection, seen)
        save_retirements(connection, [(at, id_) for id_, at in self._unsaved_retirements.items()])
        self._conflicts.save(connection)

    def confirm_saved(self) -> None:
        """Clear the list of unsaved changes."""
        self._changed.clear()
        self._seen.clear()
        self._unsaved_retirements.clear()
        self._conflicts.confirm_saved()

    def _candidates(self, cluster: str, machine: Machine) -> list[KnownMachine]:
        """Return the machines that share evidence. The name of a retired machine belongs to its successor, if any.

        A machine that proved to be another one has no further reports.
        """
        found: dict[str, KnownMachine] = {}
        for field in EVIDENCE:
            rows = self._rows_with(cluster, field, getattr(machine, field))
            if field == "name":
                rows = [row for row in rows if row.known.successor is None]
                rows = [row for row in rows if not row.is_retired] or rows
            found.update((row.known.id, row.known) for row in rows)
        return list(found.values())

    def _rows_with(self, cluster: str, field: str, value: str | None) -> list[MachineRow]:
        ids = sorted(self._by_evidence.get((cluster, field, value), ())) if value else ()
        return [row for row in map(self._rows.get, ids) if row is not None]

    def _is_shared_name(self, cluster: str, machine: Machine) -> bool:
        """Return whether several machines have the name, and there is no other evidence."""
        return has_name_only(machine) and len(self._by_evidence.get((cluster, "name", machine.name), ())) > 1

    def _host_of(self, cluster: str, sender: str, machine: Machine) -> str:
        """Return the id of a guest's hypervisor: the node of that name that the guest's sender last reported.

        Other senders, such as importers, may have reported the node since. Returns an empty text if there is none.
        """
        if machine.kind is not MachineKind.GUEST:
            return ""
        named = self._rows_with(cluster, "name", machine.hypervisor)
        nodes = [row for row in named if row.known.machine.kind is MachineKind.NODE]
        times = [(at, row.known.id) for row in nodes if (at := row.reported_at(sender)) is not None]
        return max(times)[1] if times else ""

    def _apply(
        self,
        decision: MatchDecision,
        cluster: str,
        sender: str,
        machine: Machine,
        at: int,
        made_at: int | None = None,
    ) -> MachineRow:
        if decision.verdict is MatchOutcome.NEW:
            # The limit itself is enforced on receipt (`room`): here the batch is acknowledged already.
            count, most = self._in_order.count(cluster), RETIRED_FACTOR * self._max_machines
            if count >= most:
                raise CapacityError(
                    f"{machine.name!r} would be machine {count + 1} of cluster {cluster!r}, which has "
                    f"a limit of {most} with retired ones: check its senders for made-up machines, or raise "
                    "ingest.max_machines"
                )
            made_at = at if made_at is None else made_at
            known = new_machine(self._new_id(), machine, at, made_at)
            if self._bearers(cluster, machine.name):
                known = msgspec.structs.replace(known, renames=(BorneName(machine.name, made_at),))
                known = self._with_dated_name(cluster, known)
            return MachineRow(cluster, sender, known, at, machine)
        assert decision.known is not None
        before = self._rows[decision.known.id]
        known = decision.known
        if known.renames != before.known.renames:
            known = self._with_dated_name(cluster, known)
            self._retire_stand_ins(cluster, before, machine)
        newest_sender, earlier_senders = before.senders_after(sender, at)
        return MachineRow(
            cluster,
            newest_sender,
            known,
            before.first_seen,
            before.evidence if decision.verdict is MatchOutcome.LATE else machine,
            before.retired_at,
            before.counted_for,
            earlier_senders,
        )

    def _retire_stand_ins(self, cluster: str, before: MachineRow, machine: Machine) -> None:
        """Retire the machines that third parties reported under the new name of a machine before it did itself.

        Those that were known when the machine last reported under its earlier name are other machines. So are those
        that were known for longer than `NAMES_OVERLAP_NS` when third parties last reported it under that name. Guests
        of several hypervisors can have one name.
        """
        if machine.kind is MachineKind.GUEST:
            return
        named = [row for row in self._rows_with(cluster, "name", machine.name) if not row.is_retired]
        rows = [row for row in named if row.known.machine.kind is machine.kind]
        if any(not has_name_only(row.known.machine) for row in rows):
            return  # the name alone means none of its bearers
        for row in rows:
            overlap = before.known.imported_at - row.first_seen
            if row.known.named_only or (row.first_seen > before.known.made_at and overlap <= NAMES_OVERLAP_NS):
                row.known = msgspec.structs.replace(row.known, successor=before.known.id)
                self._succeeded.add(row.known.id)
                self._changed[row.known.id] = None
                self.expire(row.known.id)

    def succeeded_machines(self) -> tuple[SucceededMachine, ...]:
        """Return the machines with a successor; see `ports.Registry.succeeded_machines`."""
        return tuple(
            SucceededMachine(row.cluster, row.known.id, successor, row.known.last_seen, not row.known.named_only)
            for row in map(self._rows.__getitem__, sorted(self._succeeded))
            if (successor := row.known.successor) is not None
        )

    def _bearers(self, cluster: str, name: str) -> set[str]:
        """Return the ids of machines that have or had a name."""
        return self._renamed.get((cluster, name), set()) | {*self._by_evidence.get((cluster, "name", name), ())}

    def _with_dated_name(self, cluster: str, known: KnownMachine) -> KnownMachine:
        """Return a machine that has its newest name from when no other node had it: its clock can be wrong.

        Guests of several hypervisors can have one name at the same time.
        """
        if known.machine.kind is MachineKind.GUEST:
            return known
        *before, newest = known.renames
        bearers = [self._rows[id_].known for id_ in self._bearers(cluster, newest.name) - {known.id}]
        ends = [name_end(one, newest.name) for one in bearers if one.machine.kind is MachineKind.NODE]
        return msgspec.structs.replace(known, renames=(*before, BorneName(newest.name, max([newest.since, *ends]))))

    def _new_id(self) -> str:
        for _ in range(8):
            id = "m-" + base64.b32encode(secrets.token_bytes(8)).decode().lower()[:12]  # noqa: A001
            if id not in self._rows:
                return id
        raise RegistryError("found no unused machine id in 8 attempts: check the random source of this host")

    def _store(self, row: MachineRow) -> None:
        """Store a new or changed machine."""
        before = self._rows.get(row.known.id)
        if before is None or _order(before) != _order(row):
            if before is not None:
                self._in_order.remove(*_order(before))
            self._in_order.add(*_order(row))
        keys = self._add(row)
        self._index_renames(before, row)
        if before is not None:  # only now: `knows` may run meanwhile
            for key in set(evidence_keys(before)).difference(keys):
                self._remove_evidence(key, row.known.id)
            if _report(before) != _report(row):
                self._by_report.pop(_report(before), None)
        self._changed[row.known.id] = None

    def _add(self, row: MachineRow) -> list[tuple[str, str, str]]:
        """Add a row to all indexes but that of the order, and return its evidence."""
        id_, keys = row.known.id, evidence_keys(row)
        for key in keys:
            ids = self._by_evidence.get(key)
            if ids is None:
                self._by_evidence[key] = (id_,)
            elif id_ not in ids:
                self._by_evidence[key] = (*ids, id_)
        self._rows[id_] = self._by_cluster.setdefault(row.cluster, {})[id_] = row
        if row.retired_at is not None:
            self._retired.add(id_)
        if row.known.successor is not None:
            self._succeeded.add(id_)
        self._recount(row)
        return keys

    def _index_renames(self, before: MachineRow | None, row: MachineRow) -> None:
        if not row.known.renames and (before is None or not before.known.renames):
            return  # almost all machines
        names, former = ({one.name for one in each.known.renames} if each else set() for each in (row, before))
        for name in names - former:
            self._renamed.setdefault((row.cluster, name), set()).add(row.known.id)
        for name in former - names:
            ids = self._renamed[row.cluster, name]
            ids.discard(row.known.id)
            if not ids:
                del self._renamed[row.cluster, name]

    def _remove_evidence(self, key: tuple[str, str, str], id: str) -> None:  # noqa: A002
        left = tuple([one for one in self._by_evidence[key] if one != id])
        if left:
            self._by_evidence[key] = left
        else:
            del self._by_evidence[key]

    def _record(self, row: MachineRow) -> MachineRecord:
        return MachineRecord(
            id=row.known.id,
            cluster=row.cluster,
            machine=row.known.machine,
            sender=row.sender,
            first_seen=to_datetime(row.first_seen),
            last_seen=to_datetime(row.known.last_seen),
            conflict=self._conflicts.text(row.known),
            hypervisor_id=row.known.host or None,
            named_only=row.known.named_only,
            retired_at=None if row.retired_at is None else to_datetime(row.retired_at),
        )


def _report(row: MachineRow) -> tuple[str, str, Machine]:
    return row.cluster, row.sender, row.evidence


def _order(row: MachineRow) -> tuple[str, str, str]:
    return row.cluster, row.known.machine.name, row.known.id


class MachineOrder:
    """Sorted index of machine ids by cluster, name and id: a page is found without sorting all machines."""

    def __init__(self) -> None:
        self._clusters: dict[str, list[tuple[str, str]]] = {}

    def add(self, cluster: str, name: str, id: str) -> None:  # noqa: A002 - the term of the domain
        """Insert a machine."""
        bisect.insort(self._clusters.setdefault(cluster, []), (name, id))

    def add_all(self, places: Iterable[tuple[str, str, str]]) -> None:
        """Insert machines by cluster, name and id."""
        for cluster, name, id_ in places:
            self._clusters.setdefault(cluster, []).append((name, id_))
        for machines in self._clusters.values():
            machines.sort()

    def remove(self, cluster: str, name: str, id: str) -> None:  # noqa: A002
        """Remove a machine that was added with this name."""
        machines = self._clusters[cluster]
        del machines[bisect.bisect_left(machines, (name, id))]

    def count(self, cluster: str) -> int:
        """Return the number of machines of a cluster."""
        return len(self._clusters.get(cluster, ()))

    def after(self, cluster: str | None, place: tuple[str, str, str] | None) -> Iterator[str]:
        """Yield machine ids (of one cluster) after a place: a cluster, name and id."""
        for one in sorted(self._clusters) if cluster is None else (cluster,):
            machines = self._clusters.get(one, [])
            if place is None or one > place[0]:
                first = 0
            elif one == place[0]:
                first = bisect.bisect_right(machines, place[1:])
            else:
                continue
            for at in range(first, len(machines)):
                yield machines[at][1]
