"""Intervals in which a GPU was in a machine, for GPUs that move between machines. Pure.

A GPU that one machine reported until another one did has moved. It belonged to the first machine until the other first
reported it, and the GPU that came into its slot has been there since. A GPU that was not reported again after another
one came into its slot was there until then. A GPU that only the first machine reports again
has moved back: it was in each of the others from their first to their last report. Whether it was also in the first
machine during that time is unknown; usage then counts for both. The same holds for a GPU that two machines keep
reporting.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from gpufleet.fleet.readings import known_views
from gpufleet.fleet.usage.units import Place
from gpufleet.model.absence import Absent
from gpufleet.model.api.inventory import StoredSlot
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, ViewKind

MAX_CLOCK_SKEW_NS = 600 * NANOS
"""Largest clock difference between two machines: a hub stores nothing from a machine whose clock is further ahead."""

UNBOUNDED = 2**63 - 1


class Residence(msgspec.Struct):
    """Interval of a GPU in a machine, nanoseconds since 1970, `end` excluded; 0 and `UNBOUNDED` if not bounded."""

    begin: int = 0
    end: int = UNBOUNDED

    def within(self, start: int, end: int) -> tuple[int, int]:
        """Return the intersection with an interval, which may be empty."""
        first = min(max(start, self.begin), end)
        return first, max(first, min(end, self.end))


def last_reported(stored: Mapping[str, Sequence[StoredSample]], side: Side = Side.HOST) -> dict[Place, int]:
    """Return when each machine last reported a value of each GPU on a side, from the newest samples."""
    found: dict[Place, int] = {}
    for machine, samples in stored.items():
        for one in samples:
            view = one.sample.view
            if view is None or view.kind is not ViewKind.GPU or view.side is not side or view.uuid is None:
                continue
            if any(not isinstance(value, Absent) for value in one.sample.values.values()):
                place = machine, view.key
                found[place] = max(found.get(place, 0), one.sample.measured_at)
    return found


def possibly_moved(reported: Iterable[Place]) -> list[str]:
    """Return the machines with a GPU that another machine reported, too."""
    by_view: dict[str, set[str]] = defaultdict(set)
    for machine, view in reported:
        by_view[view].add(machine)
    return sorted(set().union(*(machines for machines in by_view.values() if len(machines) > 1)))


def possibly_replaced(stored: Mapping[str, Sequence[StoredSample]], reported: Iterable[Place]) -> list[str]:
    """Return the machines with a slot in which several of the reported GPUs were seen."""
    places = frozenset(reported)
    found = []
    for machine, samples in stored.items():
        slots = [view.pci_address for key, view in known_views(samples).items() if (machine, key) in places]
        if len(slots) > len(set(slots)):
            found.append(machine)
    return found


def bounded_residences(slots: Iterable[StoredSlot], reported: Mapping[Place, int]) -> dict[Place, Residence]:
    """Return the residences that are bounded.

    Args:
        slots: slots in which the machines' GPUs were reported.
        reported: last report of a GPU by a machine.
    """
    rows = [one for one in slots if (one.machine, one.view) in reported]
    first: dict[Place, int] = {}
    newest: dict[Place, int] = {}
    for one in rows:
        place = one.machine, one.view
        first[place] = min(first.get(place, UNBOUNDED), one.first)
        newest[place] = max(newest.get(place, 0), one.newest)
    found: dict[Place, Residence] = defaultdict(Residence)
    by_view: dict[str, list[Place]] = defaultdict(list)
    for place in first:
        by_view[place[1]].append(place)
    for places in by_view.values():
        ordered = sorted(places, key=lambda place: (first[place], place))
        if any(reported[before] > first[after] + MAX_CLOCK_SKEW_NS for before, after in pairwise(ordered)):
            home, *others = ordered
            if all(reported[home] > reported[other] + MAX_CLOCK_SKEW_NS for other in others):
                found.update({other: Residence(first[other], reported[other]) for other in others})
            continue
        for before, after in pairwise(ordered):
            found[before].end = found[after].begin = first[after]
    _free(rows, first, newest, reported, found)
    return dict(found)


def succession(reported: Mapping[str, tuple[int, int]]) -> dict[str, list[tuple[int, int]]]:
    """Return the intervals in which each guest stands for a virtual machine: one guest at any time.

    That is the guest that is reported then, the later one of two; else the one that was reported last; and before all
    of them, the first one.

    Args:
        reported: guest to its first and its last report, nanoseconds since 1970.
    """
    if not reported:
        return {}
    found: dict[str, list[tuple[int, int]]] = {id_: [] for id_ in reported}
    edges = sorted({0, UNBOUNDED, *(at for interval in reported.values() for at in interval)})
    for start, end in pairwise(edges):
        begun = {id_: interval for id_, interval in reported.items() if interval[0] <= start}
        live = {id_: interval for id_, interval in begun.items() if end <= interval[1]}
        if live:
            chosen = max(live, key=lambda id_: (live[id_], id_))
        elif begun:
            chosen = max(begun, key=lambda id_: (begun[id_][1], id_))
        else:
            chosen = min(reported, key=lambda id_: (reported[id_], id_))
        intervals = found[chosen]
        if intervals and intervals[-1][1] == start:
            start, _ = intervals.pop()
        intervals.append((start, end))
    return found


def _free(
    rows: Iterable[StoredSlot],
    first: Mapping[Place, int],
    newest: Mapping[Place, int],
    reported: Mapping[Place, int],
    found: dict[Place, Residence],
) -> None:
    """End the residence of a GPU that left a slot when the next one came into it, which begins there.

    A GPU left the slot if it moved to another machine, or was not reported again after the next one came.
    """
    by_slot: dict[tuple[str, str], list[StoredSlot]] = defaultdict(list)
    for one in rows:
        by_slot[one.machine, one.address].append(one)
    for occupants in by_slot.values():
        for left, came in pairwise(sorted(occupants, key=lambda one: (one.first, one.view))):
            before, after = (left.machine, left.view), (came.machine, came.view)
            has_moved = before in found and found[before].end < UNBOUNDED
            if left.newest != newest[before] or not (has_moved or reported[before] <= came.first):
                continue
            found[before].end = min(found[before].end, came.first)
            if came.first == first[after]:
                found[after].begin = max(found[after].begin, came.first)
