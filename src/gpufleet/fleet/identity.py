"""Matching of evidence to machines. Pure, so that the rules can be tested on every order of events.

Rule 1. The strongest evidence that two records share decides: system UUID, Kubernetes node UID, cloud instance
        id, machine-id, and last the host name.
Rule 2. Records that differ in stronger evidence are two machines, whatever weaker evidence they share.
Rule 3. A boot id distinguishes a clone from a restart. A boot id never recurs: a recurring one is another machine's.
        Two host names with two boot ids at the same time are two machines. Late reports, made before the newest one
        of the machine was received, are neither, and change no name and no boot: backlogs arrive in any order. The
        sender's clock, which can be wrong, decides that only for reports that a newer one of the sender overtook.
Rule 4. The machine that first had an id keeps it. A clone gets a new id, and both carry the conflict.
Rule 5. A guest's evidence is its own claim. It is compared with guests of the same hypervisor only. The hypervisor is
        identified by its id, since its name may change and pass to another machine.
Rule 6. A report without a boot id, such as an imported series, belongs to the live bearer of its name, or else to the
        one that was last seen. With several live bearers, it belongs to a machine of its own, known by the name only.
        An import has no evidence but the name: its source adds other ids to what the name means there. The id of a
        machine must not be learnt from a name.
"""

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from gpufleet.model.machine import ATTRIBUTES, Machine, MachineKind
from gpufleet.model.stored.ledger import NameInterval, SucceededMachine
from gpufleet.model.time import NANOS

EVIDENCE = ("system_uuid", "k8s_node_uid", "instance_id", "machine_id", "name")
"""Identifying fields of `Machine`, strongest first."""

LIVE_NS = 60 * NANOS
"""A machine seen this recently was not reinstalled or renamed during a restart: two heartbeats."""

RETURN_NS = 600 * NANOS
"""A boot id that recurs within this time after another one shows two machines; later it may be late data."""

BOOTS_KEPT = 4
RENAMES_KEPT = 16
CLONE_BOOTS_KEPT = 8


class Boot(msgspec.Struct, frozen=True, array_like=True):
    """Boot id and the time it was last seen."""

    boot_id: str
    last_seen: int


class BorneName(msgspec.Struct, frozen=True, array_like=True):
    """Host name of a machine, and the time of the first report under it."""

    name: str
    since: int


class KnownMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Machine as used for matching.

    Attributes:
        id: the hub's id.
        machine: merged evidence.
        last_seen: nanoseconds since 1970 by the hub's clock.
        boots: its newest boots, newest last.
        clone_boots: boot ids that were found to be a clone's.
        named_only: listed by another source but never reported, last listed at `last_seen`.
        host: of a guest, the id of its hypervisor; empty if unknown.
        renames: its newest host names in order of time, also of names that it returned to; empty if it has had one
            that no other machine had before.
        made_at: time at which its newest report was made, by its sender's clock and at most that of receipt, or one
            shortly before; after a restart that of receipt. 0 if only its name was reported.
        imported_at: newest receipt of measurements that a third party made under its name; 0 if there are none.
        successor: of a machine that only third parties reported, the id of the same machine by its own report; or None.
            No later report is of the first.
    """

    id: str
    machine: Machine
    last_seen: int
    boots: tuple[Boot, ...] = ()
    clone_boots: tuple[str, ...] = ()
    named_only: bool = False
    host: str = ""
    renames: tuple[BorneName, ...] = ()
    made_at: int = 0
    imported_at: int = 0
    successor: str | None = None


def name_end(known: KnownMachine, name: str) -> int:
    """Return the earliest time at which another machine can have a name that this one has or had."""
    if known.machine.name == name:
        return known.made_at + 1
    return max((after.since for before, after in pairwise(known.renames) if before.name == name), default=0)


def names_within(known: KnownMachine, start: int, end: int) -> tuple[NameInterval, ...]:
    """Return the host names of a machine within an interval, nanoseconds since 1970, in order of time.

    A name is not known before the renames that are kept, and where their times contradict their order.
    """
    borne = _renames(known)
    cuts = sorted({start, end, *(one.since for one in borne if start < one.since < end)})
    return tuple(NameInterval(_name_at(borne, first), first, last) for first, last in pairwise(cuts))


def _name_at(borne: Sequence[BorneName], at: int) -> str | None:
    begun = [one for one in borne if one.since <= at]
    return begun[-1].name if begun and begun[-1].since == max(one.since for one in begun) else None


def _renames(known: KnownMachine) -> tuple[BorneName, ...]:
    return known.renames or (BorneName(known.machine.name, 0),)


class MachineIds:
    """Ids of machines. Several can have proved to be of one machine: the main one is that of its own reports."""

    def __init__(self, succeeded: Iterable[SucceededMachine] = ()) -> None:
        self._main = {one.machine: one.successor for one in succeeded}
        self._others: dict[str, list[str]] = defaultdict(list)
        for id_, main in self._main.items():
            self._others[main].append(id_)

    def main(self, id: str) -> str:  # noqa: A002 - the term of the domain
        """Return the main id of a machine."""
        return self._main.get(id, id)

    def of(self, id: str) -> tuple[str, ...]:  # noqa: A002 - as above
        """Return all ids of a machine, the main one first."""
        main = self.main(id)
        return main, *self._others.get(main, ())


class MatchOutcome(enum.Enum):
    """Result of matching the evidence."""

    SAME = enum.auto()  # the known machine
    LATE = enum.auto()  # the known machine, whose evidence is newer
    RETURNED = enum.auto()  # the known machine, after another one reported under its id
    NEW = enum.auto()  # none of the known machines


class MatchDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a match.

    Attributes:
        verdict: the result.
        known: the machine record to store; None if it is new.
        rivals: ids of other machines that the evidence contradicts.
        shared: field of the contradicted evidence, empty without rivals or return.
    """

    verdict: MatchOutcome
    known: KnownMachine | None = None
    rivals: tuple[str, ...] = ()
    shared: str = ""


def decide(
    known: Iterable[KnownMachine],
    machine: Machine,
    at: int,
    host: str = "",
    made_at: int | None = None,
    *,
    overtaken: bool = False,
) -> MatchDecision:
    """Match evidence against the machines of its cluster that share any evidence with it.

    Args:
        known: those machines.
        machine: the evidence.
        at: time of receipt; for a late report, which newer ones overtook, the time of sending.
        host: of a guest, the id of its hypervisor; empty if unknown.
        made_at: when the report was made, if that is before `at`: a machine has a new name since then.
        overtaken: whether a newer report of the sender was received before.
    """
    made_at = at if made_at is None else min(made_at, at)
    known_at = made_at if overtaken else at
    rivals: list[KnownMachine] = []
    shared = ""
    candidates = [one for one in known if _comparable(one, machine, host)]
    for level, field in enumerate(EVIDENCE):
        value = getattr(machine, field)
        holders = [one for one in candidates if value and getattr(one.machine, field) == value]
        fits = [one for one in holders if _compatible(one, machine, level)]
        chosen = _choose(fits, machine, at, known_at)
        if chosen is not None and _is_late(chosen, machine, known_at):
            received = msgspec.structs.replace(chosen, last_seen=max(at, chosen.last_seen))
            return MatchDecision(verdict=MatchOutcome.LATE, known=received)
        if chosen is not None and _boot_returned(chosen, machine, at):
            return MatchDecision(
                verdict=MatchOutcome.RETURNED, known=_given_back(chosen, machine, at, made_at), shared=field
            )
        if chosen is not None:
            new_rivals = [one for one in rivals if one.id != chosen.id]
            return MatchDecision(
                verdict=MatchOutcome.SAME,
                known=_merge(chosen, machine, at, made_at),
                rivals=tuple(one.id for one in new_rivals),
                shared=shared if new_rivals else "",
            )
        if field != "name":
            contradicting = [one for one in holders if one in fits or _live(one, at) or _is_clone(one, machine)]
            rivals += [one for one in contradicting if one not in rivals]
            shared = shared or (field if contradicting else "")
        if fits:
            break  # shared evidence of this strength matches none of them: weaker evidence cannot decide
    return MatchDecision(verdict=MatchOutcome.NEW, rivals=tuple(one.id for one in rivals), shared=shared)


def new_machine(id: str, machine: Machine, at: int, made_at: int = 0) -> KnownMachine:  # noqa: A002 - the API's name
    """Return the record of a machine that was never seen before; arguments as in `decide`."""
    boots = (Boot(machine.boot_id, at),) if machine.boot_id else ()
    return with_made_at(KnownMachine(id=id, machine=machine, last_seen=at, boots=boots), machine, made_at)


def with_made_at(one: KnownMachine, machine: Machine, made_at: int) -> KnownMachine:
    """Return a machine after a report. An import has the time of its source, and shows no newer name."""
    if made_at <= one.made_at or has_name_only(machine):
        return one
    return msgspec.structs.replace(one, made_at=made_at)


def with_imported_at(one: KnownMachine, machine: Machine, at: int) -> KnownMachine:
    """Return a machine after a report with measurements, which can be an import."""
    return msgspec.structs.replace(one, imported_at=max(at, one.imported_at)) if has_name_only(machine) else one


def has_name_only(machine: Machine) -> bool:
    """Return whether the host name is the only evidence of a machine."""
    return not machine.boot_id and not any(getattr(machine, field) for field in EVIDENCE if field != "name")


def _renamed(one: KnownMachine, name: str, made_at: int) -> tuple[BorneName, ...]:
    """Return the renames of a machine that reports under a name: not before its reports under the name before."""
    if name == one.machine.name:
        return one.renames
    return (*_renames(one), BorneName(name, max(made_at, one.made_at + 1)))[-RENAMES_KEPT:]


def _comparable(one: KnownMachine, machine: Machine, host: str) -> bool:
    if one.machine.kind is not machine.kind:
        return False
    if machine.kind is not MachineKind.GUEST:
        return True
    return one.host == host if one.host and host else one.machine.hypervisor == machine.hypervisor


def _compatible(one: KnownMachine, machine: Machine, level: int) -> bool:
    """Return whether no stronger evidence, and no boot id, shows that they are two machines."""
    if _is_clone(one, machine):
        return False
    for field in EVIDENCE[:level]:
        ours, theirs = getattr(one.machine, field), getattr(machine, field)
        if ours and theirs and ours != theirs:
            return False
    return True


def _is_clone(one: KnownMachine, machine: Machine) -> bool:
    return machine.boot_id is not None and machine.boot_id in one.clone_boots


def _live(one: KnownMachine, at: int) -> bool:
    return at - one.last_seen <= LIVE_NS


def _boot_returned(one: KnownMachine, machine: Machine, at: int) -> bool:
    return any(boot.boot_id == machine.boot_id and at - boot.last_seen <= RETURN_NS for boot in one.boots[:-1])


def _is_late(one: KnownMachine, machine: Machine, made_at: int) -> bool:
    """Return whether this is a late report of another boot or name, made before the newest one was received."""
    is_other_boot = one.machine.boot_id and machine.boot_id and machine.boot_id != one.machine.boot_id
    return bool(is_other_boot or machine.name != one.machine.name) and made_at < one.last_seen


def _had_boot(one: KnownMachine, machine: Machine) -> bool:
    return any(boot.boot_id == machine.boot_id for boot in one.boots[:-1])


def _at_odds(one: KnownMachine, machine: Machine, at: int, made_at: int) -> bool:
    """Return whether both are live now under two names and two boots.

    A late report is of the same machine only under a former name, or of a known boot: it can be of a new clone.
    """
    if one.machine.boot_id is None or machine.boot_id is None or _boot_returned(one, machine, at):
        return False
    is_former = _had_boot(one, machine) or any(each.name == machine.name for each in one.renames)
    if is_former and _is_late(one, machine, made_at):
        return False
    return _live(one, at) and one.machine.boot_id != machine.boot_id and one.machine.name != machine.name


def _choose(fits: list[KnownMachine], machine: Machine, at: int, made_at: int) -> KnownMachine | None:
    same_boot = [one for one in fits if machine.boot_id and one.machine.boot_id == machine.boot_id]
    if len(same_boot) == 1:
        return same_boot[0]
    returned = [one for one in fits if _boot_returned(one, machine, at)]
    if len(returned) == 1:
        return returned[0]
    fits = [one for one in fits if not _at_odds(one, machine, at, made_at)]
    if len(fits) <= 1:
        return fits[0] if fits else None
    if machine.boot_id is None:
        return _newest(fits, machine, at)
    named = [one for one in fits if one.machine.name == machine.name]
    if len(named) == 1:
        return named[0]
    not_live = [one for one in fits if not _live(one, at)]
    return not_live[0] if len(not_live) == 1 else None


def _newest(fits: list[KnownMachine], machine: Machine, at: int) -> KnownMachine | None:
    """Return the live machine, or the one last seen if none is live.

    If several are live, such as clones, return the only node with the name. If there is none, return the one last seen
    of those without other evidence than the name, or than this evidence from third parties; or None.
    """
    live = [one for one in fits if _live(one, at)]
    if len(live) == 1:
        return live[0]
    named = [one for one in live if one.machine.name == machine.name]
    if len(named) == 1 and machine.kind is MachineKind.NODE:
        return named[0]
    candidates = [one for one in fits if has_name_only(one.machine) or _is_named_so(one, machine)] if live else fits
    return max(candidates, key=lambda one: (one.last_seen, one.id), default=None)


def _is_named_so(one: KnownMachine, machine: Machine) -> bool:
    """Return whether only third parties reported a machine, and with this evidence."""
    return one.named_only and all(getattr(one.machine, field) == getattr(machine, field) for field in EVIDENCE)


def _merge(one: KnownMachine, machine: Machine, at: int, made_at: int) -> KnownMachine:
    """Merge the newest evidence; fields that it lacks keep their values."""
    merged = msgspec.structs.replace(
        machine,
        **{
            field: getattr(machine, field) or getattr(one.machine, field)
            for field in (*EVIDENCE[:-1], "boot_id", "hypervisor", *ATTRIBUTES)
        },
    )
    boots = one.boots
    if machine.boot_id:
        # The newest boot was live for as long as the machine was: a later boot follows at that time.
        earlier = (*boots[:-1], Boot(boots[-1].boot_id, one.last_seen)) if boots else ()
        kept = tuple(boot for boot in earlier if boot.boot_id != machine.boot_id)
        boots = (*kept, Boot(machine.boot_id, at))[-BOOTS_KEPT:]
    known = msgspec.structs.replace(
        one,
        machine=merged,
        last_seen=max(at, one.last_seen),
        boots=boots,
        renames=_renamed(one, machine.name, made_at),
    )
    return with_made_at(known, machine, made_at)


def _given_back(one: KnownMachine, machine: Machine, at: int, made_at: int) -> KnownMachine:
    """Return the id to the machine that had it first; all later boots are a clone's."""
    assert machine.boot_id is not None
    position = next(i for i, boot in enumerate(one.boots) if boot.boot_id == machine.boot_id)
    later = tuple(boot.boot_id for boot in one.boots[position + 1 :])
    return msgspec.structs.replace(
        one,
        machine=machine,
        last_seen=max(at, one.last_seen),
        boots=(*one.boots[:position], Boot(machine.boot_id, at)),
        clone_boots=(*one.clone_boots, *later)[-CLONE_BOOTS_KEPT:],
        renames=_renamed(one, machine.name, made_at),
    )
