"""Stays: intervals in which a GPU was in a machine, from the times at which machines began to report it. Pure.

- A GPU belongs to the machine that began to report it last, from that time on. Before all reports it belongs to the
  first machine.
- A machine that continues to report a GPU after another one began keeps it: usage then counts for both. If it also
  outlives the other one, the GPU is with the other one until the last report there.
- A GPU that came into the slot of another one has been there since. The other one was there until then, unless its
  machine continued to report it.
- A GPU that came into an empty slot has been there since, if its machine reported another GPU before. A PCI device that
  no driver read is no empty slot.
- A GPU known by a list index only was there until its machine first reported a GPU by UUID or address.

A machine begins to report a GPU again after a pause of `RETURN_GAP_NS`. The store keeps these times as long as its
history of slots, so that a return does not change what is past. It also keeps times of reports that arrived late:
times of one slot that follow each other within `RETURN_GAP_NS` are one beginning.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from gpufleet.fleet.identity import MachineIds
from gpufleet.fleet.usage.residence import MAX_CLOCK_SKEW_NS, UNBOUNDED, Interval
from gpufleet.fleet.usage.units import Place
from gpufleet.model.api.inventory import RETURN_GAP_NS, StoredSlot
from gpufleet.model.view import SLOT_PREFIX

Reported = Callable[[Place, int, int], bool]
"""Returns whether a machine reported a GPU within an interval, nanoseconds since 1970."""


def never_reported(place: Place, start: int, end: int) -> bool:
    """Return that a GPU was not reported: a machine that reports it again did not have it in between."""
    return False


def bounded_stays(
    slots: Iterable[StoredSlot],
    last: Mapping[Place, int],
    was_reported: Reported = never_reported,
    ids: MachineIds | None = None,
) -> dict[Place, tuple[Interval, ...]]:
    """Return the stays of GPUs that were not always in their machine. All others have been there always.

    Ids that proved to be those of one machine are one machine for GPUs that move between machines. Which GPU came or
    was replaced under an id follows from the slots of this id alone: what is past does not change with such a proof.

    Args:
        slots: slots in which the machines' GPUs were reported, also without a UUID: lost ones, and those bound to vfio.
        last: last report of a GPU by a machine.
        was_reported: queried for a machine that began to report a GPU again after another one had, and for a GPU whose
            slot was known later than that of another GPU.
        ids: of the machines; by default each id is of a machine of its own.
    """
    ids = ids or MachineIds()
    seen: dict[Place, list[tuple[int, str]]] = defaultdict(list)
    unread: dict[tuple[str, str], int] = {}
    for one in slots:
        if (one.machine, one.view) in last:
            seen[one.machine, one.view] += [(at, one.address) for at in one.begun]
        elif one.view.startswith(SLOT_PREFIX):
            unread[one.machine, one.address] = min(one.first, unread.get((one.machine, one.address), one.first))
    seen = {place: _without_repeats(times) for place, times in seen.items()}
    found = _moved(seen, last, was_reported, ids)
    for place, since in _displaced(seen, found, last, was_reported):
        found[place] = without(found.get(place, [(0, UNBOUNDED)]), *since)
    for place, begun in _added(seen, was_reported, unread):
        found[place] = without(found.get(place, [(0, UNBOUNDED)]), 0, begun)
    return {place: tuple(stays) for place, stays in found.items()}


def with_indexed(
    stays: Mapping[Place, Sequence[Interval]],
    indexed: Iterable[Place],
    named: Mapping[Place, int],
    was_reported: Reported,
) -> dict[Place, tuple[Interval, ...]]:
    """Return stays with those of GPUs known by a list index only, which their machine later reported by name.

    An index does not show which of the named GPUs it was. So it counts until the machine first reported a GPU by name,
    and the named GPUs count from then on.

    Args:
        stays: of named GPUs, as `bounded_stays` returns them.
        indexed: GPUs known by index on machines with named GPUs.
        named: first report of each named GPU of these machines, nanoseconds since 1970.
        was_reported: queried for GPUs known by index.
    """
    first: dict[str, int] = {}
    for (machine, _), at in named.items():
        first[machine] = min(at, first.get(machine, at))
    found = {place: tuple(own) for place, own in stays.items()}
    begun: dict[str, int] = {}
    for place in indexed:
        since = first.get(place[0])
        if since is not None and was_reported(place, 0, since - RETURN_GAP_NS):
            begun[place[0]] = since
            found[place] = ((0, since),)
    for place in named:
        if place[0] in begun:
            found[place] = tuple(without(found.get(place, [(0, UNBOUNDED)]), 0, begun[place[0]]))
    return found


def is_left(stays: Sequence[Interval]) -> bool:
    """Return whether a GPU is not in the machine any more."""
    return not stays or stays[-1][1] < UNBOUNDED


def clipped(stays: Sequence[Interval], start: int, end: int) -> list[Interval]:
    """Return the parts of stays within an interval; an empty one at its start if there are none."""
    return [(max(a, start), min(b, end)) for a, b in stays if max(a, start) < min(b, end)] or [(start, start)]


def _without_repeats(times: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return times and slots in order, without those that follow one of the same slot within `RETURN_GAP_NS`."""
    ordered = sorted(times)
    return [
        one
        for before, one in pairwise([(-RETURN_GAP_NS, ""), *ordered])
        if one[1] != before[1] or one[0] - before[0] > RETURN_GAP_NS
    ]


def _moved(
    seen: Mapping[Place, Sequence[tuple[int, str]]], last: Mapping[Place, int], was_reported: Reported, ids: MachineIds
) -> dict[Place, list[Interval]]:
    """Return the stays of GPUs that several machines reported, for each id of a machine."""
    by_view: dict[str, dict[Place, list[tuple[int, str]]]] = defaultdict(lambda: defaultdict(list))
    last_of: dict[Place, int] = {}
    for (id_, view), times in seen.items():
        place = ids.main(id_), view
        by_view[view][place] += times
        last_of[place] = max(last[id_, view], last_of.get(place, 0))

    def was_reported_under_any(place: Place, start: int, end: int) -> bool:
        return any(was_reported((id_, place[1]), start, end) for id_ in ids.of(place[0]))

    found: dict[Place, list[Interval]] = {}
    for places in by_view.values():
        if len(places) > 1:
            joined = {place: _without_repeats(times) for place, times in places.items()}
            for (main, view), stays in _turns(joined, last_of, was_reported_under_any).items():
                found |= {(id_, view): stays for id_ in ids.of(main)}
    return found


def _turns(
    seen: Mapping[Place, Sequence[tuple[int, str]]], last: Mapping[Place, int], was_reported: Reported
) -> dict[Place, list[Interval]]:
    """Return the stays of one GPU in several machines."""
    begun = sorted({(at, place) for place, times in seen.items() for at, _ in times})
    turns = [one for before, one in pairwise([(0, ("", "")), *begun]) if before[1] != one[1]]
    found: dict[Place, list[Interval]] = defaultdict(list)
    stayed: list[Place] = []
    for number, (at, place) in enumerate(turns):
        start, end = at if number else 0, UNBOUNDED
        if number + 1 < len(turns):
            left = turns[number + 1][0]
            again = next((back for back, other in turns[number + 1 :] if other == place), None)
            if again is not None:
                end = again if was_reported(place, left + MAX_CLOCK_SKEW_NS, again - RETURN_GAP_NS) else left
            elif last[place] > left + MAX_CLOCK_SKEW_NS:
                stayed.append(place)
            else:
                end = left
        found[place].append((start, end))
    newest = max((last[place] for place in stayed), default=0)
    for place, stays in found.items():
        if newest > last[place] + MAX_CLOCK_SKEW_NS:
            found[place] = [(start, min(end, max(start, last[place]))) for start, end in stays]
    return found


def _displaced(
    seen: Mapping[Place, Sequence[tuple[int, str]]],
    found: Mapping[Place, Sequence[Interval]],
    last: Mapping[Place, int],
    was_reported: Reported,
) -> Iterable[tuple[Place, Interval]]:
    """Yield GPUs with an interval in which they were not in their machine, since another one was in their slot."""
    arrivals: dict[tuple[str, str], list[tuple[int, Place]]] = defaultdict(list)
    for place, times in seen.items():
        for at, address in times:
            arrivals[place[0], address].append((at, place))
    occupied = {slot: sorted(came) for slot, came in arrivals.items() if len({place for _, place in came}) > 1}
    for place, times in seen.items():
        for (begun, address), (back, _) in pairwise([*times, (UNBOUNDED, "")]):
            came = occupied.get((place[0], address), ())
            at, other = next(((at, other) for at, other in came if begun < at < back and other != place), (0, place))
            if not at:
                continue
            if back < UNBOUNDED:
                is_gone = not was_reported(place, at, back - RETURN_GAP_NS)
            else:
                is_gone = last[place] <= at or (place in found and is_left(found[place]))
            if is_gone:
                yield place, (at, back)
                if at == seen[other][0][0]:
                    yield other, (0, at)


def _added(
    seen: Mapping[Place, Sequence[tuple[int, str]]], was_reported: Reported, unread: Mapping[tuple[str, str], int]
) -> Iterable[tuple[Place, int]]:
    """Yield GPUs that came into a machine that had reported others, with the time of their first report.

    A GPU without a UUID in its slot, first reported at the time in `unread`, was the same one.
    """
    earliest: dict[str, int] = {}
    for (machine, _), times in seen.items():
        earliest[machine] = min(times[0][0], earliest.get(machine, UNBOUNDED))
    for place, times in seen.items():
        machine, (first, address) = place[0], times[0]
        first = min(first, unread.get((machine, address), first))
        if first - RETURN_GAP_NS <= earliest[machine]:
            continue
        if not was_reported(place, 0, first - RETURN_GAP_NS):
            yield place, first


def without(stays: Iterable[Interval], start: int, end: int) -> list[Interval]:
    """Return stays without an interval."""
    parts = [part for a, b in stays for part in ((a, min(b, start)), (max(a, end), b))]
    return [(a, b) for a, b in parts if a < b]
