"""Mapping of the driver's log messages to events."""

from collections.abc import Mapping

from gpufleet.model.event import Event
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address
from gpufleet.readers.kmsg.parse import DriverMessage

SOURCE = "kmsg"


def map_message(message: DriverMessage, at: int, *, seq: int, uuids: Mapping[str, str]) -> Event:
    """Return the event.

    Args:
        message: the driver's message.
        at: nanoseconds since 1970.
        seq: the record's number, unique in this boot.
        uuids: PCI address to the UUID that the log reported for it.
    """
    view = None
    if message.pci is not None:
        address = address_of(message.pci)
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuids.get(address), pci_address=address)
    attributes = {**message.attributes, "sources": SOURCE, "log_seq": str(seq)}
    return Event(view=view, kind=message.kind, code=message.code, at=at, attributes=attributes)


def address_of(pci: str) -> str:
    """Return the address in sysfs notation; the driver omits the function, which is 0."""
    return normalise_pci_address(pci if "." in pci else f"{pci}.0")
