"""Intervals in which a virtual machine had vGPU instances, from the texts that its hosts reported of them. Pure.

- An instance belongs to the virtual machine that was reported from it last, also after the virtual machine stopped.
- An instance that ended is replaced by the next one of the same virtual machine, such as after a restart.
- Before all reports, an instance belongs to the first virtual machine, unless that one had another instance before.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpufleet.fleet.readings import present_keys
from gpufleet.fleet.usage.residence import MAX_CLOCK_SKEW_NS, UNBOUNDED, Interval
from gpufleet.fleet.usage.units import Place
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.readings import StoredText
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.view import Side, normalise_uuid


def instance_intervals(
    wanted: str, texts: Iterable[StoredText], stored: Mapping[str, Sequence[StoredSample]]
) -> dict[Place, tuple[Interval, ...]]:
    """Return the intervals in which a virtual machine had each instance.

    Args:
        wanted: UUID of the virtual machine.
        texts: ids of virtual machines of every instance that ever had this one, in order of time.
        stored: newest samples of the machines. Texts of other readers than those of the host itself do not count.
    """
    readers, last, present = _reports(stored)
    holders: dict[Place, list[tuple[int, str]]] = defaultdict(list)
    for one in texts:
        place, holder = (one.machine, one.view), normalise_uuid(one.text)
        if holder is None or one.reader not in readers.get(place, ()):
            continue
        if not holders[place] or holders[place][-1][1] != holder:
            holders[place].append((one.at, holder))
    runs: list[tuple[int, int, Place, bool]] = []  # start, end, instance, whether it is the first of the instance
    for place, changes in holders.items():
        ends = [at for at, _ in changes[1:]] + [UNBOUNDED]
        for number, ((at, holder), end) in enumerate(zip(changes, ends, strict=True)):
            if holder == wanted:
                runs.append((at, end, place, number == 0))
    runs.sort()
    found: dict[Place, list[Interval]] = defaultdict(list)
    for start, end, place, is_first in runs:
        until = end
        if end == UNBOUNDED:
            skew = MAX_CLOCK_SKEW_NS if place in present else -MAX_CLOCK_SKEW_NS
            later = [at for at, *_ in runs if at > max(start, last[place] + skew)]
            until = min(later, default=UNBOUNDED)
        had_other = runs[0][0] < start - MAX_CLOCK_SKEW_NS
        begin = 0 if is_first and not had_other else start
        found[place].append((begin, until))
    return {place: tuple(intervals) for place, intervals in found.items()}


def _reports(
    stored: Mapping[str, Sequence[StoredSample]],
) -> tuple[dict[Place, set[str]], dict[Place, int], frozenset[Place]]:
    """Return the host's own readers of each instance, its last report, and the instances that are present."""
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
    return readers, last, frozenset(present)
