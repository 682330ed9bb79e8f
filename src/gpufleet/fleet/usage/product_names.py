"""Product names of GPUs over time, from what their machines reported. Pure.

A driver can write the name in another way than its predecessor. A name holds from its report on. A guest names a GPU
only while it has it, and only until a host does. Of several guests, the first one to name it counts. Of several
readers, the first by precedence counts. Of several views, the latest report of a new name counts.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence

from gpufleet.fleet.usage.residence import UNBOUNDED, Interval
from gpufleet.fleet.usage.units import Place
from gpufleet.model.reading import reader_rank
from gpufleet.model.stored.readings import StoredText

_ALWAYS: Interval = (0, UNBOUNDED)


def without_later_claims(texts: Iterable[StoredText], claims: Container[Place]) -> list[StoredText]:
    """Return the names of a GPU without those that guests reported since its host did, or while its host has no name.

    Args:
        texts: names that the readers of its views reported.
        claims: views of guests, if a host reported the GPU, too.
    """
    texts = list(texts)
    named = min((one.at for one in texts if (one.machine, one.view) not in claims), default=0)
    return [one for one in texts if (one.machine, one.view) not in claims or one.at < named]


def names_of(
    texts: Iterable[StoredText], guests: Container[str] = (), stays: Mapping[Place, Sequence[Interval]] = {}
) -> tuple[tuple[int, str], ...]:
    """Return the times since which a GPU had a name, and the names.

    Args:
        texts: names that the readers of its views reported, in order of time.
        guests: machines that are guests.
        stays: stays of GPUs that were not always in their machine.
    """
    reports: dict[int, list[StoredText]] = defaultdict(list)
    ranks: dict[str, int] = {}
    of_guests: dict[Place, Sequence[Interval]] = {}
    for one in texts:
        reports[one.at].append(one)
        if one.machine in guests:
            ranks.setdefault(one.machine, len(ranks) + 1)
            of_guests[one.machine, one.view] = stays.get((one.machine, one.view), (_ALWAYS,))
    edges = {at for own in of_guests.values() for interval in own for at in interval if at < UNBOUNDED}
    newest: dict[tuple[Place, str], StoredText] = {}
    found: list[tuple[int, str]] = []
    for at in sorted(edges | reports.keys()):
        newest.update({((one.machine, one.view), one.reader): one for one in reports.get(at, ())})
        present = [
            one
            for (place, _), one in newest.items()
            if any(start <= at < end for start, end in of_guests.get(place, (_ALWAYS,)))
        ]
        if not present:
            continue
        name = min(
            present, key=lambda one: (ranks.get(one.machine, 0), reader_rank(one.reader), -one.at, one.text)
        ).text
        if not found or found[-1][1] != name:
            found.append((at, name))
    return tuple(found)
