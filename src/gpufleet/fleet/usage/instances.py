"""Intervals in which a virtual machine had vGPU instances, from the texts that its hosts reported of them. Pure.

- An instance belongs to the virtual machine that was reported from it last, also after the virtual machine stopped.
- An instance that ended is replaced by the next one of the same virtual machine, such as after a restart, also if it is
  reported again later.
- Before all reports, an instance belongs to the first virtual machine, unless that one had another instance before.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpufleet.fleet.readings import present_keys
from gpufleet.fleet.usage.residence import MAX_CLOCK_SKEW_NS, UNBOUNDED, Interval, joined_runs
from gpufleet.fleet.usage.stays import clipped
from gpufleet.fleet.usage.units import Place
from gpufleet.model.api.inventory import RETURN_GAP_NS
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.readings import StoredText
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, normalise_uuid

PASS_NS = 5 * NANOS
"""Longest time between the reports of two instances in one pass of a reader."""

LastReport = Callable[[Place, int, int], int | None]
"""Returns when an instance was last reported within an interval, nanoseconds since 1970, or None."""


def always_reported(place: Place, start: int, end: int) -> int:
    """Return that an instance was reported until the end of an interval."""
    return end


class _Reports(NamedTuple):
    """Newest reports of hosts.

    Attributes:
        readers: the host's own readers of each instance.
        last: last report of each instance, nanoseconds since 1970.
        present: instances that still exist.
    """

    readers: Mapping[Place, Collection[str]]
    last: Mapping[Place, int]
    present: frozenset[Place]


class _Run(NamedTuple):
    """Interval in which an instance had a virtual machine.

    Attributes:
        start, end: nanoseconds since 1970; `end` is that of the next report after a pause, or of the next machine.
        place: the instance.
        is_first: whether no virtual machine had the instance before.
        last: last report; `UNBOUNDED` if it was reported until `end`.
        is_present: whether the instance still exists.
    """

    start: int
    end: int
    place: Place
    is_first: bool
    last: int
    is_present: bool

    def is_replaced_by(self, later: "_Run", now: int) -> bool:
        """Return whether the machine has a later instance in place of this one: it began after the last report of this.

        The clocks of two hosts can differ. An instance of a host that no longer reports has ended if the machine began
        on another host after that, or was reported there much later.
        """
        tolerated = self.last + MAX_CLOCK_SKEW_NS
        if later.place[0] == self.place[0]:
            until = tolerated if self.is_present else self.last + PASS_NS
        elif not self.is_present or min(later.last, later.end) > tolerated:
            until = self.last - MAX_CLOCK_SKEW_NS
        else:
            until = self.last if now > tolerated else tolerated
        return self.end > later.start > max(self.start, until)


def instance_intervals(
    wanted: str,
    texts: Iterable[StoredText],
    stored: Mapping[str, Sequence[StoredSample]],
    now: int,
    last_within: LastReport = always_reported,
) -> dict[Place, tuple[Interval, ...]]:
    """Return the intervals in which a virtual machine had each instance.

    Args:
        wanted: UUID of the virtual machine.
        texts: ids of virtual machines of every instance that ever had this one, in order of time.
        stored: newest samples of the machines. Texts of other readers than those of the host itself do not count.
        now: nanoseconds since 1970.
        last_within: queried for an instance that was reported again, if the virtual machine had several instances.
    """
    reports = _reports(stored)
    holders: dict[Place, list[tuple[int, str]]] = defaultdict(list)
    for one in texts:
        place, holder = (one.machine, one.view), normalise_uuid(one.text)
        if holder is not None and one.reader in reports.readers.get(place, ()):
            holders[place].append((one.at, holder))
    had = [place for place, changes in holders.items() if any(holder == wanted for _, holder in changes)]
    search = last_within if len(had) > 1 else always_reported
    runs = sorted(run for place in had for run in _runs(wanted, place, holders[place], search, reports))
    found: dict[Place, list[Interval]] = defaultdict(list)
    for number, run in enumerate(runs):
        until = min((later.start for later in runs if run.is_replaced_by(later, now)), default=run.end)
        had_other = runs[0].start < run.start - MAX_CLOCK_SKEW_NS or any(
            one.place[0] != run.place[0] or one.is_replaced_by(run, now) for one in runs[:number]
        )
        begin = 0 if run.is_first and not had_other else run.start
        intervals = found[run.place]
        if intervals and intervals[-1][1] == run.start:
            begin = intervals.pop()[0]
        intervals.append((begin, until))
    return {place: tuple(intervals) for place, intervals in found.items()}


def guest_stays(had: Iterable[Interval], stays: Sequence[Interval]) -> tuple[Interval, ...]:
    """Return the intervals in which a guest had a vGPU.

    Args:
        had: those of its virtual machine, by the reports of its hosts.
        stays: those by the reports of the guest. They count only in the time before the hosts reported the instance.
    """
    found: list[Interval] = []
    for start, end in had:
        found += clipped(stays, start, end) if start == 0 else [(start, end)]
    return joined_runs(found, gap=0)


def _runs(
    wanted: str, place: Place, changes: Sequence[tuple[int, str]], last_within: LastReport, reports: _Reports
) -> Iterator[_Run]:
    """Yield the runs of an instance, in order of time, from its texts.

    Args:
        wanted: UUID of the virtual machine.
        place: the instance.
        changes: times and virtual machines.
        last_within: as in `instance_intervals`.
        reports: newest reports.
    """
    start: int | None = None
    is_first = changes[0][1] == wanted
    for (at, holder), (end, after) in pairwise([*changes, (UNBOUNDED, "")]):
        if holder != wanted:
            continue
        start = at if start is None else start
        last = reports.last[place] if end == UNBOUNDED else UNBOUNDED
        if end != UNBOUNDED and end - at > RETURN_GAP_NS:
            reported = max(at, last_within(place, at, end) or at)
            if end - reported > RETURN_GAP_NS:
                last = reported
        if after != wanted or last != UNBOUNDED:
            is_present = place in reports.present and end == UNBOUNDED
            yield _Run(start, end, place, is_first, last, is_present)
            start, is_first = None, False


def _reports(stored: Mapping[str, Sequence[StoredSample]]) -> _Reports:
    """Return the newest reports of hosts."""
    readers: dict[Place, set[str]] = defaultdict(set)
    last: dict[Place, int] = defaultdict(int)
    present: set[Place] = set()
    for machine, samples in stored.items():
        keys = present_keys(samples)
        for one in samples:
            sample = one.sample
            view = sample.view
            if view is None or view.side is not Side.VGPU_HOST or sample.provenance is not Provenance.HOST_LOCAL_PROBE:
                continue
            place = machine, view.key
            readers[place].add(sample.reader)
            last[place] = max(last[place], sample.measured_at)
            if view.key in keys:
                present.add(place)
    return _Reports(readers, last, frozenset(present))
