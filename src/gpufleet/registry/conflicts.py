"""Conflicting evidence of machines: clones, and two agents that report as one machine."""

import msgspec
import sqlalchemy as sa

from gpufleet.fleet.identity import RETURN_NS, KnownMachine, MatchDecision, MatchOutcome
from gpufleet.model.machine import Machine
from gpufleet.registry import tables


class EvidenceConflict(msgspec.Struct, frozen=True):
    """Contradiction between the evidence of two machines; `other` is empty if boot ids alternate under one id."""

    machine: str
    other: str
    field: str
    value: str


class _Alternation(msgspec.Struct, frozen=True):
    """Newest report of a machine under a former name; `agents` are the names, each with its sender."""

    at: int
    agents: tuple[tuple[str, str], ...]


class ConflictLog:
    """Conflicts of a registry's machines by id, and the unsaved ones. Not thread-safe."""

    def __init__(self) -> None:
        self._conflicts: dict[str, dict[EvidenceConflict, int]] = {}  # with the time of each
        self._unsaved: list[EvidenceConflict] = []
        self._former_names: dict[str, Machine] = {}
        self._alternations: dict[str, _Alternation] = {}

    def load(self, connection: sa.Connection) -> None:
        """Load the saved conflicts."""
        for row in connection.execute(sa.select(tables.CONFLICTS)):
            conflict = EvidenceConflict(row.machine, row.other, row.field, row.value)
            self._conflicts.setdefault(row.machine, {})[conflict] = row.since

    def save(self, connection: sa.Connection) -> None:
        """Write new conflicts inside the caller's transaction; call `confirm_saved` after the commit."""
        for conflict in self._unsaved:
            since = self._conflicts[conflict.machine][conflict]
            connection.execute(tables.CONFLICTS.insert().values(**msgspec.structs.asdict(conflict), since=since))

    def confirm_saved(self) -> None:
        """Clear the list of unsaved conflicts."""
        self._unsaved.clear()

    def machines(self) -> set[str]:
        """Return the ids of machines that had a conflict at any time."""
        return self._conflicts.keys() | self._alternations.keys()

    def has(self, id: str) -> bool:  # noqa: A002 - the term of the domain
        """Return whether a machine had a conflict at any time."""
        return id in self._conflicts or id in self._alternations

    def text(self, known: KnownMachine) -> str | None:
        """Return the text of the conflicts whose evidence the machine still reports, or None."""
        conflicts, alternation = self._conflicts.get(known.id, {}), self._alternations.get(known.id)
        if not conflicts and alternation is None:
            return None
        texts = [
            f"shares {one.field} {one.value} with {one.other}: one of them is a clone"
            if one.other
            else f"boot id {one.value} returned after another boot id: two machines report with this evidence"
            for one in conflicts
            if getattr(known.machine, one.field) == one.value
        ]
        if alternation is not None and known.last_seen - alternation.at < RETURN_NS:
            agents = " and ".join(f"{name!r} (sender {sender!r})" for name, sender in alternation.agents)
            texts.append(f"reports alternately as {agents}: stop one of the two senders, or give both one node name")
        return "; ".join(texts) or None

    def record_name(self, known: KnownMachine, known_sender: str, sender: str, machine: Machine, at: int) -> None:
        """Record a report of a known machine under another name. A return to its former name shows two agents."""
        if known.named_only or known.machine.name == machine.name or at < known.last_seen:
            return
        former = self._former_names.get(known.id)
        if former is not None and former.name == machine.name:
            agents = sorted({(known.machine.name, known_sender), (machine.name, sender)})
            self._alternations[known.id] = _Alternation(at, tuple(agents))
        self._former_names[known.id] = known.machine

    def record_decision(self, id: str, evidence: Machine, decision: MatchDecision, at: int) -> None:  # noqa: A002
        """Record the contradictions that a match found."""
        if not decision.shared:
            return
        if decision.verdict is MatchOutcome.RETURNED:
            assert evidence.boot_id is not None
            self._add(EvidenceConflict(id, "", "boot_id", evidence.boot_id), at)
        value = getattr(evidence, decision.shared)
        for rival in decision.rivals:
            self._add(EvidenceConflict(id, rival, decision.shared, value), at)
            self._add(EvidenceConflict(rival, id, decision.shared, value), at)

    def _add(self, conflict: EvidenceConflict, at: int) -> None:
        known = self._conflicts.setdefault(conflict.machine, {})
        if conflict not in known:
            known[conflict] = at
            self._unsaved.append(conflict)
