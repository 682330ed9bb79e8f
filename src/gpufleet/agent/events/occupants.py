"""GPUs by PCI address: which one a reader means that knows the address only. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from gpufleet.fleet.device_events import MAX_DEVICES
from gpufleet.model.reading import Sample
from gpufleet.model.view import View, ViewKind, view_of_key


class Occupant(msgspec.Struct, frozen=True):
    """The GPU that was last read at a PCI address by its UUID.

    Attributes:
        key: its view key.
        since: its first reading there, nanoseconds since 1970.
        before: view key of the GPU that was read there before it, or empty.
        boot: id of the newest boot in which it was read there, or empty.
    """

    key: str
    since: int
    before: str = ""
    boot: str = ""


class Occupants:
    """The GPUs of one machine or guest by PCI address. A driver that lost a GPU can give its address only.

    Attributes:
        known: PCI address to the GPU that was last read there by its UUID; `MAX_DEVICES` at most.
    """

    def __init__(self, known: Mapping[str, Occupant] = MappingProxyType({}), *, boot: str = "") -> None:
        """Take the GPUs from before the agent's start, and the id of this boot."""
        self.known = dict(known)
        self._boot = boot
        self._unnamed: set[str] = set()  # addresses whose newest sample since the start has no UUID

    def note(self, sample: Sample) -> None:
        """Record the GPU of a sample of a reader."""
        view = sample.view
        if view is None or view.kind is not ViewKind.GPU or view.pci_address is None:
            return
        if view.uuid is None:
            if len(self._unnamed) < MAX_DEVICES:
                self._unnamed.add(view.pci_address)
            return
        self._unnamed.discard(view.pci_address)
        before = self.known.get(view.pci_address)
        if before is None or before.key != view.key:
            key_before = "" if before is None else before.key
            self.known[view.pci_address] = Occupant(view.key, sample.measured_at, key_before, self._boot)
            if len(self.known) > MAX_DEVICES:
                del self.known[next(iter(self.known))]
        elif before.boot != self._boot:
            self.known[view.pci_address] = msgspec.structs.replace(before, boot=self._boot)

    def key(self, view: View, at: int) -> str:
        """Return the key of a device; of a GPU without UUID, that of the GPU at its address at a time.

        If no GPU was read there by its UUID before, the first one after is the same.

        Args:
            view: the device.
            at: nanoseconds since 1970.
        """
        occupant = self._of_unnamed(view)
        if occupant is None:
            return view.key
        return occupant.before if occupant.before and at < occupant.since else occupant.key

    def named(self, view: View) -> View:
        """Return the view of a GPU that a reader cannot name, with the UUID that was read there in this boot.

        Any other view is returned as it is. In another boot, or before a first sample, another card can be there: cards
        are exchanged also while a virtual machine runs.
        """
        occupant = self._of_unnamed(view)
        if occupant is None or view.pci_address not in self._unnamed or occupant.boot != self._boot or not self._boot:
            return view
        return msgspec.structs.replace(view, uuid=view_of_key(occupant.key).uuid)

    def is_replaced(self, view: View, failed_at: int) -> bool:
        """Return whether another GPU than before was read after the failure of a GPU that has no UUID."""
        occupant = self._of_unnamed(view)
        return occupant is not None and occupant.before != "" and occupant.since > failed_at

    def _of_unnamed(self, view: View) -> Occupant | None:
        """Return the GPU that was last read at the address of a GPU without UUID; None for other views."""
        is_unnamed = view.kind is ViewKind.GPU and view.uuid is None
        return self.known.get(view.pci_address or "") if is_unnamed else None
