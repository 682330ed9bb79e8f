"""XIDs of a machine's GPUs since its boot: their counts, and what they mean. Pure."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.events import XID_ALL, XID_ERRORS, XID_LAST, XID_LAST_AT, XID_SINCE
from gpufleet.model.event import Event, EventKind
from gpufleet.model.reading import DimValue, Value
from gpufleet.model.time import NANOS
from gpufleet.model.view import View
from gpufleet.model.xid import xid

MAX_CODES = 256
"""Distinct XIDs that are counted for one GPU; the driver has fewer."""

MAX_DEVICES = 1024

NO_WATCHER = Absent(Reason.NOT_COLLECTED, "neither the kernel log nor the driver's events can be read here")
NONE_YET = Absent(Reason.NO_DATA, "none since counting began")


class XidCounts(msgspec.Struct, kw_only=True):
    """XID counts of one boot of the machine.

    Attributes:
        since: start of counting, nanoseconds since 1970.
        counts: view key to XID to count.
        last: view key to the newest XID and its time.
        places: PCI address to the view key of the GPU that a reader or an XID last named there by its UUID.
    """

    since: int
    counts: dict[str, dict[int, int]] = {}
    last: dict[str, tuple[int, int]] = {}
    places: dict[str, str] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Count the XIDs among the events."""
        for event in events:
            if event.kind != EventKind.XID or event.view is None:
                continue
            key = event.view.key
            if key not in self.counts and len(self.counts) >= MAX_DEVICES:
                continue
            self.since = min(self.since, event.at)
            of_device = self.counts.setdefault(key, {})
            if event.code in of_device or len(of_device) < MAX_CODES:
                of_device[event.code] = of_device.get(event.code, 0) + int(event.attributes.get("count", "1"))
            if key not in self.last or self.last[key][1] <= event.at:
                self.last[key] = (event.code, event.at)
            if event.view.uuid and event.view.pci_address:
                self.places[event.view.pci_address] = key

    def place(self, view: View) -> None:
        """Note the place of a GPU, and move counts from its first key, the PCI address, to its UUID key."""
        if not view.uuid or not view.pci_address:
            return
        before, after = view.unnamed_key, view.key
        self.places[view.pci_address] = after
        for code, count in self.counts.pop(before, {}).items():
            of_device = self.counts.setdefault(after, {})
            of_device[code] = of_device.get(code, 0) + count
        last = self.last.pop(before, None)
        if last is not None and (after not in self.last or self.last[after][1] < last[1]):
            self.last[after] = last

    def values(self, view: View, *, watched: bool) -> tuple[dict[str, Value | Absent], tuple[DimValue, ...]]:
        """Return the XID readings of a device, and its counts by XID.

        A lost GPU can have no UUID: it has the XIDs of its address, and of the GPU that was last named there.
        """
        if not watched:
            return dict.fromkeys((XID_ALL, XID_LAST, XID_LAST_AT, XID_SINCE), NO_WATCHER), ()
        keys = {view.key, view.key if view.uuid else self.places.get(view.pci_address or "", view.key)}
        counts = sum((Counter(self.counts.get(key, {})) for key in keys), Counter[int]())
        last = max((self.last[key] for key in keys & self.last.keys()), key=lambda one: one[1], default=None)
        values: dict[str, Value | Absent] = {
            XID_ALL: counts.total(),
            XID_LAST: NONE_YET if last is None else last[0],
            XID_LAST_AT: NONE_YET if last is None else last[1] / NANOS,
            XID_SINCE: self.since / NANOS,
        }
        return values, tuple(DimValue(XID_ERRORS, (str(code),), count) for code, count in sorted(counts.items()))


def with_xid_meaning(event: Event) -> Event:
    """Return an XID event with name, class and action of its XID; other events unchanged."""
    if event.kind != EventKind.XID:
        return event
    row = xid(event.code)
    meaning = {"name": row.name, "class": row.cls.value, "action": row.action.value}
    return msgspec.structs.replace(event, attributes={**{k: v for k, v in meaning.items() if v}, **event.attributes})
