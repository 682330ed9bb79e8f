"""Reports of GPUs by several machines, and intervals in which a guest stood for a virtual machine. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from gpufleet.fleet.readings import device_views, known_views
from gpufleet.fleet.usage.units import Place
from gpufleet.model.absence import Absent
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, ViewKind

MAX_CLOCK_SKEW_NS = 600 * NANOS
"""Largest clock difference between two machines: a hub stores nothing from a machine whose clock is further ahead."""

UNBOUNDED = 2**63 - 1


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


class LastReport(NamedTuple):
    """Newest report of a GPU by a reader, nanoseconds since 1970; `address` is that of its address, 0 if not known."""

    any: int = 0
    address: int = 0


def last_reports(stored: Mapping[str, Sequence[StoredSample]]) -> dict[tuple[str, str, str], LastReport]:
    """Return the newest report of each GPU on the side of the host: by machine, key of the view and reader.

    A lost GPU can have no address in its newest sample.
    """
    found: dict[tuple[str, str, str], LastReport] = defaultdict(LastReport)
    for machine, samples in stored.items():
        for one in samples:
            view = one.sample.view
            if view is None or view.kind is not ViewKind.GPU or view.side not in (Side.HOST, Side.PCI_ONLY):
                continue
            observer, at = (machine, view.key, one.sample.reader), one.sample.measured_at
            has_address = isinstance(one.sample.values.get("gpu_pci_address"), str)
            known = found[observer]
            found[observer] = LastReport(max(known.any, at), max(known.address, at) if has_address else known.address)
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


def possibly_added(reported: Iterable[Place]) -> list[str]:
    """Return the machines with several of the reported GPUs: some can have come later than others."""
    counts = Counter(machine for machine, _ in reported)
    return [machine for machine, number in counts.items() if number > 1]


def indexed_gpus(stored: Mapping[str, Sequence[StoredSample]]) -> dict[Place, Side]:
    """Return the GPUs known by a list index only, with their side, of machines that now report others by name."""
    found: dict[Place, Side] = {}
    for machine, samples in stored.items():
        gpus = {key: view for key, view in known_views(samples).items() if view.kind is ViewKind.GPU}
        if any(view.named for view in device_views(samples).values() if view.kind is ViewKind.GPU):
            found |= {(machine, key): view.side for key, view in gpus.items() if not view.named}
    return found


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
