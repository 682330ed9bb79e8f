"""GPUs of a host that are bound to vfio, matched with the same GPUs inside its virtual machines. Pure.

The host shows such a GPU by PCI address only, its guest by UUID only. They are matched by the UUID that the host read
before the GPU was bound to vfio. If it never did, the pairing is unknown, and the answer states that.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.attribution.bindings import is_of_host, last_occupants
from gpufleet.fleet.readings import present_keys
from gpufleet.model.absence import Reason
from gpufleet.model.api.answer import AllocationAnswer, AnswerDevice, MachineRecord, PassthroughState
from gpufleet.model.machine import MachineKind
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.view import Side, ViewKind, view_of_key

_NOT_KNOWN = (
    "bound to vfio; a virtual machine that has it shows it under a UUID that this host never read: the pairing is "
    "unknown, and both are the same GPU"
)


def passed_through(devices: Iterable[AnswerDevice], stored: Sequence[StoredSample]) -> dict[str, frozenset[str]]:
    """Return the devices of a host that a virtual machine may have: id to its UUID, or none if it is not known.

    The UUID of a slot is the last one that the host read there: an earlier card has left the slot.

    Args:
        devices: all devices of a machine, or some of them.
        stored: the newest samples of that machine.
    """
    occupants = last_occupants([one for one in stored if is_of_host(one)])
    found = {}
    for one in devices:
        if _is_bound_to_vfio(one):
            key = occupants.get(one.pci_address or "")
            uuid = None if key is None else view_of_key(key).uuid
            found[one.id] = frozenset((uuid,)) if uuid else frozenset()
        elif _is_not_shown(one):
            found[one.id] = frozenset((one.uuid,)) if one.uuid else frozenset()
    return found


def guest_view_id(host: MachineRecord, guest: MachineRecord, stored: Sequence[StoredSample], uuid: str) -> str | None:
    """Return the id of the GPU with this UUID inside a guest of the host, if the guest shows it now."""
    if guest.machine.kind is not MachineKind.GUEST or guest.hypervisor_id != host.id:
        return None
    key = f"{ViewKind.GPU}/{uuid}"
    seen = any(one.sample.view and one.sample.view.key == key for one in stored)
    return f"{guest.cluster}/{guest.id}/{key}" if seen and key in present_keys(stored) else None


def add_guest_views(answer: AllocationAnswer, views: Mapping[str, Collection[str]], *, name: bool) -> AllocationAnswer:
    """Add to each device that a virtual machine may have its view inside that virtual machine.

    Args:
        answer: the argument of `passed_through`.
        views: ids returned by `passed_through`, with the ids under which guests show the device.
        name: whether the client may see the ids of virtual machines.
    """
    devices = tuple(
        msgspec.structs.replace(one, passthrough=host_state(one, views[one.id], name=name)) if one.id in views else one
        for one in answer.devices
    )
    unknown = sum(one.passthrough is not None and not one.passthrough.known for one in devices)
    by_uuid = sum(one.passthrough is not None and one.passthrough.known and _is_not_shown(one) for one in devices)
    detail = answer.detail
    if unknown and by_uuid:
        detail = (
            f"{by_uuid} of the devices are listed by the UUID that a virtual machine shows, and may be among the "
            f"{unknown} that the host shows by PCI address: the pairing is unknown"
        )
    return msgspec.structs.replace(answer, devices=devices, detail=detail)


def host_state(device: AnswerDevice, views: Collection[str], *, name: bool) -> PassthroughState | None:
    """Return the state of a device of `passed_through`; `views` and `name` as of `add_guest_views`."""
    if not views:
        return PassthroughState(known=False, detail=_NOT_KNOWN) if _is_bound_to_vfio(device) else None
    if len(views) > 1:
        return PassthroughState(
            known=False, views=_named(views, name=name), detail="several virtual machines show its UUID"
        )
    detail = "a virtual machine of this host has it: both views are the same GPU"
    return PassthroughState(known=True, views=_named(views, name=name), detail=detail)


def guest_state(uuid: str | None, passed: Mapping[str, Collection[str]]) -> PassthroughState | None:
    """Return the state of a GPU inside a virtual machine, or None if its host never read its UUID.

    Args:
        uuid: as the virtual machine reports it.
        passed: result of `passed_through` of all devices of the host.
    """
    views = sorted(id_ for id_, uuids in passed.items() if uuid in uuids)
    if not views:
        return None
    if len(views) > 1:
        return PassthroughState(known=False, views=tuple(views), detail="its host read its UUID at several addresses")
    detail = "its host shows it by PCI address, bound to vfio: both views are the same GPU"
    return PassthroughState(known=True, views=tuple(views), detail=detail)


def _named(views: Iterable[str], *, name: bool) -> tuple[str, ...]:
    return tuple(sorted(views)) if name else ()


def _is_bound_to_vfio(device: AnswerDevice) -> bool:
    """Return whether only the PCI bus shows it, bound to vfio."""
    whys = {reading.absent for reading in device.readings.values()}
    return device.side is Side.PCI_ONLY and Reason.BOUND_TO_VFIO in whys


def _is_not_shown(device: AnswerDevice) -> bool:
    """Return whether the allocation lists it by a UUID that its machine does not show."""

    whys = {reading.absent for reading in device.readings.values()}
    return device.uuid is not None and device.kind is ViewKind.GPU and whys == {Reason.NOT_REPORTED}
