"""Finding the device a person means."""

from collections.abc import Callable

from gpufleet.cli.errors import CommandError
from gpufleet.model.snapshot import Device, Snapshot
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
