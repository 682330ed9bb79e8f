"""Lookup of the device or virtual machine that a command line argument names."""

from collections.abc import Callable

from gpufleet.cli.options import CommandError
from gpufleet.model.snapshot import Device, Guest, Snapshot
from gpufleet.model.view import normalise_pci_address

DeviceMatcher = Callable[[Device], bool]

MIN_UUID_PREFIX = 4
"""Minimum length of a UUID prefix, so that a short number is an index."""


def find_device(snapshot: Snapshot, text: str) -> tuple[Device, str] | None:
    """Return the device and the kind of match, or None.

    Tried in this order: UUID or its prefix (with or without `GPU-`), PCI address, the driver's index.

    Raises:
        CommandError: if several devices match; lists them.
    """
    for kind, matches in (
        ("UUID", _match_uuid(text)),
        ("PCI address", _match_address(text)),
        ("index, which can change when the machine restarts", _match_index(text)),
    ):
        found = [device for device in snapshot.devices if matches(device)]
        if len(found) > 1:
            names = ", ".join(device.uuid or device.pci_address or device.key for device in found)
            raise CommandError(f"{text} matches {len(found)} devices: {names}. Give a longer part of the UUID")
        if found:
            return found[0], kind
    return None


def find_guest(snapshot: Snapshot, text: str) -> Guest | None:
    """Return the virtual machine with this name, namespace and name, allocation, or UUID or its prefix; or None.

    Raises:
        CommandError: if several match; lists them.
    """
    exact = [one for one in snapshot.guests if text in (one.machine.name, one.name, one.vm_uuid)]
    by_start = [one for one in snapshot.guests if len(text) >= MIN_UUID_PREFIX and _has_uuid_prefix(one, text)]
    by_allocation = [one for one in snapshot.guests if text and one.allocation == text]
    found = exact or by_start or by_allocation
    if len(found) > 1:
        names = ", ".join(f"{one.machine.name} ({one.vm_uuid})" for one in found)
        raise CommandError(f"{text} matches {len(found)} virtual machines: {names}. Give the UUID")
    return found[0] if found else None


def find_guest_device(snapshot: Snapshot, text: str) -> tuple[Guest, Device] | None:
    """Return the device inside a virtual machine with this UUID or UUID prefix, or None.

    Raises:
        CommandError: if several match; lists them.
    """
    matches = _match_uuid(text)
    found = [(guest, device) for guest in snapshot.guests for device in guest.devices if matches(device)]
    if len(found) > 1:
        names = ", ".join(f"{device.uuid} in {guest.machine.name}" for guest, device in found)
        raise CommandError(f"{text} matches {len(found)} devices: {names}. Give a longer part of the UUID")
    return found[0] if found else None


def _has_uuid_prefix(guest: Guest, text: str) -> bool:
    return guest.vm_uuid.startswith(text.lower())


def _match_uuid(text: str) -> DeviceMatcher:
    start = text.lower()

    def matches(device: Device) -> bool:
        uuid = (device.uuid or "").lower()
        return len(start) >= MIN_UUID_PREFIX and (uuid.startswith(start) or uuid.partition("-")[2].startswith(start))

    return matches


def _match_address(text: str) -> DeviceMatcher:
    try:
        address = normalise_pci_address(text)
    except ValueError:
        return lambda _: False
    return lambda device: device.pci_address == address


def _match_index(text: str) -> DeviceMatcher:
    return lambda device: device.index is not None and text == str(device.index)
