"""Intervals in which a GPU was in a machine, and in which a guest stood for a virtual machine. Pure.

A GPU that one machine reported until another one did has moved. It belonged to the first machine until the other first
reported it, and the GPU that came into its slot has been there since. A GPU that was not reported again after another
one came into its slot was there until then. A GPU that only the first machine reports again
has moved back: it was in each of the others from their first to their last report. Whether it was also in the first
machine during that time is unknown; usage then counts for both. The same holds for a GPU that two machines keep
reporting.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


Interval = tuple[int, int]
"""Start and end, nanoseconds since 1970, the end excluded."""


class Succession(msgspec.Struct, frozen=True):
    """Guests that stand for a virtual machine over time.

    Attributes:
        turns: guest to the intervals in which it stands for the virtual machine; one guest at any time.
        ambiguous: intervals in which several guests were reported at once, and none stands for it.
    """

    turns: Mapping[str, tuple[Interval, ...]]
    ambiguous: tuple[Interval, ...] = ()

    def within(self, start: int, end: int) -> "Succession":
        """Return the part within an interval."""
        turns = {id_: _clip(intervals, start, end) for id_, intervals in self.turns.items()}
        return Succession({id_: own for id_, own in turns.items() if own}, _clip(self.ambiguous, start, end))


def succession(reported: Mapping[str, Sequence[Interval]], tolerance: int = MAX_CLOCK_SKEW_NS) -> Succession:
    """Return the guests that stand for a virtual machine: one at any time, or none.

    - The guest that is reported stands for it. If none is, it is the one reported last; before all, the first one.
    - A guest whose reports begin at the end of another's, and continue after it, took over from it: a migration. Their
      reports overlap by the tolerance at most, since clocks differ, and that time belongs to the later guest.
    - All other time with reports of two guests is ambiguous: they are clones.

    Args:
        reported: guest to the intervals in which it was reported.
        tolerance: longest overlap of a migration.
    """
    runs = [(start, end, id_) for id_, intervals in reported.items() for start, end in intervals]
    if not runs:
        return Succession({})
    ambiguous = _merged(_conflicts(sorted(runs), tolerance))
    edges = {
        0,
        UNBOUNDED,
        *(at for start, end, _ in runs for at in (start, end)),
        *(at for pair in ambiguous for at in pair),
    }
    begins = sorted(runs)
    first = begins[0][2]
    turns: dict[str, list[Interval]] = {id_: [] for id_ in reported}
    live: list[tuple[int, int, str]] = []
    last = (0, first)
    position, gap = 0, 0
    for start, end in pairwise(sorted(edges)):
        while position < len(begins) and begins[position][0] <= start:
            live.append(begins[position])
            position += 1
        last = max([last, *((run[1], run[2]) for run in live if run[1] <= start)])
        live = [run for run in live if run[1] > start]
        while gap < len(ambiguous) and ambiguous[gap][1] <= start:
            gap += 1
        if gap < len(ambiguous) and ambiguous[gap][0] <= start:
            continue
        _append(turns[max(live)[2] if live else last[1]], start, end)
    return Succession({id_: tuple(intervals) for id_, intervals in turns.items() if intervals}, tuple(ambiguous))


def joined_runs(spans: Iterable[Interval], gap: int = MAX_CLOCK_SKEW_NS) -> tuple[Interval, ...]:
    """Return the intervals with those joined that are a gap apart at most, in order of time."""
    return tuple(_merged(spans, gap))


def gaps(intervals: Iterable[Interval], start: int, end: int) -> list[Interval]:
    """Return the parts of an interval that are in none of the intervals."""
    found = []
    for since, until in _merged(intervals):
        if start < since:
            found.append((start, min(since, end)))
        start = max(start, until)
    return [*found, (start, end)] if start < end else found


def _conflicts(runs: Sequence[tuple[int, int, str]], tolerance: int) -> Iterator[Interval]:
    """Yield the overlaps of different guests that are no migration. Runs are in order of time."""
    open_runs: list[tuple[int, int, str]] = []
    for run in runs:
        start, end, id_ = run
        open_runs = [one for one in open_runs if one[1] > start]
        for other_start, other_end, other in open_runs:
            is_migration = other_start < start and other_end < end and other_end - start <= tolerance
            if other != id_ and not is_migration:
                yield start, min(end, other_end)
        open_runs.append(run)


def _merged(spans: Iterable[Interval], gap: int = 0) -> list[Interval]:
    found: list[Interval] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= gap:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return found


def _append(intervals: list[Interval], start: int, end: int) -> None:
    """Add an interval that follows the others; it extends the last one if it adjoins it."""
    if intervals and intervals[-1][1] == start:
        start, _ = intervals.pop()
    intervals.append((start, end))


def _clip(intervals: Sequence[Interval], start: int, end: int) -> tuple[Interval, ...]:
    return tuple((max(a, start), min(b, end)) for a, b in intervals if max(a, start) < min(b, end))


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
