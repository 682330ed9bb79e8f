"""The machines of a registry: matched in memory, learned changes kept until they are saved together.

Machines in the order in which they are listed: a page is found without sorting all of them.
"""

import base64
import bisect
import secrets
from collections.abc import Collection, Iterator

import msgspec
import sqlalchemy as sa

from gpufleet.fleet.identity import EVIDENCE, Decision, Known, Verdict, decide, introduce
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.errors import CrowdedError, NotFoundError, RegistryError
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.stored.ledger import MachineMark, MachineMatch, MachinesHeard
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.registry import tables
from gpufleet.registry.database import Row, replace, run


class MachineOrder:
    """Ids of machines by cluster, name and id."""

    def __init__(self) -> None:
        self._clusters: dict[str, list[tuple[str, str]]] = {}

    def add(self, cluster: str, name: str, id: str) -> None:  # noqa: A002 - the word of the domain
        """Put a machine where it belongs."""
        bisect.insort(self._clusters.setdefault(cluster, []), (name, id))

    def remove(self, cluster: str, name: str, id: str) -> None:  # noqa: A002
        """Take one out that was put there under this name."""
        machines = self._clusters[cluster]
        del machines[bisect.bisect_left(machines, (name, id))]

    def count(self, cluster: str) -> int:
        """Return how many a cluster has."""
        return len(self._clusters.get(cluster, ()))

    def after(self, cluster: str | None, place: tuple[str, str, str] | None) -> Iterator[str]:
        """Go through those of one cluster, or of all, that come after a cluster, name and id."""
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


_COLUMNS = ("id", "cluster", "sender", "known", "first_seen", "last_seen")

_HEARD = (
    tables.MACHINES.update()
    .where(tables.MACHINES.c.id == sa.bindparam("which"))
    .values(last_seen=sa.bindparam("last_seen"))
)
"""What is written of a machine of which nothing is new but that it was heard of."""

_RETIRED = (
    tables.MACHINES.update()
    .where(tables.MACHINES.c.id == sa.bindparam("which"))
    .values(retired_at=sa.bindparam("retired_at"))
)
"""What is written of one whose retirement was of a time to come."""


BACK_NS = 60 * NANOS
"""What was heard or retired so long after a receipt was so before the hub's clock was set back."""

MAX_MACHINES = 100_000
"""Machines that one cluster may have; each takes about 1.4 kB of memory, and a row."""


class Conflict(msgspec.Struct, frozen=True):
    """One machine's evidence contradicts another's; `other` is empty where only boots alternate under one id."""

    machine: str
    other: str
    field: str
    value: str


class _Row(msgspec.Struct):
    cluster: str
    sender: str
    known: Known
    first_seen: int
    said: Machine  # the newest evidence exactly as it came
    retired_at: int | None = None


class Machines:
    """Every machine of a registry. Not thread-safe: the registry holds its lock around each call."""

    def __init__(self, max_machines: int = MAX_MACHINES) -> None:
        self._max_machines = max_machines
        self._in_order = MachineOrder()
        self._retired: set[str] = set()  # at any time: what was heard of since is not
        self._rows: dict[str, _Row] = {}
        self._by_cluster: dict[str, dict[str, _Row]] = {}
        self._by_evidence: dict[tuple[str, str, str], set[str]] = {}
        self._by_words: dict[tuple[str, str, Machine], str] = {}
        self._conflicts: dict[str, dict[Conflict, int]] = {}
        self._changed: dict[str, None] = {}
        self._heard: dict[str, None] = {}
        self._new_conflicts: list[Conflict] = []
        self._retired_before: dict[str, int] = {}

    def load(self, connection: sa.Connection) -> None:
        """Read everything."""
        for row in connection.execute(sa.select(tables.MACHINES)):
            known = msgspec.msgpack.decode(row.known, type=Known)
            known = msgspec.structs.replace(known, last_seen=max(known.last_seen, row.last_seen))
            self._keep(_Row(row.cluster, row.sender, known, row.first_seen, known.machine, row.retired_at))
        for row in connection.execute(sa.select(tables.CONFLICTS)):
            conflict = Conflict(row.machine, row.other, row.field, row.value)
            self._conflicts.setdefault(row.machine, {})[conflict] = row.since
        self._changed.clear()

    def match(self, cluster: str, sender: str, machine: Machine, at: int, now: int) -> MachineMatch:
        """Return the machine that the evidence belongs to; see `ports.Registry.match`."""
        words = (cluster, sender, machine)
        known_id = self._by_words.get(words)
        if known_id is not None and self._rows[known_id].said == machine and not self._rows[known_id].known.named_only:
            row = self._rows[known_id]  # the same words as last time, nothing else said under this id since
            self._set_back(row, now)
            row.known = msgspec.structs.replace(row.known, last_seen=max(at, row.known.last_seen))
            self._heard[known_id] = None
            return MachineMatch(known_id, self._conflict_words(known_id))
        for one in self._candidates(cluster, machine):
            self._set_back(self._rows[one.id], now)
        decision = decide(self._candidates(cluster, machine), machine, at)
        row = self._settle(decision, cluster, sender, machine, at)
        row.known = msgspec.structs.replace(row.known, named_only=False)
        self._keep(row)
        self._record_conflicts(row, decision, at)
        self._by_words[words] = row.known.id
        return MachineMatch(row.known.id, self._conflict_words(row.known.id))

    def name(self, cluster: str, sender: str, machine: Machine, at: int, now: int) -> MachineMatch:
        """Return the machine that somebody else names; see `ports.Registry.name`."""
        decision = decide(self._candidates(cluster, machine), machine, at)
        if decision.verdict is Verdict.NEW:
            row = self._settle(decision, cluster, sender, machine, at)
            row.known = msgspec.structs.replace(row.known, named_only=True)
            self._keep(row)
            return MachineMatch(row.known.id)
        assert decision.known is not None
        row = self._rows[decision.known.id]
        if row.known.named_only:
            self._set_back(row, now)
        if row.known.named_only and row.retired_at is None and at > row.known.last_seen:
            row.known, row.sender = msgspec.structs.replace(row.known, last_seen=at), sender
            self._changed[row.known.id] = None
        return MachineMatch(row.known.id, self._conflict_words(row.known.id))

    def _set_back(self, row: _Row, now: int) -> None:
        """Make what is of a time to come older than what is heard now."""
        if row.known.last_seen > now + BACK_NS:
            row.known = msgspec.structs.replace(row.known, last_seen=now - 1)
            self._changed[row.known.id] = None
        if row.retired_at is not None and row.retired_at > now + BACK_NS:
            row.retired_at = self._retired_before[row.known.id] = now - 1

    def records(
        self,
        cluster: str | None,
        kind: MachineKind | None = None,
        after: tuple[str, str, str] | None = None,
        limit: int | None = None,
    ) -> tuple[MachineRecord, ...]:
        """Return every machine, or a part of them; see `ports.Registry.machines`."""
        found: list[MachineRecord] = []
        for id_ in self._in_order.after(cluster, after):
            if len(found) == limit:
                break
            row = self._rows[id_]
            if kind is None or row.known.machine.kind is kind:
                found.append(self._record(row))
        return tuple(found)

    def called(self, cluster: str, word: str) -> tuple[MachineRecord, ...]:
        """Return the machine of this id, or those of this host name; see `ports.Registry.machines_called`."""
        row = self._rows.get(word)
        if row is not None and row.cluster == cluster:
            return (self._record(row),)
        rows = [self._rows[id_] for id_ in self._by_evidence.get((cluster, "name", word), ())]
        return tuple(self._record(row) for row in sorted(rows, key=_order))

    def with_uuid(self, cluster: str, uuid: str) -> tuple[MachineRecord, ...]:
        """Return the machines of this system UUID; see `ports.Registry.machines_with_uuid`."""
        rows = [self._rows[id_] for id_ in self._by_evidence.get((cluster, "system_uuid", uuid), ())]
        return tuple(self._record(row) for row in sorted(rows, key=_order))

    def record(self, id: str) -> MachineRecord:  # noqa: A002 - the word of the domain
        """Return one machine. Raises NotFoundError."""
        row = self._rows.get(id)
        if row is None:
            raise NotFoundError(f"there is no machine {id!r}")
        return self._record(row)

    def last_seen(self, id: str) -> int:  # noqa: A002
        """Return when one was heard of last. Raises NotFoundError."""
        self.record(id)
        return self._rows[id].known.last_seen

    def marks(self, cluster: str | None) -> tuple[MachineMark, ...]:
        """Return how recently each machine was heard of; see `ports.Registry.machine_marks`."""
        return tuple(map(self._mark, self._rows_of(cluster)))

    def marks_beside_retired(self, cluster: str | None) -> tuple[MachineMark, ...]:
        """Return those of senders that speak for a retired machine."""
        retired = [self._rows[id_] for id_ in self._retired]
        speakers = {(row.cluster, row.sender) for row in retired if cluster in (None, row.cluster)}
        found = (row for one in {cluster for cluster, _ in speakers} for row in self._rows_of(one))
        return tuple(self._mark(row) for row in found if (row.cluster, row.sender) in speakers)

    def heard(self, cluster: str) -> MachinesHeard:
        """Return how recently the machines of a cluster were heard of; see `ports.Registry.machines_heard`."""
        rows, doubted = self._rows_of(cluster), self._conflicts
        plain = [
            row for row in rows if row.retired_at is None and not row.known.named_only and row.known.id not in doubted
        ]
        has_others = len(plain) < len(rows)  # one look at each of 125,000 rows more takes 20 ms
        ids = [row.known.id for row in plain]
        others = (set(self._by_cluster[cluster]) - set(ids)) if has_others else ()
        return MachinesHeard(
            ids=ids,
            senders=[row.sender for row in plain],
            last_seen=[row.known.last_seen for row in plain],
            others=tuple(self._mark(self._rows[id_]) for id_ in others),
        )

    def _mark(self, row: _Row) -> MachineMark:
        id_ = row.known.id
        return MachineMark(
            id=id_,
            cluster=row.cluster,
            sender=row.sender,
            last_seen=row.known.last_seen,
            retired_at=row.retired_at,
            conflict=id_ in self._conflicts and self._conflict_words(id_) is not None,
            named_only=row.known.named_only,
        )

    def _rows_of(self, cluster: str | None) -> Collection[_Row]:
        """Return the machines of one cluster, or of all, in any order."""
        return (self._rows if cluster is None else self._by_cluster.get(cluster, {})).values()

    def retire(self, connection: sa.Connection, id: str, at: int) -> None:  # noqa: A002
        """Keep that a machine is gone, inside the caller's transaction; call `retired` after. Raises NotFoundError."""
        self.record(id)
        table = tables.MACHINES
        if connection.execute(table.update().where(table.c.id == id).values(retired_at=at)).rowcount != 1:
            connection.execute(
                table.insert(), [{**dict(zip(_COLUMNS, _values(self._rows[id]), strict=True)), "retired_at": at}]
            )  # matched just now

    def retired(self, id: str, at: int) -> None:  # noqa: A002
        """Remember what `retire` kept."""
        self._rows[id].retired_at = at
        self._retired.add(id)

    def save(self, connection: sa.Connection) -> None:
        """Write what changed, inside the caller's transaction; call `saved` after it was committed."""
        rows = [self._rows[machine] for machine in self._changed]
        if rows:
            replace(connection, tables.MACHINES, _COLUMNS, [_values(row) for row in rows])
            _save_evidence(connection, rows)
        heard = [(self._rows[id].known.last_seen, id) for id in self._heard if id not in self._changed]  # noqa: A001
        run(connection, _HEARD, ("last_seen", "which"), heard)
        retired = [(at, id) for id, at in self._retired_before.items()]  # noqa: A001
        run(connection, _RETIRED, ("retired_at", "which"), retired)
        for conflict in self._new_conflicts:
            since = self._conflicts[conflict.machine][conflict]
            connection.execute(tables.CONFLICTS.insert().values(**msgspec.structs.asdict(conflict), since=since))

    def saved(self) -> None:
        """Forget what was to be written."""
        self._changed.clear()
        self._heard.clear()
        self._retired_before.clear()
        self._new_conflicts.clear()

    def _candidates(self, cluster: str, machine: Machine) -> list[Known]:
        ids: dict[str, None] = {}
        for field in EVIDENCE:
            value = getattr(machine, field)
            if value:
                ids.update(dict.fromkeys(sorted(self._by_evidence.get((cluster, field, value), ()))))
        return [self._rows[machine_id].known for machine_id in ids]

    def _settle(self, decision: Decision, cluster: str, sender: str, machine: Machine, at: int) -> _Row:
        if decision.verdict is Verdict.NEW:
            count = self._in_order.count(cluster)
            if count >= self._max_machines:
                raise CrowdedError(
                    f"{machine.name!r} would be machine {count + 1} of cluster {cluster!r}, which may "
                    f"have {self._max_machines}: somebody makes them up with its token, or it should be several"
                )
            return _Row(cluster, sender, introduce(self._new_id(), machine, at), at, machine)
        assert decision.known is not None
        before = self._rows[decision.known.id]
        # What was true before somebody else's newer word does not make its sender the machine's.
        is_newest = at >= before.known.last_seen or before.known.named_only
        speaker = sender if is_newest else before.sender
        return _Row(cluster, speaker, decision.known, before.first_seen, machine, before.retired_at)

    def _new_id(self) -> str:
        for _ in range(8):
            id = "m-" + base64.b32encode(secrets.token_bytes(8)).decode().lower()[:12]  # noqa: A001
            if id not in self._rows:
                return id
        raise RegistryError("could not find an unused machine id: the random source repeats itself")

    def _keep(self, row: _Row) -> None:
        id = row.known.id  # noqa: A001
        before = self._rows.get(id)
        if before is None:
            self._in_order.add(*_order(row))
        else:
            if before.known.machine.name != row.known.machine.name:
                self._in_order.remove(*_order(before))
                self._in_order.add(*_order(row))
            for key in _evidence_keys(before):
                self._by_evidence[key].discard(id)
        for key in _evidence_keys(row):
            self._by_evidence.setdefault(key, set()).add(id)
        if before is not None and (before.cluster, before.sender, before.said) != (row.cluster, row.sender, row.said):
            self._by_words.pop((before.cluster, before.sender, before.said), None)
        self._rows[id] = self._by_cluster.setdefault(row.cluster, {})[id] = row
        if row.retired_at is not None:
            self._retired.add(id)
        self._changed[id] = None

    def _record_conflicts(self, row: _Row, decision: Decision, at: int) -> None:
        if not decision.shared:
            return
        id, machine = row.known.id, row.said  # noqa: A001
        if decision.verdict is Verdict.RETURNED:
            assert machine.boot_id is not None
            self._conflict(Conflict(id, "", "boot_id", machine.boot_id), at)
        value = getattr(machine, decision.shared)
        for rival in decision.rivals:
            self._conflict(Conflict(id, rival, decision.shared, value), at)
            self._conflict(Conflict(rival, id, decision.shared, value), at)

    def _conflict(self, conflict: Conflict, at: int) -> None:
        known = self._conflicts.setdefault(conflict.machine, {})
        if conflict not in known:
            known[conflict] = at
            self._new_conflicts.append(conflict)

    def _conflict_words(self, id: str) -> str | None:  # noqa: A002
        """Say the conflicts whose evidence the machine still shows: one that was mended is silent."""
        machine = self._rows[id].known.machine
        words = [
            f"shares {one.field} {one.value} with {one.other}: one of them is a clone"
            if one.other
            else f"boot id {one.value} came back after another one: two machines report under this evidence"
            for one in self._conflicts.get(id, ())
            if getattr(machine, one.field) == one.value
        ]
        return "; ".join(words) or None

    def _record(self, row: _Row) -> MachineRecord:
        return MachineRecord(
            id=row.known.id,
            cluster=row.cluster,
            machine=row.known.machine,
            sender=row.sender,
            first_seen=to_datetime(row.first_seen),
            last_seen=to_datetime(row.known.last_seen),
            conflict=self._conflict_words(row.known.id),
            named_only=row.known.named_only,
            retired_at=None if row.retired_at is None else to_datetime(row.retired_at),
        )


def _order(row: _Row) -> tuple[str, str, str]:
    return row.cluster, row.known.machine.name, row.known.id


def _evidence_keys(row: _Row) -> list[tuple[str, str, str]]:
    pairs = ((field, getattr(row.known.machine, field)) for field in EVIDENCE)
    return [(row.cluster, field, value) for field, value in pairs if value]


def _values(row: _Row) -> Row:
    """Return the values of `_COLUMNS`."""
    known = row.known
    return known.id, row.cluster, row.sender, msgspec.msgpack.encode(known), row.first_seen, known.last_seen


def _save_evidence(connection: sa.Connection, rows: list[_Row]) -> None:
    """Add evidence that was not seen on the machine before; what was once seen stays."""
    ids = [row.known.id for row in rows]
    table = tables.EVIDENCE
    held: set[tuple[str, str, str]] = set()
    for start in range(0, len(ids), 500):
        query = sa.select(table.c.machine, table.c.field, table.c.value).where(
            table.c.machine.in_(ids[start : start + 500])
        )
        held.update((row.machine, row.field, row.value) for row in connection.execute(query))
    new = [
        {"machine": row.known.id, "field": field, "value": value, "since": row.known.last_seen}
        for row in rows
        for _, field, value in _evidence_keys(row)
        if (row.known.id, field, value) not in held
    ]
    if new:
        connection.execute(table.insert(), new)
