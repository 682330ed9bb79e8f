"""From when to when a GPU was in a machine, where it moved between machines. Pure.

A GPU that one machine told of until another one did has moved: it was the first one's until the other first told of it,
and what came into its slot has been there since. One that the first machine tells of again, and the others no more, has
moved back: it was in each of the others from when that first told of it until it last did. Whether it was in the first
one as well meanwhile is not known, and what is known of it then stays with both, as it does all the time of a GPU of
which two machines go on telling.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from gpufleet.fleet.usage.units import Place
from gpufleet.model.absence import Absent
from gpufleet.model.api.inventory import StoredSlot
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, ViewKind

APART_NS = 600 * NANOS
"""So much two machines' clocks may differ: a hub stores nothing of one that is further ahead."""

ALWAYS = 2**63 - 1


class Stay(msgspec.Struct):
    """When a GPU was in a machine, nanoseconds since 1970, `end` excluded; 0 and `ALWAYS` where that is not bounded."""

    begin: int = 0
    end: int = ALWAYS

    def within(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of a span of time that it was there: within the span, and maybe empty."""
        first = min(max(start, self.begin), end)
        return first, max(first, min(end, self.end))


def last_told(stored: Mapping[str, Sequence[StoredSample]]) -> dict[Place, int]:
    """Return when each machine last told a value of each GPU that it sees as its host, out of the newest samples."""
    found: dict[Place, int] = {}
    for machine, samples in stored.items():
        for one in samples:
            view = one.sample.view
            if view is None or view.kind is not ViewKind.GPU or view.side is not Side.HOST or view.uuid is None:
                continue
            if any(not isinstance(value, Absent) for value in one.sample.values.values()):
                place = machine, view.key
                found[place] = max(found.get(place, 0), one.sample.measured_at)
    return found


def doubtful(told: Iterable[Place]) -> list[str]:
    """Return the machines that told of a GPU of which another one told, too: it may have moved."""
    by_view: dict[str, set[str]] = defaultdict(set)
    for machine, view in told:
        by_view[view].add(machine)
    return sorted(set().union(*(machines for machines in by_view.values() if len(machines) > 1)))


def stays_of(slots: Iterable[StoredSlot], told: Mapping[Place, int]) -> dict[Place, Stay]:
    """Return the stays that are bounded.

    Args:
        slots: where the machines' GPUs were told of.
        told: when a machine last told of a GPU.
    """
    rows = [one for one in slots if (one.machine, one.view) in told]
    first: dict[Place, int] = {}
    newest: dict[Place, int] = {}
    for one in rows:
        place = one.machine, one.view
        first[place] = min(first.get(place, ALWAYS), one.first)
        newest[place] = max(newest.get(place, 0), one.newest)
    found: dict[Place, Stay] = defaultdict(Stay)
    by_view: dict[str, list[Place]] = defaultdict(list)
    for place in first:
        by_view[place[1]].append(place)
    for places in by_view.values():
        ordered = sorted(places, key=lambda place: (first[place], place))
        if any(told[before] > first[after] + APART_NS for before, after in pairwise(ordered)):
            home, *others = ordered
            if all(told[home] > told[other] + APART_NS for other in others):
                found.update({other: Stay(first[other], told[other]) for other in others})
            continue
        for before, after in pairwise(ordered):
            found[before].end = found[after].begin = first[after]
    _free(rows, first, newest, found)
    return dict(found)


def _free(
    rows: Iterable[StoredSlot], first: Mapping[Place, int], newest: Mapping[Place, int], found: dict[Place, Stay]
) -> None:
    """End the stay of what left a slot when the next GPU came into it, and begin that one's there."""
    by_slot: dict[tuple[str, str], list[StoredSlot]] = defaultdict(list)
    for one in rows:
        by_slot[one.machine, one.address].append(one)
    for occupants in by_slot.values():
        for left, came in pairwise(sorted(occupants, key=lambda one: (one.first, one.view))):
            before, after = (left.machine, left.view), (came.machine, came.view)
            has_left = before in found and found[before].end < ALWAYS and left.newest == newest[before]
            if has_left and came.first == first[after]:
                found[before].end = min(found[before].end, came.first)
                found[after].begin = max(found[after].begin, came.first)
