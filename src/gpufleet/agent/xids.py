"""How many XIDs each GPU had, since when. Pure."""

from collections.abc import Iterable

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.events import XID_ALL, XID_ERRORS, XID_LAST, XID_LAST_AT, XID_SINCE
from gpufleet.model.event import Event
from gpufleet.model.event_kinds import EventKind
from gpufleet.model.reading import DimValue, Value
from gpufleet.model.time import NANOS
from gpufleet.model.xid import xid

MAX_CODES = 256
"""Different numbers that are counted for one GPU; the driver has fewer."""

MAX_DEVICES = 1024

NOBODY_WATCHES = Absent(Reason.NOT_COLLECTED, "neither the kernel's log nor the driver's events can be watched here")
NONE_YET = Absent(Reason.NO_DATA, "none was seen since the watch began")


class XidCounts(msgspec.Struct, kw_only=True):
    """What was counted in one boot of the machine.

    Attributes:
        since: nanoseconds since 1970; from here on every XID that was told is counted.
        counts: view key to XID to how many.
        last: view key to the newest XID and when it happened.
    """

    since: int
    counts: dict[str, dict[int, int]] = {}
    last: dict[str, tuple[int, int]] = {}

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

    def rename(self, before: str, after: str) -> None:
        """Give what was counted under a device's first name (its address) to the name that is known by now."""
        for code, count in self.counts.pop(before, {}).items():
            of_device = self.counts.setdefault(after, {})
            of_device[code] = of_device.get(code, 0) + count
        last = self.last.pop(before, None)
        if last is not None and (after not in self.last or self.last[after][1] < last[1]):
            self.last[after] = last

    def values(self, key: str, *, watched: bool) -> tuple[dict[str, Value | Absent], tuple[DimValue, ...]]:
        """Return the readings of a device, and those by number."""
        if not watched:
            return dict.fromkeys((XID_ALL, XID_LAST, XID_LAST_AT, XID_SINCE), NOBODY_WATCHES), ()
        counts = self.counts.get(key, {})
        last = self.last.get(key)
        values: dict[str, Value | Absent] = {
            XID_ALL: sum(counts.values()),
            XID_LAST: NONE_YET if last is None else last[0],
            XID_LAST_AT: NONE_YET if last is None else last[1] / NANOS,
            XID_SINCE: self.since / NANOS,
        }
        return values, tuple(DimValue(XID_ERRORS, (str(code),), count) for code, count in sorted(counts.items()))


def explained(event: Event) -> Event:
    """Return an XID's event with what the table says of its number; other events as they are."""
    if event.kind != EventKind.XID:
        return event
    row = xid(event.code)
    words = {"name": row.name, "class": row.cls.value, "action": row.action.value}
    return msgspec.structs.replace(event, attributes={**{k: v for k, v in words.items() if v}, **event.attributes})
