"""One event out of what several sources say of one thing. Pure: the instants are given.

The kernel's log and the driver's library tell of the same XID, each in its own time. What is told of one device, kind
and code within `SAME_SECONDS` is one event, unless two GPU instances of the device are named: those can be two
tenants'. It is held back for `HOLD_SECONDS`, so that it can name every source.
"""

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from gpufleet.model.event import Event, EventKind
from gpufleet.model.time import NANOS

HOLD_SECONDS = 2.0
SAME_SECONDS = 5.0
SOURCE_LATE_SECONDS = 600.0
"""For so long after an event a source that is late is still recognised."""

GROUPED: dict[str, float] = {
    EventKind.XID: SAME_SECONDS,
    EventKind.GPU_LOST: SAME_SECONDS,
    EventKind.DRIVER_MISMATCH: 3600.0,
}
"""Kinds that are told more than once, and within how many seconds that is one event."""

_ORDER = ("kmsg", "nvml", "dcgm")


class Group(msgspec.Struct):
    """What was told of one thing.

    Attributes:
        events: the first one of each source.
        counts: how often each source told it.
        opened: when the first of them came, by the monotonic clock.
        at: when it happened, as the first of them says.
        part: GPU instance that it is about, as soon as one source names it.
        told: how many of it have left as an event; 0 while it is held.
        log_seq: number of the first record of the kernel's log in it, or None.
    """

    events: dict[str, Event]
    counts: dict[str, int]
    opened: float
    at: int
    part: str = ""
    told: int = 0
    log_seq: int | None = None

    def event(self) -> Event:
        """Return the one event, in the words of the kernel's log where it spoke."""
        sources = sorted(self.events, key=lambda source: (source not in _ORDER, source))
        attributes: dict[str, str] = {}
        for source in reversed(sources):
            attributes |= self.events[source].attributes
        attributes["sources"] = ",".join(sources)
        count = max(self.counts.values())
        if count > 1:
            attributes["count"] = str(count)
        return msgspec.structs.replace(self.events[sources[0]], attributes=attributes)


class Groups:
    """Everything that is held, and what left not long ago."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, int], list[Group]] = {}
        self._due: list[Event] = []

    def take(self, event: Event, now: float) -> None:
        """Take in what one source tells; `now` by the monotonic clock."""
        window = GROUPED.get(event.kind)
        if window is None:
            self._due.append(event)
            return
        source, part = event.attributes.get("sources", ""), event.attributes.get("gpu_instance", "")
        groups = self._groups.setdefault((event.view.key if event.view else "", event.kind, event.code), [])
        known = _of_the_same(groups, event.at, part, window)
        if known is not None:
            known.part = known.part or part
            known.counts[source] = known.counts.get(source, 0) + 1
            if not known.told:
                known.events.setdefault(source, event)
                known.log_seq = log_seq(event) if known.log_seq is None else known.log_seq
                return
            if known.counts[source] <= known.told or window > SAME_SECONDS:
                return  # a late source tells what is told already, or it repeats itself for an hour
        groups.append(Group({source: event}, {source: 1}, now, event.at, part, log_seq=log_seq(event)))

    def due_in(self, now: float) -> float | None:
        """Return the seconds until something leaves, or None if nothing is held."""
        if self._due:
            return 0.0
        opened = [group.opened for group in self._all() if not group.told]
        return max(0.0, min(opened) + HOLD_SECONDS - now) if opened else None

    def held_log_seq(self) -> int | None:
        """Return the least number of a record of the kernel's log that is held, or None."""
        held = [group.log_seq for group in self._all() if not group.told and group.log_seq is not None]
        return min(held, default=None)

    def settle(self, now: float, *, everything: bool = False) -> list[Event]:
        """Return what leaves now, the oldest first; `everything` waits for no further source."""
        left, self._due = self._due, []
        for group in self._all():
            if not group.told and (everything or now - group.opened >= HOLD_SECONDS):
                left.append(group.event())
                group.told = max(group.counts.values())
        self._forget(now)
        return sorted(left, key=lambda event: event.at)

    def _all(self) -> Iterator[Group]:
        return itertools.chain.from_iterable(self._groups.values())

    def _forget(self, now: float) -> None:
        for key, groups in list(self._groups.items()):
            late = max(SOURCE_LATE_SECONDS, GROUPED[key[1]])
            groups[:] = [group for group in groups if not group.told or now - group.opened <= late]
            if not groups:
                del self._groups[key]


def _of_the_same(groups: Sequence[Group], at: int, part: str, window: float) -> Group | None:
    """Return the newest group that an event belongs to; first of those that name its GPU instance."""
    near = [group for group in reversed(groups) if abs(at - group.at) <= window * NANOS]
    fitting = [group for group in near if not group.part or not part or group.part == part]
    return next((group for group in fitting if group.part == part), fitting[0] if fitting else None)


def log_seq(event: Event) -> int | None:
    """Return the number of the record of the kernel's log that the event is from, or None."""
    seq = event.attributes.get("log_seq")
    return None if seq is None else int(seq)
