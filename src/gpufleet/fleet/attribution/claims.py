"""Claims of allocations, and conflicts between the claims of tenants. Pure.

An allocation claims the machine and devices of its bindings, what it names but is not bound to yet, or its holder.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from gpufleet.fleet.attribution.bindings import (
    BoundInterval,
    bound_intervals,
    bound_slots,
    given_keys,
    has_ended,
    is_pending,
    lacks_machine,
    named_parents,
    validity,
)
from gpufleet.fleet.attribution.holder_targets import HolderName, holder_names, names_holder, target_name
from gpufleet.model.allocation import VM_KINDS, WORKLOAD_KINDS, Allocation, AllocationSpec
from gpufleet.model.holdings import Holder
from gpufleet.model.time import LATEST, to_ns
from gpufleet.model.view import bare_uuid, normalise_uuid

ClaimKey = tuple[str, str]
"""Cluster and subject of a claim.

The subject is a machine id, the name of an unbound target, the id of a holder, or the UUID of a device that the
allocation of a virtual machine lists.
"""

_HOLDER = "\0holder/"  # cannot be part of a machine name
_LISTED = "\0device/"
_UNBOUND = "\0name/"


class HeldDevices(msgspec.Struct, frozen=True):
    """Interval in which a holder has devices of a machine, or may have them.

    Attributes:
        holder: of the devices.
        interval: machine, devices with their parents and children, and time.
        parent: the virtual machine of a launcher pod.
    """

    holder: Holder
    interval: BoundInterval
    parent: Holder | None = None


class _Claim(msgspec.Struct, frozen=True):
    """Subject of an allocation in an interval.

    Attributes:
        subject: machine, target or holder.
        devices: devices, or parts of a job (`HolderName.part`); None for all.
        start, end: nanoseconds since 1970, `end` excluded.
        parents: GPUs that contain MIG devices among `devices`; None if `devices` has all parents and children already.
        slurm_cluster: as in `HolderName`.
    """

    subject: ClaimKey
    devices: frozenset[str] | None
    start: int
    end: int
    parents: frozenset[str] | None = frozenset()
    slurm_cluster: str | None = None

    def overlaps(self, other: "_Claim") -> bool:
        if self.subject != other.subject or self.start >= other.end or other.start >= self.end:
            return False
        if None not in (self.slurm_cluster, other.slurm_cluster) and self.slurm_cluster != other.slurm_cluster:
            return False
        if devices_overlap(self.devices, other.devices):
            return True
        if self.parents is None or other.parents is None:
            return False
        return not (self.parents.isdisjoint(other.devices or ()) and other.parents.isdisjoint(self.devices or ()))


class Claims:
    """Allocations of machines, devices and holders, by subject. Safe to read during a change."""

    def __init__(self, allocations: Iterable[Allocation]) -> None:
        self._by_id: dict[str, Allocation] = {}
        self._by_subject: dict[ClaimKey, tuple[str, ...]] = {}
        self._pending: dict[str, None] = {}
        self._workloads: dict[str, dict[str, None]] = {}  # ids, in order, by cluster
        for one in allocations:
            self.update(one)

    def update(self, allocation: Allocation) -> None:
        """Add or replace an allocation."""
        before, cluster = self._by_id.pop(allocation.id, None), allocation.spec.target.cluster
        for subject in dict.fromkeys(claim.subject for claim in _claims(before)) if before is not None else ():
            self._by_subject[subject] = tuple(one for one in self._by_subject[subject] if one != allocation.id)
        self._by_id[allocation.id] = allocation
        for subject in dict.fromkeys(claim.subject for claim in _claims(allocation)):
            self._by_subject[subject] = (*self._by_subject.get(subject, ()), allocation.id)
        if allocation.spec.kind in WORKLOAD_KINDS:
            self._workloads.setdefault(cluster, {})[allocation.id] = None
        if is_pending(allocation):
            self._pending[allocation.id] = None
        else:
            self._pending.pop(allocation.id, None)

    def allocations(self) -> tuple[Allocation, ...]:
        """Return all allocations, closed ones included."""
        return tuple(self._by_id.copy().values())

    def pending(self, now: int, *, devices: bool) -> tuple[Allocation, ...]:
        """Return the allocations to bind, in order of creation. The past of an ended allocation does not change.

        Without `devices`, only those that lack their machine, or are bound to a slot.
        """
        found = [self._by_id[id_] for id_ in tuple(self._pending)]
        due = [one for one in found if not has_ended(one, now) and (devices or lacks_machine(one) or bound_slots(one))]
        return tuple(sorted(due, key=lambda one: (to_ns(one.created_at), one.id)))

    def waiting(self, cluster: str, names: Iterable[str], now: int) -> tuple[Allocation, ...]:
        """Return the allocations that wait for a machine of one of these names or ids, or for a device of it.

        They are in order of creation.
        """
        subjects = [(cluster, f"{prefix}{name}") for name in names for prefix in (_UNBOUND, "")]
        ids = {id_ for subject in subjects for id_ in self._by_subject.get(subject, ()) if id_ in self._pending}
        found = [one for id_ in ids if (one := self._by_id.get(id_)) is not None and not has_ended(one, now)]
        return tuple(sorted(found, key=lambda one: (to_ns(one.created_at), one.id)))

    def bound_to(self, cluster: str, machine: str, now: int) -> tuple[Allocation, ...]:
        """Return the allocations that are bound to a machine now. The past of an ended one does not change."""
        found = [self._by_id.get(id_) for id_ in self._by_subject.get((cluster, machine), ())]
        due = [one for one in found if one is not None and not has_ended(one, now)]
        return tuple(one for one in due if one.bindings[-1].until is None and one.bindings[-1].machine == machine)

    def rivals(
        self, allocation: Allocation, start: int = 0, end: int = LATEST, held: Iterable[HeldDevices] = ()
    ) -> tuple[Allocation, ...]:
        """Return other tenants' allocations of the same machine, devices or holder within an interval.

        Args:
            allocation: of any kind; without a tenant it has no rivals.
            start, end: nanoseconds since 1970, `end` excluded.
            held: holders of the allocation's devices. Those of a virtual machine are rivals only as holders, since
                its readings are those of its guest.
        """
        cluster = allocation.spec.target.cluster
        of_machine = allocation.spec.kind not in VM_KINDS
        held_claims = [claim for one in held for claim in _held_claims(cluster, one, of_machine=of_machine)]
        claims = [*_claims(allocation), *held_claims]
        return tuple({other.id: other for other, _ in self._overlaps(allocation, claims, start, end)}.values())

    def has_workload_rivals(self, allocation: Allocation, start: int, end: int) -> bool:
        """Return whether another tenant has pods or jobs in the cluster within an interval, on whatever machines."""
        tenant, cluster = allocation.spec.tenant, allocation.spec.target.cluster
        others = [self._by_id.get(id_) for id_ in tuple(self._workloads.get(cluster, ()))] if tenant is not None else []
        return any(
            one.spec.tenant not in (None, tenant) and max(start, validity(one)[0]) < min(end, validity(one)[1])
            for one in others
            if one is not None
        )

    def naming(self, cluster: str, holder: Holder, start: int, end: int) -> tuple[Allocation, ...]:
        """Return the allocations that name a holder and are in force within an interval, in order of id.

        Args:
            cluster: of the holder.
            holder: pod, job or virtual machine.
            start, end: nanoseconds since 1970, `end` excluded.
        """
        subjects = [_holder_claim(cluster, name, start, end).subject for name in holder_names(holder)]
        ids = sorted({id_ for subject in subjects for id_ in self._by_subject.get(subject, ())})
        found = [one for id_ in ids if (one := self._by_id.get(id_)) is not None]
        return tuple([one for one in found if names_holder(one.spec, holder) and _in_force(one, start, end)])

    def free_since(self, allocation: Allocation, now: int) -> int | None:
        """Return when the last other tenant's time on the machine or devices of an allocation ended.

        0 if no other tenant had any of them in the time of the allocation; None if one has or will have, at `now`
        (nanoseconds since 1970) or later.
        """
        last = max((claim.end for _, claim in self._overlaps(allocation, _claims(allocation), 0, LATEST)), default=0)
        return last if last <= now else None

    def _overlaps(
        self, allocation: Allocation, claims: Iterable[_Claim], start: int, end: int
    ) -> Iterator[tuple[Allocation, _Claim]]:
        """Yield other tenants' allocations with their claims that overlap these claims of an allocation."""
        if allocation.spec.tenant is None:
            return
        for claim in claims:
            cut = msgspec.structs.replace(claim, start=max(claim.start, start), end=min(claim.end, end))
            for id_ in self._by_subject.get(claim.subject, ()) if cut.start < cut.end else ():
                other = self._by_id.get(id_)
                if other is None or id_ == allocation.id or other.spec.tenant in (None, allocation.spec.tenant):
                    continue
                for theirs in _claims(other):
                    if cut.overlaps(theirs):
                        yield other, theirs


def _in_force(allocation: Allocation, start: int, end: int) -> bool:
    first, last = validity(allocation)
    return max(start, first) < min(end, last)


def devices_overlap(one: AbstractSet[str] | None, other: AbstractSet[str] | None) -> bool:
    """Return whether two sets of devices have a common element; None is the whole machine."""
    return one is None or other is None or not one.isdisjoint(other)


def _claims(allocation: Allocation) -> list[_Claim]:
    spec, (start, end) = allocation.spec, validity(allocation)
    cluster = spec.target.cluster
    name = target_name(spec)
    if name is not None:
        uuids = _listed_uuids(spec) if spec.kind in VM_KINDS else ()
        listed = [_Claim((cluster, f"{_LISTED}{uuid}"), None, start, end) for uuid in uuids]
        return [_holder_claim(cluster, name, start, end), *listed]
    found = [
        _Claim((cluster, one.machine), _with_unbound(allocation, one), one.start, one.end, one.parents)
        for one in bound_intervals(allocation)
    ]
    if not allocation.bindings or allocation.bindings[-1].until is not None:
        since = max([start, *(one.end for one in found)])
        names = None if spec.devices is None else frozenset(given_keys(spec.devices))
        parents = frozenset(named_parents(spec.devices or ()).values())
        found.append(_Claim((cluster, f"{_UNBOUND}{spec.target.machine}"), names, since, end, parents))
    return found


def _listed_uuids(spec: AllocationSpec) -> tuple[str, ...]:
    """Return the listed UUIDs. Addresses are left out: each virtual machine has its own."""
    uuids = map(bare_uuid, spec.devices or ())
    return tuple(dict.fromkeys(uuid for uuid in uuids if normalise_uuid(uuid) is not None))


def _held_claims(cluster: str, held: HeldDevices, *, of_machine: bool) -> list[_Claim]:
    interval = held.interval
    holders = [one for one in (held.holder, held.parent) if one is not None]
    names = [name for one in holders for name in holder_names(one)]
    claims = [_holder_claim(cluster, name, interval.start, interval.end) for name in names]
    if of_machine:
        claims.append(_Claim((cluster, interval.machine), interval.devices, interval.start, interval.end, parents=None))
    return claims


def _holder_claim(cluster: str, name: HolderName, start: int, end: int) -> _Claim:
    parts = None if name.part is None else frozenset((name.part,))
    return _Claim((cluster, f"{_HOLDER}{name.kind}/{name.id}"), parts, start, end, slurm_cluster=name.slurm_cluster)


def _with_unbound(allocation: Allocation, interval: BoundInterval) -> frozenset[str] | None:
    """Return the devices of an interval, with listed PCI addresses at which nothing was seen yet."""
    if interval.devices is None:
        return None
    current = allocation.bindings[-1]
    bound: Mapping[str, tuple[str, ...]] = current.devices or {}
    if current.until is not None or current.machine != interval.machine:
        return interval.devices
    unbound = [name for name in allocation.spec.devices or () if name not in bound]
    return interval.devices | frozenset(given_keys(unbound))
