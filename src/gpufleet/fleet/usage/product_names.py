"""Product names of GPUs over time, from what their machines reported. Pure.

A driver can write the name in another way than its predecessor. A name holds from its report on. A guest names a GPU
only if no host does. Of several readers, the first by precedence counts. Of several views, the latest
report of a new name counts.
"""

from collections.abc import Container, Iterable

from gpufleet.fleet.usage.units import Place
from gpufleet.model.reading import reader_rank
from gpufleet.model.stored.readings import StoredText


def names_of(texts: Iterable[StoredText], guests: Container[str] = ()) -> tuple[tuple[int, str], ...]:
    """Return the times since which a GPU had a name, and the names.

    Args:
        texts: names that the readers of its views reported, in order of time.
        guests: machines that are guests.
    """
    newest: dict[tuple[Place, str], StoredText] = {}
    found: list[tuple[int, str]] = []
    for one in texts:
        newest[(one.machine, one.view), one.reader] = one
        name = min(
            newest.values(),
            key=lambda other: (other.machine in guests, reader_rank(other.reader), -other.at, other.text),
        ).text
        if found and found[-1][0] == one.at:
            found.pop()
        if not found or found[-1][1] != name:
            found.append((one.at, name))
    return tuple(found)
