"""Which records a read should take, before anything is read."""

from collections.abc import Container, Sequence
from pathlib import Path

import msgspec

from gpufleet.spool.segment import Place, Segment


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a read asks for.

    Attributes:
        after: only numbers past this one.
        until: only numbers up to this one.
        skip: but not these.
        max_records: at most this many.
        max_bytes: of bodies; the first is taken even if it alone has more.
        newest_first: the highest numbers, highest first, rather than the lowest.
    """

    after: int
    until: int
    skip: Container[int]
    max_records: int
    max_bytes: int
    newest_first: bool


def choose(segments: Sequence[Segment], wanted: Wanted) -> list[tuple[Path, list[Place]]]:
    """Return the places to read, by segment, in the order in which they were asked for."""
    chosen: list[tuple[Path, list[Place]]] = []
    records = total = 0
    for segment in reversed(segments) if wanted.newest_first else segments:
        places: list[Place] = []
        chosen.append((segment.path, places))
        for place in segment.waiting_newest(wanted.after) if wanted.newest_first else segment.waiting(wanted.after):
            if place[0] > wanted.until or place[0] in wanted.skip:
                continue
            if records and total + place[2] > wanted.max_bytes:
                return [(path, some) for path, some in chosen if some]
            places.append(place)
            records += 1
            total += place[2]
            if records >= wanted.max_records:  # at once: past them there may be many to skip
                return [(path, some) for path, some in chosen if some]
    return [(path, some) for path, some in chosen if some]
