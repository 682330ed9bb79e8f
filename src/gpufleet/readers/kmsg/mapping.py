"""What the driver says in the log, as events."""

from collections.abc import Mapping

from gpufleet.model.event import Event
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address
from gpufleet.readers.kmsg.parse import Told

SOURCE = "kmsg"


def map_told(told: Told, at: int, *, seq: int, uuids: Mapping[str, str]) -> Event:
    """Return the event.

    Args:
        told: what the driver said.
        at: nanoseconds since 1970.
        seq: the record's number, which names it in this boot.
        uuids: PCI address to the UUID that the log told for it.
    """
    view = None
    if told.pci is not None:
        address = address_of(told.pci)
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuids.get(address), pci_address=address)
    attributes = {**told.attributes, "sources": SOURCE, "log_seq": str(seq)}
    return Event(view=view, kind=told.kind, code=told.code, at=at, attributes=attributes)


def address_of(pci: str) -> str:
    """Return the address as sysfs writes it; the driver leaves the function away, which is 0."""
    return normalise_pci_address(pci if "." in pci else f"{pci}.0")
