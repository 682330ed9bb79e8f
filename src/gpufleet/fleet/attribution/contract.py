"""The allocation contract: who may answer for an allocation, and what. Pure.

A whole machine answers for itself (bare_metal), and so do those of its devices that an allocation lists. Everything
else that is a part of a machine is answered only by who can see that part: from inside the guest, by the host for a
guest's own vGPU instance (`fleet.attribution.slices`), or by attribution. Where nobody can, the answer is `unavailable` with a
reason, and not one value of the host is in it: a host's GPU never speaks for a guest's.

Who claims a machine, and who else does: no two tenants are shown the same devices.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from gpufleet.fleet.devices import units, with_parents
from gpufleet.fleet.readings import Freshness, all_stale, devices, known_views, merge, merge_dimensions
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

NOBODY_ANSWERS = {
    AllocationKind.GPU_SLICE: (
        Reason.GUEST_NOT_COLLECTED,
        "nothing collects from inside this virtual machine, and the host's readings are not the guest's",
    ),
    AllocationKind.KUBEVIRT_VMI: (
        Reason.GUEST_NOT_COLLECTED,
        "nothing collects from inside this virtual machine, and the host's readings are not the guest's",
    ),
    AllocationKind.KUBERNETES_POD: (Reason.NOT_ATTRIBUTED, "nothing tells which devices this pod holds"),
    AllocationKind.SLURM_JOB: (Reason.NOT_ATTRIBUTED, "nothing tells which devices this job holds"),
}
"""Kinds for which no reader and no attribution exists, with the reason that their answers carry."""


_ON_THE_HOST = (Provenance.HOST_LOCAL_PROBE, Provenance.HOST_NETDATA)
_NEAREST_FIRST = (*_ON_THE_HOST, Provenance.IMPORTED)

_NOT_YET = Absent(Reason.NO_DATA, "not measured since the allocation began")


class Located(msgspec.Struct, frozen=True):
    """The machine that may answer for an allocation, or why there is none."""

    machine: MachineRecord | None
    reason: Reason | None = None
    detail: str = ""


def locate(allocation: Allocation, machines: Sequence[MachineRecord]) -> Located:
    """Find the machine whose host-side readings are the allocation's own.

    A name is not that of a machine that is gone where another one has it: the node that was put in its place.
    """
    target = allocation.spec.target
    nobody = NOBODY_ANSWERS.get(allocation.spec.kind)
    if nobody is not None:
        return Located(None, *nobody)
    nodes = [one for one in machines if one.cluster == target.cluster and one.machine.kind is MachineKind.NODE]
    fits = [one for one in nodes if one.id == target.machine]
    called = [one for one in nodes if one.machine.name == target.machine]
    fits = fits or [one for one in called if not one.is_retired] or called
    if not fits:
        words = f"no machine of cluster {target.cluster!r} has the id or name {target.machine!r}"
        return Located(None, Reason.TARGET_UNKNOWN, words)
    if len(fits) > 1:
        ids = ", ".join(sorted(one.id for one in fits))
        return Located(None, Reason.AMBIGUOUS_TARGET, f"{target.machine!r} is the name of {ids}: target one by its id")
    return Located(fits[0])


def standing(allocation: Allocation, now: int) -> tuple[Reason, str] | None:
    """Return why the allocation is not in force at this instant, or None when it is."""
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
    """Answer for an allocation.

    Args:
        allocation: what is asked about.
        machines: every machine of the allocation's cluster.
        stored: the newest samples of the machine that `locate` finds.
        readers: how that machine's readers are doing.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: a machine that was not heard of for longer has no current values.
    """
    over = standing(allocation, now)
    if over is not None:
        return unavailable(allocation, *over)
    located = locate(allocation, machines)
    if located.machine is None:
        assert located.reason is not None
        return unavailable(allocation, located.reason, located.detail)
    return _host_answer(allocation, located.machine, stored, readers, now, stale_after_seconds)


def listed_ids(allocation: Allocation, machine: MachineRecord, stored: Sequence[StoredSample]) -> frozenset[str] | None:
    """Return the ids that the listed devices have or had, or None when the allocation has the whole machine."""
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
    """Return the newest error of the readers, in their own words."""
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
    believed, source = host_side(stored, freshness)
    own = [since(one, allocation.spec.valid_from) for one in believed]
    error = last_error(readers)
    if not own:
        words = "no sample of this machine has been stored yet"
        bare = unavailable(allocation, Reason.NOT_COLLECTED, words)
        return msgspec.structs.replace(bare, machine=machine.id, last_error=error)
    heard = [one.received_at for one in own if freshness.is_heard(one.received_at)]
    received_at = max(heard or [one.received_at for one in own])
    homes = {view.uuid: view.pci_address for view in known_views(own).values() if view.uuid and view.pci_address}
    every = devices(machine.cluster, machine.id, own, freshness)
    found = _allocated(every, machine, allocation.spec, homes)
    of_host = [one for one in own if one.sample.view is None]
    host = merge(of_host, freshness)
    host_dimensions = merge_dimensions(of_host, freshness)
    if not heard:
        found = tuple(msgspec.structs.replace(one, readings=all_stale(one.readings), dimensions=()) for one in found)
        host, host_dimensions = all_stale(host), ()
    return AllocationAnswer(
        allocation=allocation,
        source=source if heard else Provenance.UNAVAILABLE,
        reason=None if heard else Reason.STALE,
        detail="" if heard else f"nothing was received from this machine for more than {stale_after_seconds:g} s",
        measured_at=to_datetime(max(one.sample.measured_at for one in own)),
        received_at=to_datetime(received_at),
        age_seconds=freshness.age_seconds(received_at),
        last_error=error,
        aggregate=aggregate(units(found), sum(allocation.spec.expected.values())),
        machine=machine.id,
        devices=found,
        host=host,
        host_dimensions=host_dimensions,
    )


def since(stored: StoredSample, begin: dt.datetime | None) -> StoredSample:
    """Leave out what the machine did before the allocation began: it was somebody else's.

    The static lane tells what the machine is, not what was done with it, and stays. So do absences.
    """
    sample = stored.sample
    if begin is None or sample.lane is Lane.STATIC or sample.measured_at >= to_ns(begin):
        return stored
    values = {name: value if isinstance(value, Absent) else _NOT_YET for name, value in sample.values.items()}
    return msgspec.structs.replace(stored, sample=msgspec.structs.replace(sample, values=values, dims=()))


def host_side(stored: Sequence[StoredSample], freshness: Freshness) -> tuple[list[StoredSample], Provenance]:
    """Return what may be believed of a host, and who measured it: whoever is nearest to it of those that are heard.

    That is the probe on it, with what its operator's Netdata adds; or Netdata alone; or what was imported of it, which
    is never mixed with either, as it may call the same GPUs otherwise. Where nobody is heard, who was nearest.
    """
    by_source: dict[Provenance, list[StoredSample]] = {}
    for one in stored:
        if _is_of_host(one):
            by_source.setdefault(one.sample.provenance, []).append(one)
    known = [source for source in _NEAREST_FIRST if source in by_source]
    heard = [source for source in known if any(freshness.is_heard(one.received_at) for one in by_source[source])]
    nearest = next(iter(heard or known), Provenance.UNAVAILABLE)
    if nearest is Provenance.IMPORTED:
        return by_source[nearest], nearest
    return [one for source in _ON_THE_HOST for one in by_source.get(source, ())], nearest


def _is_of_host(stored: StoredSample) -> bool:
    view = stored.sample.view
    return stored.sample.provenance in _NEAREST_FIRST and (view is None or view.side is not Side.GUEST)


def _allocated(
    found: tuple[AnswerDevice, ...], machine: MachineRecord, spec: AllocationSpec, homes: Mapping[str, str]
) -> tuple[AnswerDevice, ...]:
    """Keep the devices that the allocation lists, if it lists any; one that is not there is listed without values.

    A UUID that no driver shows any more stands for what the PCI bus shows at its last address (`homes`): that has a
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
    absent = Reading(absent=Reason.NOT_REPORTED, detail="the allocation lists it and this machine does not show it")
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
    """Return the answer that has no values, and says why."""
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

Place = tuple[str, str]
"""Cluster, and what an allocation calls the machine: its id or its name, or `_VM` and a virtual machine's UUID."""

VM_KINDS = frozenset({AllocationKind.GPU_SLICE, AllocationKind.KUBEVIRT_VMI})

_VM = "\0vm/"  # no machine is called so


class Claims:
    """Tenants' allocations of machines, of their devices, or of virtual machines. Safe to read while it is changed."""

    def __init__(self, allocations: Iterable[Allocation]) -> None:
        self._by_id = {one.id: one for one in allocations if _is_claim(one)}
        self._by_place: dict[Place, tuple[str, ...]] = {}
        for one in self._by_id.values():
            self._by_place[_place(one)] = (*self._by_place.get(_place(one), ()), one.id)

    def keep(self, allocation: Allocation) -> None:
        """Take in an allocation as it is now."""
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
        """Return what other tenants have of the same machine within a span of time and the allocation's own.

        Args:
            allocation: of any kind; one that is no tenant's or no machine's has no rivals.
            machines: every machine of its cluster; one that is not among them is told by its name alone.
            start, end: nanoseconds since 1970, `end` excluded.
        """
        if not _is_claim(allocation):
            return ()
        machine = locate(allocation, machines).machine
        own = _span(allocation)
        first, last = max(start, own[0]), min(end, own[1])
        cluster, word = _place(allocation)
        names = (machine.id, machine.machine.name) if machine else (word,)
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


def share(one: AbstractSet[str] | None, other: AbstractSet[str] | None) -> bool:
    """Tell whether two lists of devices have one in common; None is the whole machine."""
    return one is None or other is None or not one.isdisjoint(other)


def _is_claim(allocation: Allocation) -> bool:
    whole = allocation.spec.kind is AllocationKind.BARE_METAL or allocation.spec.kind in VM_KINDS
    return whole and allocation.spec.tenant is not None


def _place(allocation: Allocation) -> Place:
    target = allocation.spec.target
    if allocation.spec.kind in VM_KINDS:
        return target.cluster, f"{_VM}{normalise_uuid(target.vm_uuid or '') or target.vm_uuid}"
    return target.cluster, target.machine or ""


def _span(allocation: Allocation) -> tuple[int, int]:
    spec = allocation.spec
    ends = [to_ns(at) for at in (spec.valid_to, allocation.closed_at) if at is not None]
    return (to_ns(spec.valid_from) if spec.valid_from else 0), min(ends, default=_END)
