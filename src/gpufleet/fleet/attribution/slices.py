"""Who answers for a virtual machine: it itself (`fleet.attribution.guests`), and its host for its own vGPU instances. Pure.

An instance belongs to the virtual machine whose UUID the host reads from that very instance. Nothing else of the
host is in such an answer: no reading of the GPU that the instance is cut from, of the machine, or of a neighbour's
instance, and no words of the host's readers, which may name them.
"""

from collections.abc import Sequence

import msgspec

from gpufleet.fleet.attribution import contract, guests
from gpufleet.fleet.attribution.contract import VM_KINDS
from gpufleet.fleet.readings import Freshness, all_stale, devices, present_keys
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import aggregate
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.api.answer import AllocationAnswer, AnswerDevice
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import to_datetime
from gpufleet.model.view import Side, ViewKind, normalise_uuid

KINDS = VM_KINDS
"""Kinds whose target is a virtual machine."""

VM_ID, VM_ID_KIND = "vgpu_vm_id", "vgpu_vm_id_kind"


Host = guests.Told
"""A machine that may have a vGPU instance of the virtual machine."""


class _Found(msgspec.Struct, frozen=True):
    """Samples of the virtual machine's instances on one host, and how fresh that host's are."""

    host: Host
    stored: tuple[StoredSample, ...]
    freshness: Freshness

    @property
    def heard(self) -> bool:
        return any(self.freshness.is_heard(one.received_at) for one in self.stored)


def answer(
    allocation: Allocation,
    hosts: Sequence[Host],
    now: int,
    *,
    stale_after_seconds: float,
    inside: Sequence[guests.Told] = (),
) -> AllocationAnswer:
    """Answer for the allocation of a virtual machine: from inside it, and from its host of its own vGPU instances.

    Args:
        allocation: of one of `KINDS`.
        hosts: every machine of its cluster that tells of an instance it may mean.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: a machine that was not heard of for longer has no current values.
        inside: every machine of its cluster that is read as a guest of the target's UUID.
    """
    over = contract.standing(allocation, now)
    if over is not None:
        return contract.unavailable(allocation, *over)
    guest = guests.answer(allocation, inside, now, stale_after_seconds=stale_after_seconds)
    if guest is not None and guest.reason is Reason.AMBIGUOUS_TARGET:
        return guest
    host = _from_hosts(allocation, hosts, now, stale_after_seconds)
    if guest is None:
        return host
    if guest.source is Provenance.SLICE_GUEST:
        of_instances = host.devices if host.source is Provenance.SLICE_VGPU_HOST else ()
        return msgspec.structs.replace(guest, devices=(*guest.devices, *of_instances))
    if host.source is Provenance.SLICE_VGPU_HOST:
        words = f"the guest itself is not heard ({guest.reason}): {guest.detail}"
        return msgspec.structs.replace(host, detail=words, last_error=guest.last_error)
    return guest


def _from_hosts(
    allocation: Allocation, hosts: Sequence[Host], now: int, stale_after_seconds: float
) -> AllocationAnswer:
    found = []
    for host in hosts:
        own = instances_of(allocation.spec, host)
        if own:
            found.append(_Found(host, own, Freshness(now, stale_after_seconds, host.readers)))
    found = [one for one in found if one.heard] or found
    if not found:
        return contract.unavailable(allocation, *contract.NOBODY_ANSWERS[allocation.spec.kind])
    if len({one.host.machine.id for one in found if one.heard}) > 1:
        ids = ", ".join(sorted(one.host.machine.id for one in found))
        words = f"several machines tell of its vGPU instances: {ids}"
        return contract.unavailable(allocation, Reason.AMBIGUOUS_TARGET, words)
    newest = max(found, key=lambda one: max(stored.received_at for stored in one.stored))
    return _host_answer(allocation, newest, stale_after_seconds)


def instances_of(spec: AllocationSpec, host: Host) -> tuple[StoredSample, ...]:
    """Return the samples of the instances that are the virtual machine's own.

    Those are the ones from which the host reads the target's UUID; of them the listed ones, if devices are listed.
    A listed instance also is its own when the host's hypervisor gives it no UUID of a virtual machine at all; not when
    the host could not read it, for then the instance may be another one's by now.
    """
    wanted = normalise_uuid(spec.target.vm_uuid or "")
    present = present_keys(host.stored)
    listed = None if spec.devices is None else {_bare(name) for name in spec.devices}
    by_uuid: dict[str, list[StoredSample]] = {}
    for stored in host.stored:
        view = stored.sample.view
        if view is not None and view.key in present and view.uuid and _is_instance(stored):
            by_uuid.setdefault(_bare(view.uuid), []).append(stored)
    own: list[StoredSample] = []
    for uuid, samples in by_uuid.items():
        holders = {holder for one in samples if (holder := _holder(one)) is not None}
        nameless = not holders and any(_has_no_uuid(one) for one in samples)
        may_be = holders == {wanted} or (listed is not None and nameless)
        if may_be and (listed is None or uuid in listed):
            own += samples
    return tuple(own)


def _bare(name: str) -> str:
    """Write a vGPU's UUID alike, however it was met: its guest's driver puts `GPU-` before it, its host's does not."""
    return normalise_uuid(name.removeprefix("GPU-")) or name


def _is_instance(stored: StoredSample) -> bool:
    sample = stored.sample
    return (
        sample.view is not None
        and sample.view.kind is ViewKind.VGPU
        and sample.view.side is Side.VGPU_HOST
        and sample.provenance is Provenance.HOST_LOCAL_PROBE
    )


def _holder(stored: StoredSample) -> str | None:
    """Return the UUID of the virtual machine that has the instance, or None where no UUID is told."""
    values = stored.sample.values
    told = values.get(VM_ID)
    return normalise_uuid(told) if isinstance(told, str) and values.get(VM_ID_KIND) == "uuid" else None


def _has_no_uuid(stored: StoredSample) -> bool:
    """Whether the hypervisor names the virtual machine otherwise, or the driver cannot tell who it is by nature."""
    values = stored.sample.values
    told, kind = values.get(VM_ID), values.get(VM_ID_KIND)
    if isinstance(told, Absent):
        return told.reason in (Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER)
    return isinstance(kind, str) and kind != "uuid"


def _host_answer(allocation: Allocation, found: _Found, stale_after_seconds: float) -> AllocationAnswer:
    spec, machine, freshness, heard = allocation.spec, found.host.machine, found.freshness, found.heard
    own = [contract.since(one, spec.valid_from) for one in found.stored]
    shown = tuple(_device(one, heard=heard) for one in devices(machine.cluster, machine.id, own, freshness))
    received_at = max(one.received_at for one in own)
    return AllocationAnswer(
        allocation=allocation,
        source=Provenance.SLICE_VGPU_HOST if heard else Provenance.UNAVAILABLE,
        reason=None if heard else Reason.STALE,
        detail="" if heard else f"nothing was received from its host for more than {stale_after_seconds:g} s",
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


def _device(device: AnswerDevice, *, heard: bool) -> AnswerDevice:
    """Leave out which GPU of the host it is cut from, and what is not current."""
    return msgspec.structs.replace(
        device,
        parent=None,
        source=Provenance.SLICE_VGPU_HOST if heard else Provenance.UNAVAILABLE,
        readings=device.readings if heard else all_stale(device.readings),
        dimensions=device.dimensions if heard else (),
    )
