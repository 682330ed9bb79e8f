"""Groups the reports of several sources about one event. Pure: times are arguments.

The kernel log and the driver's library report the same XID at slightly different times. Reports of one device, kind and
code within `SAME_SECONDS` are one event, unless they name two GPU instances of the device: those may belong to two
tenants. A group is held for `HOLD_SECONDS`, so that its event can name every source. A failure after a recovery is
another event, and so is a recovery after a failure.
"""

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from gpufleet.fleet.device_events import FAILURES
from gpufleet.model.event import Event, EventKind
from gpufleet.model.time import NANOS
from gpufleet.model.view import View

HOLD_SECONDS = 2.0
UNNAMED_SECONDS = 15.0
"""Time for which an event of a device without UUID is held until the first passes of the readers: they can name it."""

SAME_SECONDS = 5.0
STATE_SECONDS = 15.0
"""Window of a state of a device: each reader observes it in its own pass, every 10 s by default."""

SOURCE_LATE_SECONDS = 600.0
"""Time after an event in which a late source is still matched with it."""

GROUPED: dict[str, float] = {
    EventKind.XID: SAME_SECONDS,
    EventKind.GPU_LOST: STATE_SECONDS,
    EventKind.GPU_RESET_REQUIRED: STATE_SECONDS,
    EventKind.GPU_FAILED: STATE_SECONDS,
    EventKind.GPU_RECOVERED: STATE_SECONDS,
    EventKind.DRIVER_MISMATCH: 3600.0,
}
"""Kinds that several sources report, and the window in seconds within which that is one event."""

_ORDER = ("kmsg", "nvml", "dcgm", "nvidia_smi")


class EventGroup(msgspec.Struct):
    """The reports of one event.

    Attributes:
        events: the first report of each source.
        counts: number of reports of each source.
        opened: arrival of the first report, monotonic seconds.
        at: time of the event by the first report.
        part: GPU instance of the event, once a source names it.
        emitted: number of reports that already left as an event; 0 while the group is held.
        log_seq: lowest kernel log record in the group, or None.
        ended: time of the recovery from this failure, or of the failure after this recovery; None before it.
    """

    events: dict[str, Event]
    counts: dict[str, int]
    opened: float
    at: int
    part: str = ""
    emitted: int = 0
    log_seq: int | None = None
    ended: int | None = None

    def event(self) -> Event:
        """Return the group as one event; the kernel log's text is preferred."""
        sources = sorted(self.events, key=lambda source: (source not in _ORDER, source))
        attributes: dict[str, str] = {}
        for source in reversed(sources):
            attributes |= self.events[source].attributes
        attributes["sources"] = ",".join(sources)
        count = max(self.counts.values())
        if count > 1:
            attributes["count"] = str(count)
        return msgspec.structs.replace(self.events[sources[0]], attributes=attributes)


class EventGroups:
    """Groups that are held, and recently emitted ones.

    Attributes:
        unnamed_seconds: time for which an event of a device without UUID is held; `UNNAMED_SECONDS` at first.
    """

    def __init__(self) -> None:
        self.unnamed_seconds = UNNAMED_SECONDS
        self._groups: dict[tuple[str, str, int], list[EventGroup]] = {}
        self._due: list[Event] = []

    def take(self, event: Event, now: float, *, is_repeated: bool = False) -> None:
        """Add a source's report.

        Args:
            event: the report.
            now: monotonic seconds.
            is_repeated: whether the report is part of a known event: it opens no group.
        """
        window = GROUPED.get(event.kind)
        if window is None:
            self._due.append(event)
            return
        source, part = event.attributes.get("sources", ""), event.attributes.get("gpu_instance", "")
        groups = self._groups.setdefault((event.view.key if event.view else "", event.kind, event.code), [])
        known = _matching_group(groups, event.at, part, window)
        if known is not None:
            known.part = known.part or part
            known.counts[source] = known.counts.get(source, 0) + 1
            if not known.emitted:
                known.events.setdefault(source, event)
                known.log_seq = log_seq(event) if known.log_seq is None else known.log_seq
                return
            if known.counts[source] <= known.emitted or window > STATE_SECONDS:
                return  # a late source repeats a known event
        if is_repeated:
            return
        groups.append(EventGroup({source: event}, {source: 1}, now, event.at, part, log_seq=log_seq(event)))
        self._end_opposite(event)

    def name(self, view: View) -> bool:
        """Name the device of held groups that have its address only; return whether there are any."""
        if view.key == view.unnamed_key:
            return False
        found = False
        for (key, kind, code), groups in list(self._groups.items()):
            held = [group for group in groups if not group.emitted] if key == view.unnamed_key else []
            for group in held:
                groups.remove(group)
                group.events = {source: msgspec.structs.replace(one, view=view) for source, one in group.events.items()}
                self._groups.setdefault((view.key, kind, code), []).append(group)
                found = True
        return found

    def due_in(self, now: float) -> float | None:
        """Return the seconds until an event is due, or None if no group is held."""
        if self._due:
            return 0.0
        due = [self._due_at(group) for group in self._all() if not group.emitted]
        return max(0.0, min(due) - now) if due else None

    def held_log_seq(self) -> int | None:
        """Return the lowest kernel log record in a held group, or None."""
        held = [group.log_seq for group in self._all() if not group.emitted and group.log_seq is not None]
        return min(held, default=None)

    def emit_pending(self, now: float, *, everything: bool = False) -> list[Event]:
        """Return the events that are due, oldest first. With `everything`, all held groups are due."""
        left, self._due = self._due, []
        for group in self._all():
            if not group.emitted and (everything or now >= self._due_at(group)):
                left.append(group.event())
                group.emitted = max(group.counts.values())
        self._expire(now)
        return sorted(left, key=lambda event: event.at)

    def _due_at(self, group: EventGroup) -> float:
        view = next(iter(group.events.values())).view
        is_named = view is None or view.uuid is not None
        return group.opened + (HOLD_SECONDS if is_named else self.unnamed_seconds)

    def _end_opposite(self, event: Event) -> None:
        """Record the end of the failures of a recovered device, or of the recoveries of a failed one."""
        if event.view is None or event.kind not in (*FAILURES, EventKind.GPU_RECOVERED):
            return
        ended = (EventKind.GPU_RECOVERED,) if event.kind in FAILURES else FAILURES
        keys = {event.view.key, event.view.unnamed_key}
        for (key, kind, _), groups in self._groups.items():
            for group in groups if key in keys and kind in ended else ():
                if group.ended is None and group.at <= event.at:
                    group.ended = event.at

    def _all(self) -> Iterator[EventGroup]:
        return itertools.chain.from_iterable(self._groups.values())

    def _expire(self, now: float) -> None:
        for key, groups in list(self._groups.items()):
            late = max(SOURCE_LATE_SECONDS, GROUPED[key[1]])
            groups[:] = [group for group in groups if not group.emitted or now - group.opened <= late]
            if not groups:
                del self._groups[key]


def _matching_group(groups: Sequence[EventGroup], at: int, part: str, window: float) -> EventGroup | None:
    """Return the newest group that matches an event; groups that name its GPU instance come first."""
    near = [
        group
        for group in reversed(groups)
        if abs(at - group.at) <= window * NANOS and (group.ended is None or at < group.ended)
    ]
    fitting = [group for group in near if not group.part or not part or group.part == part]
    return next((group for group in fitting if group.part == part), fitting[0] if fitting else None)


def log_seq(event: Event) -> int | None:
    """Return the kernel log record of the event, or None."""
    seq = event.attributes.get("log_seq")
    return None if seq is None else int(seq)
