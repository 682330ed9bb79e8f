"""Allocation contract: the source and the readings that answer for an allocation. Pure.

A bare-metal machine answers for itself, and for the devices of it that an allocation lists. Any other part of a machine
is answered only by a source that observes that very part: the guest itself, the host for a guest's own vGPU instance
(`fleet.attribution.slices`), or attribution. Without such a source the answer is `unavailable` with a reason, and has
no host value: a host's GPU never speaks for a guest's.

`Claims` finds conflicting allocations: no two tenants see the same devices.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from gpufleet.fleet.devices import independent_readings, with_parents
from gpufleet.fleet.readings import Freshness, all_stale, devices, known_views, merge, merge_dimensions, stored_readings
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import AGGREGATED, aggregate
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec
from gpufleet.model.api.answer import AllocationAnswer, AnswerDevice, MachineRecord
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import MachineKind
from gpufleet.model.reading import Provenance, Reading
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address, normalise_uuid

NO_ANSWERER = {
    AllocationKind.GPU_SLICE: (
        Reason.GUEST_NOT_COLLECTED,
        "nothing collects from inside this virtual machine, and the host's readings are not the guest's",
    ),
    AllocationKind.KUBEVIRT_VMI: (
        Reason.GUEST_NOT_COLLECTED,
        "nothing collects from inside this virtual machine, and the host's readings are not the guest's",
    ),
    AllocationKind.KUBERNETES_POD: (Reason.NOT_ATTRIBUTED, "no source reports the devices of this pod"),
    AllocationKind.SLURM_JOB: (Reason.NOT_ATTRIBUTED, "no source reports the devices of this job"),
}
"""Kinds without reader and attribution, with the reason in their answers."""


_ON_THE_HOST = (Provenance.HOST_LOCAL_PROBE, Provenance.HOST_NETDATA)
_NEAREST_FIRST = (*_ON_THE_HOST, Provenance.IMPORTED)

_NOT_YET = Absent(Reason.NO_DATA, "not measured since the allocation began")


class LocatedMachine(msgspec.Struct, frozen=True):
    """The machine that may answer for an allocation, or why there is none."""

    machine: MachineRecord | None
    reason: Reason | None = None
    detail: str = ""


def locate(allocation: Allocation, machines: Sequence[MachineRecord]) -> LocatedMachine:
    """Find the machine whose host-side readings are the allocation's own.

    A retired machine does not match by name if another machine has the name: that is the node that replaced it.
    """
    target = allocation.spec.target
    no_answerer = NO_ANSWERER.get(allocation.spec.kind)
    if no_answerer is not None:
        return LocatedMachine(None, *no_answerer)
    nodes = [one for one in machines if one.cluster == target.cluster and one.machine.kind is MachineKind.NODE]
    fits = [one for one in nodes if one.id == target.machine]
    named = [one for one in nodes if one.machine.name == target.machine]
    fits = fits or [one for one in named if not one.is_retired] or named
    if not fits:
        detail = f"no machine of cluster {target.cluster!r} has the id or name {target.machine!r}"
        return LocatedMachine(None, Reason.TARGET_UNKNOWN, detail)
    if len(fits) > 1:
        ids = ", ".join(sorted(one.id for one in fits))
        detail = f"{target.machine!r} is the name of several machines: set target.machine to an id ({ids})"
        return LocatedMachine(None, Reason.AMBIGUOUS_TARGET, detail)
    return LocatedMachine(fits[0])


def inactive_reason(allocation: Allocation, now: int) -> tuple[Reason, str] | None:
    """Return why the allocation is not in force at this instant, or None if it is."""
    spec = allocation.spec
    if allocation.closed_at is not None and now >= to_ns(allocation.closed_at):
        return Reason.ENDED, f"closed at {allocation.closed_at.isoformat()}"
    if spec.valid_to is not None and now >= to_ns(spec.valid_to):
        return Reason.ENDED, f"valid until {spec.valid_to.isoformat()}"
    if spec.valid_from is not None and now < to_ns(spec.valid_from):
        return Reason.NOT_STARTED, f"valid from {spec.valid_from.isoformat()}"
    return None


def answer(
    allocation: Allocation,
    machines: Sequence[MachineRecord],
    stored: Sequence[StoredSample],
    readers: Sequence[ReaderStatus],
    now: int,
    *,
    stale_after_seconds: float,
) -> AllocationAnswer:
    """Answer for an allocation of a whole machine or listed devices.

    Args:
        allocation: the queried allocation.
        machines: every machine of the allocation's cluster.
        stored: the newest samples of the machine that `locate` finds.
        readers: status of that machine's readers.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: age of the last report beyond which a machine has no current values.
    """
    inactive = inactive_reason(allocation, now)
    if inactive is not None:
        return unavailable(allocation, *inactive)
    located = locate(allocation, machines)
    if located.machine is None:
        assert located.reason is not None
        return unavailable(allocation, located.reason, located.detail)
    return _host_answer(allocation, located.machine, stored, readers, now, stale_after_seconds)


def listed_ids(allocation: Allocation, machine: MachineRecord, stored: Sequence[StoredSample]) -> frozenset[str] | None:
    """Return the present and former ids of the listed devices, or None if the allocation has the whole machine."""
    names = allocation.spec.devices
    if names is None:
        return None
    addresses = {_address(name) for name in names} - {None}
    views = known_views([one for one in stored if _is_of_host(one)])
    return frozenset(
        f"{machine.cluster}/{machine.id}/{key}"
        for key, view in views.items()
        if view.uuid in names or view.pci_address in addresses
    )


def last_error(readers: Sequence[ReaderStatus]) -> str | None:
    """Return the newest error of the readers, verbatim."""
    failed = [one for one in readers if one.last_error]
    return max(failed, key=lambda one: (one.last_attempt or 0, one.reader, one.lane)).last_error if failed else None


def _host_answer(
    allocation: Allocation,
    machine: MachineRecord,
    stored: Sequence[StoredSample],
    readers: Sequence[ReaderStatus],
    now: int,
    stale_after_seconds: float,
) -> AllocationAnswer:
    freshness = Freshness(now, stale_after_seconds, readers)
    samples, source = host_samples(stored, freshness)
    own = [clip_to_allocation(one, allocation.spec.valid_from) for one in samples]
    error = last_error(readers)
    if not own:
        detail = "no sample of this machine has been stored yet"
        bare = unavailable(allocation, Reason.NOT_COLLECTED, detail)
        return msgspec.structs.replace(bare, machine=machine.id, last_error=error)
    live = [one.received_at for one in own if freshness.is_live(one.received_at)]
    received_at = max(live or [one.received_at for one in own])
    homes = {view.uuid: view.pci_address for view in known_views(own).values() if view.uuid and view.pci_address}
    every = devices(machine.cluster, machine.id, own, freshness)
    found = _allocated(every, machine, allocation.spec, homes)
    of_host = [one for one in own if one.sample.view is None]
    host_sources = stored_readings(of_host, freshness)
    host, host_dimensions = merge(host_sources), merge_dimensions(host_sources)
    if not live:
        found = tuple(msgspec.structs.replace(one, readings=all_stale(one.readings), dimensions=()) for one in found)
        host, host_dimensions = all_stale(host), ()
    return AllocationAnswer(
        allocation=allocation,
        source=source if live else Provenance.UNAVAILABLE,
        reason=None if live else Reason.STALE,
        detail="" if live else f"nothing was received from this machine for more than {stale_after_seconds:g} s",
        measured_at=to_datetime(max(one.sample.measured_at for one in own)),
        received_at=to_datetime(received_at),
        age_seconds=freshness.age_seconds(received_at),
        last_error=error,
        aggregate=aggregate(independent_readings(found), sum(allocation.spec.expected.values())),
        machine=machine.id,
        devices=found,
        host=host,
        host_dimensions=host_dimensions,
    )


def clip_to_allocation(stored: StoredSample, begin: dt.datetime | None) -> StoredSample:
    """Remove values measured before the allocation began: they belong to another tenant.

    The static lane stays, since it describes the machine and not its use. Absences stay, too.
    """
    sample = stored.sample
    if begin is None or sample.lane is Lane.STATIC or sample.measured_at >= to_ns(begin):
        return stored
    values = {name: value if isinstance(value, Absent) else _NOT_YET for name, value in sample.values.items()}
    return msgspec.structs.replace(stored, sample=msgspec.structs.replace(sample, values=values, dims=()))


def host_samples(stored: Sequence[StoredSample], freshness: Freshness) -> tuple[list[StoredSample], Provenance]:
    """Return the usable samples of a host, and their source: the closest one to the host that reports.

    That is the probe on the host, together with its operator's Netdata; or Netdata alone; or imported samples. Imported
    samples are never mixed with the others, since they may name the same GPUs differently. If no source reports, the
    closest one is returned.
    """
    by_source: dict[Provenance, list[StoredSample]] = {}
    for one in stored:
        if _is_of_host(one):
            by_source.setdefault(one.sample.provenance, []).append(one)
    known = [source for source in _NEAREST_FIRST if source in by_source]
    live = [source for source in known if any(freshness.is_live(one.received_at) for one in by_source[source])]
    nearest = next(iter(live or known), Provenance.UNAVAILABLE)
    if nearest is Provenance.IMPORTED:
        return by_source[nearest], nearest
    return [one for source in _ON_THE_HOST for one in by_source.get(source, ())], nearest


def _is_of_host(stored: StoredSample) -> bool:
    view = stored.sample.view
    return stored.sample.provenance in _NEAREST_FIRST and (view is None or view.side is not Side.GUEST)


def _allocated(
    found: tuple[AnswerDevice, ...], machine: MachineRecord, spec: AllocationSpec, homes: Mapping[str, str]
) -> tuple[AnswerDevice, ...]:
    """Return the listed devices, or all if none are listed. A listed device that is not present has no values.

    A UUID that no driver shows any more stands for the PCI device at its last address (`homes`). That device has a
    reason and no values, so it cannot be another GPU's.
    """
    if spec.devices is None:
        return found
    by_name: dict[str, list[AnswerDevice]] = {}
    for one in found:
        for known in (one.uuid, one.pci_address):
            if known:
                by_name.setdefault(known, []).append(one)
    listed: dict[str, AnswerDevice] = {}
    for name in spec.devices:
        fits = by_name.get(name) or by_name.get(_address(name) or "")
        fits = fits or [one for one in by_name.get(homes.get(name, ""), ()) if one.side is Side.PCI_ONLY]
        for one in fits or [_never_seen(name, machine)]:
            listed.setdefault(one.id, one)
    return with_parents(listed.values(), found)


def _address(name: str) -> str | None:
    try:
        return normalise_pci_address(name)
    except ValueError:
        return None


def _never_seen(name: str, machine: MachineRecord) -> AnswerDevice:
    address = _address(name)
    kind = ViewKind.MIG if name.startswith("MIG-") else ViewKind.GPU
    view = View(kind=kind, side=Side.HOST, uuid=None if address else name, pci_address=address)
    absent = Reading(absent=Reason.NOT_REPORTED, detail="listed by the allocation, but not reported by this machine")
    return AnswerDevice(
        id=f"{machine.cluster}/{machine.id}/{view.key}",
        machine=machine.id,
        kind=kind,
        side=Side.HOST,
        uuid=view.uuid,
        pci_address=address,
        source=Provenance.UNAVAILABLE,
        readings=dict.fromkeys(AGGREGATED, absent),
    )


def unavailable(allocation: Allocation, reason: Reason, detail: str) -> AllocationAnswer:
    """Return an answer without values, for a reason."""
    listed = sum(not name.startswith("MIG-") for name in allocation.spec.devices or ())
    return AllocationAnswer(
        allocation=allocation,
        source=Provenance.UNAVAILABLE,
        reason=reason,
        detail=detail,
        measured_at=None,
        received_at=None,
        age_seconds=None,
        last_error=None,
        aggregate=aggregate([], max(listed, sum(allocation.spec.expected.values()))),
        machine=None,
        devices=(),
        host={},
        host_dimensions=(),
    )


_END = 2**63

ClaimKey = tuple[str, str]
"""Cluster and target of a claim: the machine's id or name, or `_VM` and a virtual machine's UUID."""

VM_KINDS = frozenset({AllocationKind.GPU_SLICE, AllocationKind.KUBEVIRT_VMI})

_VM = "\0vm/"  # cannot be part of a machine name


class Claims:
    """Tenants' allocations of machines, devices or virtual machines. Safe to read during a change."""

    def __init__(self, allocations: Iterable[Allocation]) -> None:
        self._by_id = {one.id: one for one in allocations if _is_claim(one)}
        self._by_place: dict[ClaimKey, tuple[str, ...]] = {}
        for one in self._by_id.values():
            self._by_place[_place(one)] = (*self._by_place.get(_place(one), ()), one.id)

    def update(self, allocation: Allocation) -> None:
        """Add or replace an allocation."""
        before = self._by_id.pop(allocation.id, None)
        if before is not None:
            place = _place(before)
            self._by_place[place] = tuple(one for one in self._by_place[place] if one != before.id)
        if _is_claim(allocation):
            self._by_id[allocation.id] = allocation
            place = _place(allocation)
            self._by_place[place] = (*self._by_place.get(place, ()), allocation.id)

    def rivals(
        self, allocation: Allocation, machines: Sequence[MachineRecord], start: int, end: int
    ) -> tuple[Allocation, ...]:
        """Return other tenants' allocations of the same machine within an interval and the allocation's own time.

        Args:
            allocation: of any kind; without a tenant or a machine it has no rivals.
            machines: every machine of its cluster; others are compared by name only.
            start, end: nanoseconds since 1970, `end` excluded.
        """
        if not _is_claim(allocation):
            return ()
        machine = locate(allocation, machines).machine
        own = _span(allocation)
        first, last = max(start, own[0]), min(end, own[1])
        cluster, target = _place(allocation)
        names = (machine.id, machine.machine.name) if machine else (target,)
        ids = {id_: None for name in names for id_ in self._by_place.get((cluster, name), ())}
        found = []
        for id_ in ids:
            other = self._by_id.get(id_)
            if other is None or other.id == allocation.id or other.spec.tenant == allocation.spec.tenant:
                continue
            begin, until = _span(other)
            theirs = locate(other, machines).machine
            if (
                begin < last
                and first < until
                and (theirs is None) == (machine is None)
                and (machine is None or theirs is None or theirs.id == machine.id)
            ):
                found.append(other)
        return tuple(found)


def devices_overlap(one: AbstractSet[str] | None, other: AbstractSet[str] | None) -> bool:
    """Return whether two lists of devices have a common element; None is the whole machine."""
    return one is None or other is None or not one.isdisjoint(other)


def _is_claim(allocation: Allocation) -> bool:
    whole = allocation.spec.kind is AllocationKind.BARE_METAL or allocation.spec.kind in VM_KINDS
    return whole and allocation.spec.tenant is not None


def _place(allocation: Allocation) -> ClaimKey:
    target = allocation.spec.target
    if allocation.spec.kind in VM_KINDS:
        return target.cluster, f"{_VM}{normalise_uuid(target.vm_uuid or '') or target.vm_uuid}"
    return target.cluster, target.machine or ""


def _span(allocation: Allocation) -> tuple[int, int]:
    spec = allocation.spec
    ends = [to_ns(at) for at in (spec.valid_to, allocation.closed_at) if at is not None]
    return (to_ns(spec.valid_from) if spec.valid_from else 0), min(ends, default=_END)
