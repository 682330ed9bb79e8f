"""GPUs of a host that are bound to vfio, beside the same GPUs as its virtual machines see them. Pure.

A host shows such a GPU by its PCI address alone, and its guest by its UUID alone. They are one by the UUID that the
host read before it gave the GPU away; where it never did, nothing tells which is which, and that is said.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.readings import known_views, present_keys
from gpufleet.model.absence import Reason
from gpufleet.model.api.answer import AllocationAnswer, AnswerDevice, InGuest, MachineRecord
from gpufleet.model.machine import MachineKind
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.view import Side, ViewKind

_NOT_KNOWN = (
    "bound to vfio; a virtual machine that has it shows it under a UUID which this host never read: which one is not "
    "known, and both are one GPU"
)


def handed(answer: AllocationAnswer, stored: Sequence[StoredSample]) -> dict[str, frozenset[str]]:
    """Return devices of a host's answer that a virtual machine may have, by id, with the UUIDs that each has or had.

    Args:
        answer: of a whole machine or listed devices of it.
        stored: the newest samples of that machine.
    """
    at_address: dict[str, set[str]] = {}
    for view in known_views(stored).values():
        if view.uuid and view.pci_address and view.side is Side.HOST and view.kind is ViewKind.GPU:
            at_address.setdefault(view.pci_address, set()).add(view.uuid)
    found = {}
    for one in answer.devices:
        if _is_given(one):
            found[one.id] = frozenset(at_address.get(one.pci_address or "", ()))
        elif _is_not_here(one):
            found[one.id] = frozenset((one.uuid,)) if one.uuid else frozenset()
    return found


def inside(host: MachineRecord, guest: MachineRecord, stored: Sequence[StoredSample], uuid: str) -> str | None:
    """Return the id of the GPU of this UUID inside a guest of the host, if it shows it now."""
    machine = guest.machine
    if machine.kind is not MachineKind.GUEST or (guest.sender, machine.hypervisor) != (host.sender, host.machine.name):
        return None
    key = f"{ViewKind.GPU}/{uuid}"
    seen = any(one.sample.view and one.sample.view.key == key for one in stored)
    return f"{guest.cluster}/{guest.id}/{key}" if seen and key in present_keys(stored) else None


def with_guests(answer: AllocationAnswer, views: Mapping[str, Collection[str]], *, name: bool) -> AllocationAnswer:
    """Say beside each device that a virtual machine may have which one does.

    Args:
        answer: as `handed` was given it.
        views: what `handed` found, with the ids under which guests show it.
        name: whether who asks may know the ids of virtual machines.
    """
    devices = tuple(
        msgspec.structs.replace(one, in_guest=told)
        if one.id in views and (told := _told(one, sorted(views[one.id]), name=name)) is not None
        else one
        for one in answer.devices
    )
    unknown = sum(one.in_guest is not None and not one.in_guest.known for one in devices)
    by_uuid = sum(one.in_guest is not None and one.in_guest.known and _is_not_here(one) for one in devices)
    detail = answer.detail
    if unknown and by_uuid:
        detail = (
            f"{by_uuid} of the devices are listed by the UUID that a virtual machine shows, and may be among the "
            f"{unknown} that the host shows by PCI address: nothing tells which is which"
        )
    return msgspec.structs.replace(answer, devices=devices, detail=detail)


def _told(device: AnswerDevice, views: list[str], *, name: bool) -> InGuest | None:
    if not views:
        return InGuest(known=False, detail=_NOT_KNOWN) if _is_given(device) else None
    if len(views) > 1:
        return InGuest(known=False, views=_named(views, name=name), detail="several virtual machines show its UUID")
    words = "a virtual machine of this host has it: what is read there is of this GPU, which is one"
    return InGuest(known=True, views=_named(views, name=name), detail=words)


def _named(views: Iterable[str], *, name: bool) -> tuple[str, ...]:
    return tuple(views) if name else ()


def _is_given(device: AnswerDevice) -> bool:
    """Whether only the bus shows it, bound to vfio."""
    whys = {reading.absent for reading in device.readings.values()}
    return device.side is Side.PCI_ONLY and Reason.BOUND_TO_VFIO in whys


def _is_not_here(device: AnswerDevice) -> bool:
    """Whether the allocation lists it by a UUID that its machine does not show."""
    whys = {reading.absent for reading in device.readings.values()}
    return device.uuid is not None and device.kind is ViewKind.GPU and whys == {Reason.NOT_REPORTED}
