"""Which machine a piece of evidence belongs to: pure, so that the rules can be tested on every order of events.

Rule 1. The strongest evidence that two records share decides: system UUID, Kubernetes node UID, cloud instance
        id, machine-id, and last the host name.
Rule 2. Records that differ in stronger evidence are two machines, whatever weaker evidence they share.
Rule 3. A boot id tells a clone from a restart. It never comes back: one that does is another machine's.
        Two host names with two boot ids at one time are two machines. Late word of an earlier boot is neither.
Rule 4. What an id was given to is never overwritten by a stranger: the stranger gets an id of its own, and the
        conflict stands on both.
Rule 5. A guest's evidence is its own claim. It is compared with guests of the same hypervisor only.
"""

import enum
from collections.abc import Iterable

import msgspec

from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.time import NANOS

EVIDENCE = ("system_uuid", "k8s_node_uid", "instance_id", "machine_id", "name")
"""Fields of `Machine` that identify, the strongest first."""

ALIVE_NS = 60 * NANOS
"""A machine that was heard of this recently has not been reinstalled or renamed over a restart: two heartbeats."""

RETURN_NS = 600 * NANOS
"""A boot id that comes back within this time after another one shows two machines; later it may be late data."""

BOOTS_KEPT = 4
STRANGERS_KEPT = 8


class Boot(msgspec.Struct, frozen=True, array_like=True):
    """A boot id and when it was last heard of."""

    boot_id: str
    last_seen: int


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as far as matching cares.

    Attributes:
        id: the hub's id.
        machine: merged evidence.
        last_seen: nanoseconds since 1970 by the hub's clock.
        boots: its newest boots, the newest last.
        strangers: boot ids that were found to be a clone's.
        named_only: nobody heard of it; somebody else named it, last at `last_seen`.
    """

    id: str
    machine: Machine
    last_seen: int
    boots: tuple[Boot, ...] = ()
    strangers: tuple[str, ...] = ()
    named_only: bool = False


class Verdict(enum.Enum):
    """What the evidence amounts to."""

    SAME = enum.auto()  # it is this machine
    RETURNED = enum.auto()  # it is this machine, and another one spoke under its id in between
    NEW = enum.auto()  # it is none of the known ones


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a match.

    Attributes:
        verdict: what it is.
        known: the machine as it is to be kept from now on; None when it is new.
        rivals: ids of other machines that the evidence contradicts.
        shared: field of the evidence that is contradicted, empty without rivals or return.
    """

    verdict: Verdict
    known: Known | None = None
    rivals: tuple[str, ...] = ()
    shared: str = ""


def decide(known: Iterable[Known], machine: Machine, at: int) -> Decision:
    """Match evidence against the machines of its cluster that share any evidence with it.

    `at` is when it was received; for late word, which was overtaken by newer, when it was sent.
    """
    rivals: list[Known] = []
    shared = ""
    candidates = [one for one in known if _comparable(one.machine, machine)]
    for level, field in enumerate(EVIDENCE):
        value = getattr(machine, field)
        holders = [one for one in candidates if value and getattr(one.machine, field) == value]
        fits = [one for one in holders if _compatible(one, machine, level)]
        chosen = _choose(fits, machine, at)
        if chosen is not None and _spoke_before(chosen, machine, at):
            return Decision(verdict=Verdict.SAME, known=chosen)
        if chosen is not None and _boot_returned(chosen, machine, at):
            return Decision(verdict=Verdict.RETURNED, known=_given_back(chosen, machine, at), shared=field)
        if chosen is not None:
            new_rivals = [one for one in rivals if one.id != chosen.id]
            return Decision(
                verdict=Verdict.SAME,
                known=_heard(chosen, machine, at),
                rivals=tuple(one.id for one in new_rivals),
                shared=shared if new_rivals else "",
            )
        if field != "name":
            contradicting = [one for one in holders if one in fits or _alive(one, at) or _stranger(one, machine)]
            rivals += [one for one in contradicting if one not in rivals]
            shared = shared or (field if contradicting else "")
        if fits:
            break  # something of this strength is shared and it is none of them: weaker evidence cannot mend that
    return Decision(verdict=Verdict.NEW, rivals=tuple(one.id for one in rivals), shared=shared)


def introduce(id: str, machine: Machine, at: int) -> Known:  # noqa: A002 - the word of the domain
    """Make the record of a machine that was never seen before."""
    boots = (Boot(machine.boot_id, at),) if machine.boot_id else ()
    return Known(id=id, machine=machine, last_seen=at, boots=boots)


def _comparable(one: Machine, other: Machine) -> bool:
    if one.kind is not other.kind:
        return False
    return one.kind is not MachineKind.GUEST or one.hypervisor == other.hypervisor


def _compatible(one: Known, machine: Machine, level: int) -> bool:
    """Tell whether nothing stronger than the shared evidence, and no boot id, makes them two machines."""
    if _stranger(one, machine):
        return False
    for field in EVIDENCE[:level]:
        ours, theirs = getattr(one.machine, field), getattr(machine, field)
        if ours and theirs and ours != theirs:
            return False
    return True


def _stranger(one: Known, machine: Machine) -> bool:
    return machine.boot_id is not None and machine.boot_id in one.strangers


def _alive(one: Known, at: int) -> bool:
    return at - one.last_seen <= ALIVE_NS


def _boot_returned(one: Known, machine: Machine, at: int) -> bool:
    return any(boot.boot_id == machine.boot_id and at - boot.last_seen <= RETURN_NS for boot in one.boots[:-1])


def _spoke_before(one: Known, machine: Machine, at: int) -> bool:
    """Tell whether this is late word of an earlier boot, from before the newest one was heard of."""
    return any(boot.boot_id == machine.boot_id for boot in one.boots[:-1]) and at < one.boots[-1].last_seen


def _at_odds(one: Known, machine: Machine, at: int) -> bool:
    """Tell whether both live now under two names and two boots."""
    if one.machine.boot_id is None or machine.boot_id is None or _boot_returned(one, machine, at):
        return False
    return _alive(one, at) and one.machine.boot_id != machine.boot_id and one.machine.name != machine.name


def _choose(fits: list[Known], machine: Machine, at: int) -> Known | None:
    same_boot = [one for one in fits if machine.boot_id and one.machine.boot_id == machine.boot_id]
    if len(same_boot) == 1:
        return same_boot[0]
    returned = [one for one in fits if _boot_returned(one, machine, at)]
    if len(returned) == 1:
        return returned[0]
    fits = [one for one in fits if not _at_odds(one, machine, at)]
    if len(fits) <= 1:
        return fits[0] if fits else None
    named = [one for one in fits if one.machine.name == machine.name]
    if len(named) == 1:
        return named[0]
    silent = [one for one in fits if not _alive(one, at)]
    return silent[0] if len(silent) == 1 else None


def _heard(one: Known, machine: Machine, at: int) -> Known:
    """Keep the newest evidence, and what it does not say as it was."""
    merged = msgspec.structs.replace(
        machine,
        **{
            field: getattr(machine, field) or getattr(one.machine, field)
            for field in (*EVIDENCE[:-1], "boot_id", "hypervisor")
        },
    )
    boots = one.boots
    if machine.boot_id:
        # The newest boot was alive for as long as the machine was: that is where a later boot follows it.
        earlier = (*boots[:-1], Boot(boots[-1].boot_id, one.last_seen)) if boots else ()
        kept = tuple(boot for boot in earlier if boot.boot_id != machine.boot_id)
        boots = (*kept, Boot(machine.boot_id, at))[-BOOTS_KEPT:]
    return msgspec.structs.replace(one, machine=merged, last_seen=max(at, one.last_seen), boots=boots)


def _given_back(one: Known, machine: Machine, at: int) -> Known:
    """Give the id back to the machine that had it first; the boots that came after are a stranger's."""
    assert machine.boot_id is not None
    position = next(i for i, boot in enumerate(one.boots) if boot.boot_id == machine.boot_id)
    later = tuple(boot.boot_id for boot in one.boots[position + 1 :])
    return msgspec.structs.replace(
        one,
        machine=machine,
        last_seen=max(at, one.last_seen),
        boots=(*one.boots[:position], Boot(machine.boot_id, at)),
        strangers=(*one.strangers, *later)[-STRANGERS_KEPT:],
    )
