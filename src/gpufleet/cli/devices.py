"""Finding the device, or virtual machine, a person means."""

from collections.abc import Callable

from gpufleet.cli.options import CommandError
from gpufleet.model.snapshot import Device, Guest, Snapshot
from gpufleet.model.view import normalise_pci_address

Fits = Callable[[Device], bool]

MIN_UUID_START = 4
"""Fewer letters of a UUID than this name nothing: a short number is an index."""


def find_device(snapshot: Snapshot, words: str) -> tuple[Device, str] | None:
    """Return the device and how it was recognised, or None if nothing fits.

    Tried in this order: the whole or the beginning of a UUID (with or without its `GPU-`), a PCI address, the
    driver's index.

    Raises:
        CommandError: if more than one device fits; names them.
    """
    for how, fits in (
        ("UUID", _fits_uuid(words)),
        ("PCI address", _fits_address(words)),
        ("index, which can change when the machine restarts", _fits_index(words)),
    ):
        found = [device for device in snapshot.devices if fits(device)]
        if len(found) > 1:
            names = ", ".join(device.uuid or device.pci_address or device.key for device in found)
            raise CommandError(f"{words} fits {len(found)} devices: {names}. Give more of the UUID")
        if found:
            return found[0], how
    return None


def find_guest(snapshot: Snapshot, words: str) -> Guest | None:
    """Return the virtual machine of that name, namespace and name, allocation, or (beginning of a) UUID, or None.

    Raises:
        CommandError: if more than one fits; names them.
    """
    exact = [one for one in snapshot.guests if words in (one.machine.name, one.name, one.vm_uuid)]
    by_start = [one for one in snapshot.guests if len(words) >= MIN_UUID_START and _starts(one, words)]
    by_allocation = [one for one in snapshot.guests if words and one.allocation == words]
    found = exact or by_start or by_allocation
    if len(found) > 1:
        names = ", ".join(f"{one.machine.name} ({one.vm_uuid})" for one in found)
        raise CommandError(f"{words} fits {len(found)} virtual machines: {names}. Give the UUID")
    return found[0] if found else None


def find_guest_device(snapshot: Snapshot, words: str) -> tuple[Guest, Device] | None:
    """Return the device inside a virtual machine whose UUID begins so, or None.

    Raises:
        CommandError: if more than one fits; names them.
    """
    fits = _fits_uuid(words)
    found = [(guest, device) for guest in snapshot.guests for device in guest.devices if fits(device)]
    if len(found) > 1:
        names = ", ".join(f"{device.uuid} in {guest.machine.name}" for guest, device in found)
        raise CommandError(f"{words} fits {len(found)} devices: {names}. Give more of the UUID")
    return found[0] if found else None


def _starts(guest: Guest, words: str) -> bool:
    return guest.vm_uuid.startswith(words.lower())


def _fits_uuid(words: str) -> Fits:
    start = words.lower()

    def fits(device: Device) -> bool:
        uuid = (device.uuid or "").lower()
        return len(start) >= MIN_UUID_START and (uuid.startswith(start) or uuid.partition("-")[2].startswith(start))

    return fits


def _fits_address(words: str) -> Fits:
    try:
        address = normalise_pci_address(words)
    except ValueError:
        return lambda _: False
    return lambda device: device.pci_address == address


def _fits_index(words: str) -> Fits:
    return lambda device: device.index is not None and words == str(device.index)
