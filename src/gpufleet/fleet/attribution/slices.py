"""Answers for a virtual machine: from inside it (`fleet.attribution.guests`), and from its host's vGPU instances. Pure.

An instance belongs to the virtual machine whose UUID the host reads from that instance. The answer has nothing else of
the host: no reading of the parent GPU, the machine, or other instances, and no text of the host's readers that names
them. It has no reading from before the virtual machine had the instance.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.attribution import contract, guests, visibility
from gpufleet.fleet.readings import Freshness, all_stale, devices, present_keys
from gpufleet.fleet.usage.instances import instance_intervals
from gpufleet.fleet.usage.residence import UNBOUNDED
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import aggregate
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.api.answer import AllocationAnswer, AnswerDevice
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.readings import StoredText
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.model.view import Side, ViewKind, bare_uuid, normalise_uuid

VM_ID, VM_ID_KIND = "vgpu_vm_id", "vgpu_vm_id_kind"
_UUID = "uuid"
"""Kind of an id that is the UUID of the virtual machine."""


class _HostInstances(msgspec.Struct, frozen=True):
    """Samples of the virtual machine's instances on a host, when it got each, and their freshness."""

    host: guests.MachineSamples
    stored: tuple[StoredSample, ...]
    since: dict[str, int]
    freshness: Freshness

    @property
    def is_live(self) -> bool:
        return any(self.freshness.is_live(one.received_at) for one in self.stored)


def answer(
    allocation: Allocation,
    hosts: Sequence[guests.MachineSamples],
    now: int,
    *,
    stale_after_seconds: float,
    inside: Sequence[guests.MachineSamples] = (),
    texts: Sequence[StoredText] = (),
) -> AllocationAnswer:
    """Answer for the allocation of a virtual machine: from inside it, and from its own vGPU instances on the host.

    Args:
        allocation: of one of `VM_KINDS`.
        hosts: every machine of its cluster that reports an instance which may belong to it.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: age of the last report beyond which a machine has no current values.
        inside: every guest of its cluster with the target's UUID.
        texts: ids of virtual machines of every instance that ever had this one, in order of time.
    """
    inactive = contract.inactive_reason(allocation, now)
    if inactive is not None:
        return contract.unavailable(allocation, *inactive)
    guest = guests.answer(allocation, inside, now, stale_after_seconds=stale_after_seconds)
    if guest is not None and guest.reason is Reason.AMBIGUOUS_TARGET:
        return guest
    reading = {one.machine.id: one.machine.hypervisor_id for one in inside}
    hypervisor = None if guest is None else reading.get(guest.machine or "")
    host = _from_hosts(allocation, hosts, texts, now, stale_after_seconds, hypervisor)
    if guest is None:
        return host
    if guest.source is Provenance.SLICE_GUEST:
        of_instances = host.devices if host.source is Provenance.SLICE_VGPU_HOST else ()
        return msgspec.structs.replace(guest, devices=(*guest.devices, *of_instances))
    if host.source is Provenance.SLICE_VGPU_HOST:
        detail = f"the guest itself does not answer ({guest.reason}): {guest.detail}"
        return msgspec.structs.replace(host, detail=detail, last_error=guest.last_error)
    return guest


def _from_hosts(
    allocation: Allocation,
    hosts: Sequence[guests.MachineSamples],
    texts: Iterable[StoredText],
    now: int,
    stale_after_seconds: float,
    hypervisor: str | None,
) -> AllocationAnswer:
    """Answer from the hosts that report its instances.

    An instance that does not show its virtual machine counts on the `hypervisor` of its guest only, if that is known:
    the virtual machine has left other hosts.
    """
    wanted = normalise_uuid(allocation.spec.target.vm_uuid or "") or ""
    had = instance_intervals(wanted, texts, {one.machine.id: one.stored for one in hosts}, now)
    found: list[_HostInstances] = []
    unanswered: list[_HostInstances] = []
    for host in hosts:
        of_host = {key: intervals[-1] for (machine, key), intervals in had.items() if machine == host.machine.id}
        since = {key: begin for key, (begin, _) in of_host.items()}
        present = frozenset(key for key, (_, end) in of_host.items() if end == UNBOUNDED)
        freshness = Freshness(now, stale_after_seconds, host.readers)
        if own := _own_instances(allocation.spec, host):
            found.append(_HostInstances(host, own, since, freshness))
        elif hypervisor in (None, host.machine.id) and (own := _unanswered_instances(allocation.spec, host, present)):
            unanswered.append(_HostInstances(host, own, since, freshness))
    found = found or unanswered
    found = [one for one in found if one.is_live] or found
    if not found:
        return contract.unavailable(allocation, *contract.NO_ANSWERER[allocation.spec.kind])
    if len({one.host.machine.id for one in found if one.is_live}) > 1:
        ids = ", ".join(sorted(one.host.machine.id for one in found))
        detail = f"several machines report its vGPU instances: {ids}"
        return contract.unavailable(allocation, Reason.AMBIGUOUS_TARGET, detail)
    newest = max(found, key=lambda one: max(stored.received_at for stored in one.stored))
    return _host_answer(allocation, newest, stale_after_seconds)


def texts_of_listed(
    spec: AllocationSpec,
    ids: Iterable[StoredText],
    kinds: Iterable[StoredText],
    stored: Mapping[str, Iterable[StoredSample]],
) -> list[StoredText]:
    """Return ids of virtual machines over time, in which listed instances without UUID have the target's UUID.

    An instance has no UUID while the hypervisor gives it another kind of id. It never had one if no id was reported
    of it, and its newest report is that the driver cannot report the virtual machine at all.

    Args:
        spec: of an allocation of one of `VM_KINDS` that lists its devices.
        ids: ids of virtual machines of every instance of the machines, in order of time.
        kinds: kinds of these ids.
        stored: newest samples by id of the machine; those of ended instances, too.
    """
    own, ids = spec.target.vm_uuid or "", tuple(ids)
    without_uuid = {_report(one) for one in kinds if one.text != _UUID and is_listed(spec, one.view.partition("/")[2])}
    reported = {(one.machine, one.view) for one in ids}
    found = [
        StoredText(machine=machine, view=view.key, reader=one.sample.reader, at=0, text=own)
        for machine, samples in stored.items()
        for one in samples
        if (view := one.sample.view) is not None and (machine, view.key) not in reported
        if _is_instance(one) and _has_no_uuid(one) and is_listed(spec, view.uuid or "")
    ]
    return found + [msgspec.structs.replace(one, text=own) if _report(one) in without_uuid else one for one in ids]


def _report(text: StoredText) -> tuple[str, str, str, int]:
    """Return what the texts of a sample have in common."""
    return text.machine, text.view, text.reader, text.at


def _own_instances(spec: AllocationSpec, host: guests.MachineSamples) -> tuple[StoredSample, ...]:
    """Return the samples of the virtual machine's own instances.

    These are the instances from which the host reads the target's UUID, restricted to the listed devices, if any. A
    listed instance also belongs to it if the hypervisor gives the instance no virtual-machine UUID at all. It does not
    if the host could not read the UUID, since the instance may belong to another virtual machine by now.
    """
    wanted = normalise_uuid(spec.target.vm_uuid or "")
    listed = None if spec.devices is None else {bare_uuid(name) for name in spec.devices}
    own: list[StoredSample] = []
    for uuid, samples in _present_instances(host).items():
        holders = {holder for one in samples if (holder := _holder(one)) is not None}
        has_no_uuid = not holders and any(_has_no_uuid(one) for one in samples)
        is_own = holders == {wanted} or (listed is not None and has_no_uuid)
        if is_own and (listed is None or uuid in listed):
            own += samples
    return tuple(own)


def _unanswered_instances(
    spec: AllocationSpec, host: guests.MachineSamples, had: Container[str]
) -> tuple[StoredSample, ...]:
    """Return the samples without any value of instances that the virtual machine had last, by view key (`had`).

    The driver answers nothing about an instance of a lost or hanging GPU, also not who has it.
    """
    return tuple(
        stored
        for uuid, samples in _present_instances(host).items()
        if is_listed(spec, uuid) and any(isinstance(one.sample.values.get(VM_ID), Absent) for one in samples)
        for stored in samples
        if stored.sample.view is not None and stored.sample.view.key in had and _has_no_value(stored)
    )


def _present_instances(host: guests.MachineSamples) -> dict[str, list[StoredSample]]:
    """Return the samples of the instances of a host, by UUID without prefix."""
    present = present_keys(host.stored)
    by_uuid: dict[str, list[StoredSample]] = {}
    for stored in host.stored:
        view = stored.sample.view
        if view is not None and view.key in present and view.uuid and _is_instance(stored):
            by_uuid.setdefault(bare_uuid(view.uuid), []).append(stored)
    return by_uuid


def _has_no_value(stored: StoredSample) -> bool:
    sample = stored.sample
    every = (*sample.values.values(), *(dim.value for dim in sample.dims))
    return all(isinstance(value, Absent) for value in every)


def is_listed(spec: AllocationSpec, uuid: str) -> bool:
    """Return whether an instance of the virtual machine is in the allocation: it lists no devices, or this one."""
    return spec.devices is None or bare_uuid(uuid) in map(bare_uuid, spec.devices)


def _is_instance(stored: StoredSample) -> bool:
    sample = stored.sample
    return (
        sample.view is not None
        and sample.view.kind is ViewKind.VGPU
        and sample.view.side is Side.VGPU_HOST
        and sample.provenance is Provenance.HOST_LOCAL_PROBE
    )


def _holder(stored: StoredSample) -> str | None:
    """Return the UUID of the virtual machine that has the instance, or None if no UUID is reported."""
    values = stored.sample.values
    vm_id = values.get(VM_ID)
    return normalise_uuid(vm_id) if isinstance(vm_id, str) and values.get(VM_ID_KIND) == _UUID else None


def _has_no_uuid(stored: StoredSample) -> bool:
    """Return whether the hypervisor uses another kind of id, or the driver cannot report the virtual machine at all."""
    values = stored.sample.values
    vm_id, kind = values.get(VM_ID), values.get(VM_ID_KIND)
    if isinstance(vm_id, Absent):
        return vm_id.reason in (Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER)
    return isinstance(kind, str) and kind != _UUID


def _host_answer(allocation: Allocation, found: _HostInstances, stale_after_seconds: float) -> AllocationAnswer:
    spec, machine, freshness, live = allocation.spec, found.host.machine, found.freshness, found.is_live
    begin = 0 if spec.valid_from is None else to_ns(spec.valid_from)
    own = [
        visibility.without_foreign_details(visibility.clip_to_allocation(one, to_datetime(max(begin, since))))
        for one in found.stored
        if (view := one.sample.view) is not None
        for since in [found.since.get(view.key, 0)]
    ]
    shown = tuple(_device(one, live=live) for one in devices(machine.cluster, machine.id, own, freshness))
    received_at = max(one.received_at for one in own)
    return AllocationAnswer(
        allocation=allocation,
        source=Provenance.SLICE_VGPU_HOST if live else Provenance.UNAVAILABLE,
        reason=None if live else Reason.STALE,
        detail="" if live else f"nothing was received from its host for more than {stale_after_seconds:g} s",
        measured_at=to_datetime(max(one.sample.measured_at for one in own)),
        received_at=to_datetime(received_at),
        age_seconds=freshness.age_seconds(received_at),
        last_error=None,
        aggregate=aggregate([one.readings for one in shown], max(len(spec.devices or ()), sum(spec.expected.values()))),
        machine=machine.id,
        devices=shown,
        host={},
        host_dimensions=(),
    )


def _device(device: AnswerDevice, *, live: bool) -> AnswerDevice:
    """Remove the parent GPU, and values that are not current."""
    return msgspec.structs.replace(
        device,
        parent=None,
        source=Provenance.SLICE_VGPU_HOST if live else Provenance.UNAVAILABLE,
        readings=device.readings if live else all_stale(device.readings),
        dimensions=device.dimensions if live else (),
    )
