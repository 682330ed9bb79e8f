"""Bindings of allocations to machines and devices. Pure.

An allocation names its machine by host name or id, and its devices by UUID or PCI address. The hub resolves these names
once, as soon as it knows the machine, and keeps the result as a binding with its interval. Later renames, retirements
and device swaps do not change a binding, so history never moves from one tenant to another. A binding changes only when
an operator changes target or devices, or requests it; the earlier binding then ends at that time.

Virtual machines, pods and jobs are identified by their own ids and need no binding.

A MIG device is bound with the GPU that contains it: an allocation of the GPU and one of its MIG device have a device in
common.
"""

import re
from collections.abc import Container, Iterable, Sequence

import msgspec

from gpufleet.fleet.devices import unlisted_keys
from gpufleet.fleet.identity import MachineIds
from gpufleet.fleet.readings import known_views
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Binding
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.inventory import StoredSlot
from gpufleet.model.machine import MachineKind
from gpufleet.model.reading import Provenance
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import LATEST, to_datetime, to_ns
from gpufleet.model.view import SLOT_PREFIX, Scope, Side, ViewKind, normalise_pci_address

HOST_SOURCES = (Provenance.HOST_LOCAL_PROBE, Provenance.HOST_NETDATA, Provenance.IMPORTED)
"""Sources of a machine's own samples, the closest one first."""


class LocatedMachine(msgspec.Struct, frozen=True):
    """The machine that a target names now, or why there is none."""

    machine: MachineRecord | None
    reason: Reason | None = None
    detail: str = ""


def locate(spec: AllocationSpec, machines: Sequence[MachineRecord]) -> LocatedMachine:
    """Find the machine that the target of a bare-metal allocation names now.

    A retired machine matches by name only if no other machine has the name, and for a time that began before its
    retirement: the name of a later allocation is that of a successor, which may not have reported yet.
    """
    target = spec.target
    nodes = [one for one in machines if one.cluster == target.cluster and one.machine.kind is MachineKind.NODE]
    fits = [one for one in nodes if one.id == target.machine]
    named = [one for one in nodes if one.machine.name == target.machine]
    past = [one for one in named if one.retired_at and spec.valid_from and spec.valid_from < one.retired_at]
    fits = fits or [one for one in named if not one.is_retired] or past
    if not fits:
        detail = f"no machine of cluster {target.cluster!r} has the id or name {target.machine!r}"
        return LocatedMachine(None, Reason.TARGET_UNKNOWN, detail)
    if len(fits) > 1:
        ids = ", ".join(sorted(one.id for one in fits))
        detail = f"{target.machine!r} is the name of several machines: set target.machine to an id ({ids})"
        return LocatedMachine(None, Reason.AMBIGUOUS_TARGET, detail)
    return LocatedMachine(fits[0])


def locate_unbound(allocation: Allocation, machines: Sequence[MachineRecord], now: int) -> LocatedMachine:
    """Find the machine that the target of an unbound allocation names.

    An allocation that has ended names none: it is not bound any more, and a machine can have got the name since.
    """
    if has_ended(allocation, now):
        target = allocation.spec.target
        detail = f"no machine of cluster {target.cluster!r} had the id or name {target.machine!r} at that time"
        return LocatedMachine(None, Reason.TARGET_UNKNOWN, detail)
    return locate(allocation.spec, machines)


def is_of_host(stored: StoredSample) -> bool:
    """Return whether a machine measured a sample of itself or of a device on its own side."""
    view = stored.sample.view
    return stored.sample.provenance in HOST_SOURCES and (view is None or view.side is not Side.GUEST)


def bind(
    spec: AllocationSpec,
    machine: MachineRecord,
    stored: Sequence[StoredSample],
    readers: Sequence[ReaderStatus] = (),
    vacated: Container[str] = (),
) -> Binding:
    """Bind a spec to a machine and to the devices that its newest samples and the status of its readers show.

    A PCI address is bound to the GPU that was last seen there by its UUID. An address at which no driver read a UUID is
    bound to the slot, and one at which the newest passes list nothing stays unbound: the GPU that was there can be
    another tenant's elsewhere. The GPU of a MIG device is known once the device was seen, or by a name such as
    `MIG-GPU-<UUID>/1/0`.

    Args:
        spec: of a bare-metal allocation.
        machine: that its target names.
        stored: newest samples of the machine.
        readers: of the machine.
        vacated: PCI addresses whose last GPU another machine reported since.
    """
    if spec.devices is None:
        return Binding(machine=machine.id)
    own = [one for one in stored if is_of_host(one)]
    views, unlisted = known_views(own), unlisted_keys(own, readers)
    present = without_occupants(own, vacated)
    seen = {view.pci_address for key, view in known_views(present).items() if key not in unlisted}
    occupants = last_occupants(present)
    devices: dict[str, tuple[str, ...]] = {}
    for name in spec.devices:
        address = pci_address(name)
        if address is None:
            devices[name] = (_uuid_key(name),)
        elif address in seen:
            devices[name] = (occupants.get(address) or _pci_key(address),)
    parents = named_parents(spec.devices)
    for name in spec.devices:
        mig = views.get(_uuid_key(name))
        if mig is not None and mig.kind is ViewKind.MIG and mig.parent is not None:
            parents[name] = mig.parent
    return Binding(machine=machine.id, devices=devices, parents=parents)


def last_occupants(stored: Sequence[StoredSample]) -> dict[str, str]:
    """Return PCI address to the key of the GPU that was last measured there under its UUID."""
    measured: dict[str, int] = {}
    for one in stored:
        if one.sample.view is not None:
            key = one.sample.view.key
            measured[key] = max(one.sample.measured_at, measured.get(key, 0))
    found: dict[str, str] = {}
    for key, view in sorted(known_views(stored).items(), key=lambda one: (measured[one[0]], one[0])):
        if view.kind is ViewKind.GPU and view.uuid is not None and view.pci_address is not None:
            found[view.pci_address] = key
    return found


def unread_occupants(stored: Sequence[StoredSample], devices: Container[str] | None = None) -> dict[str, str]:
    """Return the `last_occupants` of the slots whose newest report has no UUID.

    Args:
        stored: newest samples of a machine.
        devices: keys of views; a slot is left out if neither it nor its last occupant is among them. None for all.
    """
    unread: dict[str, int] = {}
    read: dict[str, int] = {}
    for one in stored:
        view = one.sample.view
        if view is not None and view.kind is ViewKind.GPU and view.pci_address is not None:
            newest = unread if view.uuid is None else read
            newest[view.pci_address] = max(one.sample.measured_at, newest.get(view.pci_address, 0))
    slots = {address for address, at in unread.items() if at >= read.get(address, 0)}
    return {
        address: key
        for address, key in (last_occupants(stored) if slots else {}).items()
        if address in slots and (devices is None or key in devices or _pci_key(address) in devices)
    }


def without_occupants(stored: Sequence[StoredSample], vacated: Container[str]) -> Sequence[StoredSample]:
    """Return the samples of a machine without those of GPUs that were read by their UUIDs in vacated slots.

    What is reported of such a slot is of the next card, and not of a GPU that was there.
    """
    gone = {key for key, view in known_views(stored).items() if view.uuid is not None and view.pci_address in vacated}
    return [
        one
        for one in stored
        if one.sample.view is None or gone.isdisjoint((one.sample.view.key, one.sample.view.parent))
    ]


def names_of_one_device(binding: Binding) -> tuple[str, ...]:
    """Return the first listed names that mean one device, such as the UUID and the PCI address of a GPU; often none."""
    names: dict[str, list[str]] = {}
    for name, keys in (binding.devices or {}).items():
        for key in keys:
            names.setdefault(key, []).append(name)
    return next((tuple(found) for found in names.values() if len(found) > 1), ())


def pci_address(name: str) -> str | None:
    """Return the normalised PCI address, or None if the name is not one."""
    try:
        return normalise_pci_address(name)
    except ValueError:
        return None


def _uuid_key(name: str) -> str:
    return f"{ViewKind.MIG if _is_mig(name) else ViewKind.GPU}/{name}"


_OLD_MIG_NAME = re.compile(r"MIG-(GPU-[^/]+)/\d+/\d+", re.ASCII)


def named_parents(names: Iterable[str]) -> dict[str, str]:
    """Return the GPUs of MIG devices whose names contain the GPU's UUID, as those of older drivers do."""
    found = ((name, _OLD_MIG_NAME.fullmatch(name)) for name in names)
    return {name: _uuid_key(match[1]) for name, match in found if match is not None}


def _pci_key(address: str) -> str:
    return f"{SLOT_PREFIX}{address}"


def _is_slot(key: str) -> bool:
    return key.startswith(SLOT_PREFIX)


def given_keys(names: Iterable[str]) -> Iterable[str]:
    """Return the view keys of listed UUIDs, and of the slots at listed PCI addresses."""
    for name in names:
        address = pci_address(name)
        yield _uuid_key(name) if address is None else _pci_key(address)


class BoundInterval(msgspec.Struct, frozen=True):
    """Time in which an allocation has a machine.

    Attributes:
        machine: the hub's machine id.
        devices: keys of the allocated views, or None for the whole machine.
        start, end: nanoseconds since 1970, `end` excluded.
        scope: `shared_device` if others share the devices.
        of_host: whether the machine's own readings are the allocation's, too.
        parents: keys of the GPUs that contain listed MIG devices.
        since: start of that time, if `start` is that of a queried interval within it; 0 if not known.
    """

    machine: str
    devices: frozenset[str] | None
    start: int
    end: int
    scope: Scope = Scope.OWN
    of_host: bool = True
    parents: frozenset[str] = frozenset()
    since: int = 0


def validity(allocation: Allocation) -> tuple[int, int]:
    """Return the interval of an allocation, nanoseconds since 1970, its end excluded."""
    spec = allocation.spec
    ends = [to_ns(at) for at in (spec.valid_to, allocation.closed_at) if at is not None]
    return (to_ns(spec.valid_from) if spec.valid_from else 0), min(ends, default=LATEST)


def has_ended(allocation: Allocation, now: int) -> bool:
    """Return whether an allocation was closed or expired before `now`, nanoseconds since 1970."""
    return validity(allocation)[1] <= now


def bound_intervals(allocation: Allocation, start: int = 0, end: int = LATEST) -> tuple[BoundInterval, ...]:
    """Return the machines of an allocation within an interval, in order of time."""
    first, last = validity(allocation)
    last = min(last, end)
    found = []
    for one in allocation.bindings:
        since = max(first, to_ns(one.since)) if one.since is not None else first
        begin = max(since, start)
        until = min(last, to_ns(one.until)) if one.until is not None else last
        if begin < until:
            parents = frozenset(one.parents.values())
            found.append(BoundInterval(one.machine, bound_devices(one), begin, until, parents=parents, since=since))
    return tuple(found)


def bound_devices(binding: Binding) -> frozenset[str] | None:
    """Return the keys of the bound views, or None for the whole machine."""
    if binding.devices is None:
        return None
    return frozenset(key for keys in binding.devices.values() for key in keys)


def binding_at(allocation: Allocation, at: int) -> Binding | None:
    """Return the binding in force at an instant, or None."""
    for one in allocation.bindings:
        since = to_ns(one.since) if one.since is not None else 0
        if since <= at and (one.until is None or at < to_ns(one.until)):
            return one
    return None


def is_pending(allocation: Allocation) -> bool:
    """Return whether the machine, the GPU at a listed PCI address, or that of a MIG device is still to be bound."""
    return lacks_machine(allocation) or lacks_device(allocation)


def lacks_machine(allocation: Allocation) -> bool:
    """Return whether a bare-metal allocation is bound to no machine now."""
    bindings = allocation.bindings
    return allocation.spec.kind is AllocationKind.BARE_METAL and (not bindings or bindings[-1].until is not None)


def lacks_device(allocation: Allocation) -> bool:
    """Return whether the GPU at a listed PCI address, or that of a listed MIG device, is not known by its UUID yet."""
    if not allocation.bindings or allocation.bindings[-1].until is not None:
        return False
    current = allocation.bindings[-1]
    if current.devices is None:
        return False
    names = allocation.spec.devices or ()
    return (
        not all(name in current.devices for name in names)
        or bool(bound_slots(allocation))
        or any(_is_mig(name) and name not in current.parents for name in names)
    )


def _is_mig(name: str) -> bool:
    return name.startswith("MIG-")


def bound_slots(allocation: Allocation) -> tuple[str, ...]:
    """Return the listed PCI addresses that are bound to their slot now."""
    if not allocation.bindings or allocation.bindings[-1].until is not None:
        return ()
    devices = allocation.bindings[-1].devices or {}
    return tuple(name for name, keys in devices.items() if any(map(_is_slot, keys)))


def vacant_addresses(allocation: Allocation) -> tuple[str, ...]:
    """Return the listed PCI addresses at which nothing was seen when the allocation was bound."""
    bound = allocation.bindings[-1].devices
    return () if bound is None else tuple(name for name in allocation.spec.devices or () if name not in bound)


def binding_start(allocation: Allocation) -> int:
    """Return the start of the newest binding, nanoseconds since 1970."""
    since = allocation.bindings[-1].since
    return validity(allocation)[0] if since is None else to_ns(since)


def first_occupant(slots: Iterable[StoredSlot], since: int) -> tuple[int, str] | None:
    """Return when a GPU was first read by UUID in a slot, and the key of its view.

    Args:
        slots: the views ever reported in the slot.
        since: start of the binding, nanoseconds since 1970. A GPU that was there before has left.
    """
    gpus = [one for one in slots if one.view.startswith(f"{ViewKind.GPU}/") and not _is_slot(one.view)]
    return min(((at, one.view) for one in gpus for at in one.begun if at >= since), default=None)


def with_device(allocation: Allocation, name: str, at: int, key: str | None) -> tuple[Binding, ...]:
    """Return the bindings of an allocation after a GPU came to a listed PCI address.

    The allocation has the GPU from then on: it can have been another tenant's where it was before. Until then it has
    the slot, or nothing if nothing was seen there. A later GPU in the slot can be another tenant's, and so can what is
    reported of the slot.

    Args:
        allocation: bound to the slot at the address, or to nothing there.
        name: the listed address.
        at: when the GPU came, nanoseconds since 1970.
        key: its view; None if another tenant has it.
    """
    current = allocation.bindings[-1]
    devices = {**(current.devices or {}), name: () if key is None else (key,)}
    if at <= binding_start(allocation):
        return (*allocation.bindings[:-1], msgspec.structs.replace(current, devices=devices))
    ends = to_datetime(at)
    return (
        *allocation.bindings[:-1],
        msgspec.structs.replace(current, until=ends),
        msgspec.structs.replace(current, devices=devices, since=ends),
    )


def with_machine(allocation: Allocation, new: Binding, since: int = 0) -> tuple[Binding, ...]:
    """Return the bindings of an allocation without a machine with its machine.

    Args:
        allocation: bound to no machine now.
        new: the machine and devices that it names now.
        since: from when on it has the machine, nanoseconds since 1970; 0 for its whole time that is not bound.
    """
    before = allocation.bindings
    begins = [before[-1].until if before else None, to_datetime(since) if since else None]
    return (*before, msgspec.structs.replace(new, since=max([at for at in begins if at is not None], default=None)))


def without_addresses(new: Binding) -> Binding:
    """Return a binding without the devices at listed PCI addresses, which `with_device` binds since they came there."""
    if new.devices is None:
        return new
    by_uuid = {name: keys for name, keys in new.devices.items() if not pci_address(name)}
    return msgspec.structs.replace(new, devices=by_uuid)


def with_bound_gpus(new: Binding, bound: Binding) -> Binding:
    """Return the binding to a machine that proved to be the bound one: its GPUs stay those that were bound.

    Other addresses, and those that are bound to their slot, are left out: see `without_addresses`.
    """
    if new.devices is None:
        return new
    known = {name: keys for name, keys in (bound.devices or {}).items() if not any(map(_is_slot, keys))}
    return msgspec.structs.replace(new, devices=known, parents={**new.parents, **bound.parents})


def without_machine(allocation: Allocation, last_seen: int, *, was_reported: bool) -> tuple[Binding, ...]:
    """Return the bindings of an allocation whose present machine proved to be another one.

    What was measured of the machine, up to its last report, stays bound.
    """
    *before, current = allocation.bindings
    ends = to_datetime(last_seen + 1000)  # a microsecond, the precision of a binding
    if not was_reported or to_ns(ends) <= binding_start(allocation):
        return tuple(before)
    return (*before, msgspec.structs.replace(current, until=ends))


def under_every_id(allocation: Allocation, ids: MachineIds) -> Allocation:
    """Return an allocation that is bound to every id of its machines, to compare its claims with those of others."""
    others = [
        msgspec.structs.replace(one, machine=id_)
        for one in allocation.bindings
        for id_ in ids.of(one.machine)
        if id_ != one.machine
    ]
    return msgspec.structs.replace(allocation, bindings=(*others, *allocation.bindings))


def with_parents(bindings: tuple[Binding, ...], new: Binding) -> tuple[Binding, ...]:
    """Return bindings with the GPUs of their listed MIG devices, as far as the newest binding lacks them."""
    if not bindings or bindings[-1].until is not None or bindings[-1].machine != new.machine:
        return bindings
    parents = {**new.parents, **bindings[-1].parents}
    return (*bindings[:-1], msgspec.structs.replace(bindings[-1], parents=parents))


def rebind(allocation: Allocation, new: Binding | None, at: int) -> tuple[Binding, ...]:
    """Return the bindings after an operator changed the target, the devices or their binding.

    What was bound before `at` stays bound; an allocation that has not begun is bound as a whole. Without a new binding
    the allocation is pending.
    """
    if at <= validity(allocation)[0]:
        return () if new is None else (new,)
    before = allocation.bindings
    if before and before[-1].until is None:
        before = (*before[:-1], msgspec.structs.replace(before[-1], until=to_datetime(at)))
    if new is None:
        return before
    return (*before, msgspec.structs.replace(new, since=before[-1].until if before else None))
