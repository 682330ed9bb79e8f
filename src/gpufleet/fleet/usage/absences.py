"""Absences: intervals in which a machine did not have a GPU that it had before, and had others. Pure.

- An absence begins at the end of a whole hour in which the agent read other GPUs of the machine, and nothing reported
  the GPU or its slot. A GPU that is lost, or that no driver reads, is reported.
- It ends with the next report of the GPU or its slot.

The hours of reports decide. They are kept longest, so what is past does not change. The store's rows of texts only show
where to search: between two of them, a reader can have reported nothing.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat
from typing import NamedTuple, Protocol

from gpufleet.fleet.usage.residence import UNBOUNDED, Interval, LastReport, gaps
from gpufleet.fleet.usage.units import Place
from gpufleet.model.api.inventory import SlotRow, StoredSlot
from gpufleet.model.time import NANOS
from gpufleet.model.view import SLOT_PREFIX

HOUR_NS = 3600 * NANOS

_WINDOWS_NS = tuple(days * 24 * HOUR_NS for days in (1, 8, 64, 400))
"""Parts of a search, one after the other; the last one is repeated. A series has at most 458 days of hours."""

Observer = tuple[str, str, str]
"""Machine, view key and reader."""


class HourlyReports(Protocol):
    """Source of the hours with reports, as their starts in nanoseconds since 1970."""

    def read(self, machine: str, views: frozenset[str], start: int, end: int) -> Mapping[str, Collection[int]]:
        """Return the whole hours of an interval in which the agent reported views of a machine, by their keys."""
        ...

    def imported(self, machine: str, views: frozenset[str], start: int, end: int) -> Collection[int]:
        """Return the whole hours of an interval in which another source reported any of the views of a machine."""
        ...


class _Reported(NamedTuple):
    """Reports of a view, by the rows of its texts.

    Attributes:
        known: intervals in which it was reported; it can have been reported at other times, too.
        live: the same, and until its newest report, also without its address: its agent ran.
        since: begins of the rows, ascending.
    """

    known: Sequence[Interval]
    live: Sequence[Interval]
    since: Sequence[int]


_NEVER = _Reported((), (), ())


def absences(
    slots: Iterable[StoredSlot], last: Mapping[Observer, LastReport], reports: HourlyReports, within: Interval, now: int
) -> Iterator[tuple[Place, Interval]]:
    """Yield the absences of GPUs with a UUID.

    Args:
        slots: of the machines.
        last: newest report of each view by each reader.
        reports: queried where an absence is possible.
        within: interval; absences of other times can be left out.
        now: nanoseconds since 1970.
    """
    rows: dict[Place, list[SlotRow]] = defaultdict(list)
    addresses: dict[Place, list[tuple[int, str]]] = defaultdict(list)
    for one in slots:
        rows[one.machine, one.view] += one.rows
        addresses[one.machine, one.view] += [(at, one.address) for at in one.begun]
    reported = {place: _reported(own, place, last) for place, own in rows.items()}
    views: dict[str, set[str]] = defaultdict(set)
    for machine, view in reported:
        views[machine].add(view)
    every = {
        machine: frozenset(own.union(_slot_key(at) for view in own for _, at in addresses[machine, view]))
        for machine, own in views.items()
    }
    for (machine, view), own in reported.items():
        if view.startswith(SLOT_PREFIX):
            continue
        others = [run for other in views[machine] if other != view for run in reported[machine, other].live]
        newest = max((until for _, until in others), default=0)
        for start, end in gaps(own.known, own.since[0], UNBOUNDED):
            if end <= within[0] or within[1] <= start or _hour_after(start) + HOUR_NS > min(end, now):
                continue
            if newest <= _hour_after(start):
                continue  # the machine is off
            address = max(since for since in addresses[machine, view] if since[0] <= start)[1]
            search = _Search(machine, frozenset((view, _slot_key(address))), every[machine], reports)
            slot = _through_outages(reported.get((machine, _slot_key(address)), _NEVER), others)
            for absence in search.absences(start, end, now, slot, own.since):
                yield (machine, view), absence


def windows(start: int, end: int) -> Iterator[Interval]:
    """Yield the parts of a search in an interval, in order."""
    for length in chain(_WINDOWS_NS, repeat(_WINDOWS_NS[-1])):
        if start >= end:
            return
        yield start, min(start + length, end)
        start += length


class _Search(NamedTuple):
    """Search for the absences of a GPU.

    Attributes:
        machine: its machine.
        own: keys of the GPU and its slot.
        every: keys of all GPUs and slots of the machine; the same in each of its searches, which repeat their queries.
        reports: of the hours.
    """

    machine: str
    own: frozenset[str]
    every: frozenset[str]
    reports: HourlyReports

    def absences(self, start: int, end: int, now: int, slot: _Reported, since: Sequence[int]) -> Iterator[Interval]:
        """Yield the absences between two known reports.

        Args:
            start, end, now: nanoseconds since 1970.
            slot: reports of the slot.
            since: when the GPU was reported again, ascending.
        """
        left: int | None = None
        for first, until in windows(_hour_after(start), min(end, now) // HOUR_NS * HOUR_NS):
            read = self.reports.read(self.machine, self.every if left is None else self.own, first, until)
            own = set(_hours(slot.known, first, until)).union(*(read.get(key, ()) for key in self.own))
            others = set[int]().union(*(hours for key, hours in read.items() if key not in self.own))
            if left is not None or not others <= own:
                own.update(self.reports.imported(self.machine, self.own, first, until))
            for hour in sorted(own | others):
                if hour not in own:
                    left = hour + HOUR_NS if left is None else left
                elif left is not None:
                    back = [*_within_hour(since, hour), *_within_hour(slot.since, hour)]
                    yield left, max(left, min(back, default=hour))
                    left = None
        if left is not None and left < end:
            yield left, end


def _reported(rows: Iterable[SlotRow], place: Place, last: Mapping[Observer, LastReport]) -> _Reported:
    by_reader: dict[str, list[SlotRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda one: one.since):
        by_reader[row.reader].append(row)
    known: list[Interval] = []
    newest: list[Interval] = []
    since: set[int] = set()
    for reader, own in by_reader.items():
        since |= {row.since for row in own}
        ends = sorted(row.before for row in own)
        for row, following in pairwise(own):
            known.append((row.since, max(row.since, ends[max(0, bisect_left(ends, following.since) - 1)]) + 1))
        begun, until = own[-1].since, last.get((*place, reader), LastReport())
        known.append((begun, max(begun, until.address) + 1))
        newest.append((begun, max(begun, until.any) + 1))
    return _Reported(known, known + newest, sorted(since))


def _through_outages(slot: _Reported, others: Sequence[Interval]) -> _Reported:
    """Return the reports of a slot with those that an outage can hide: rows do not show what arrived after it.

    In an outage, no other view of the machine is known to have been reported for an hour.
    """
    if not slot.known:
        return slot
    last = max(end for _, end in slot.known)
    hidden = [
        (start, end)
        for start, end in gaps(slot.known, slot.since[0], last)
        if all(min(b, end) - max(a, start) < HOUR_NS for a, b in others)
    ]
    return slot._replace(known=[*slot.known, *hidden])


def _slot_key(address: str) -> str:
    return f"{SLOT_PREFIX}{address}"


def _hour_after(at: int) -> int:
    """Return the start of the first whole hour after that of a time."""
    return (at // HOUR_NS + 1) * HOUR_NS


def _hours(intervals: Iterable[Interval], start: int, end: int) -> Iterator[int]:
    """Yield the hours between two hours that overlap with an interval."""
    for a, b in intervals:
        first = max(start, a // HOUR_NS * HOUR_NS)
        yield from range(first, min(end, b // HOUR_NS * HOUR_NS + HOUR_NS), HOUR_NS)


def _within_hour(times: Sequence[int], hour: int) -> Sequence[int]:
    """Return the times in an hour."""
    return times[bisect_left(times, hour) : bisect_left(times, hour + HOUR_NS)]
