"""Who held which GPU when: stretches of time within which nothing of that changes. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from gpufleet.fleet.usage.units import WHOLE, Unit
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.usage import Stretch

UnitKey = tuple[str, str]
"""Cluster, and id of the unit."""


class Holding(msgspec.Struct, frozen=True):
    """That an allocation held a unit, or a part of it, for a time; nanoseconds since 1970."""

    unit: UnitKey
    part: str
    allocation: str
    start: int
    end: int


class Segment(msgspec.Struct, frozen=True):
    """A stretch of time of a unit.

    Attributes:
        unit: of which.
        start, end: nanoseconds since 1970.
        parts: allocation to what it held.
        contested: it was several tenants' at once: what it did is nobody's to be told.
    """

    unit: UnitKey
    start: int
    end: int
    parts: Mapping[str, frozenset[str]]
    contested: bool

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end - self.start) / 1e9


def segments(
    holdings: Iterable[Holding], allocations: Mapping[str, Allocation], cuts: Sequence[int] = ()
) -> list[Segment]:
    """Cut what was held into segments; also at the instants `cuts`, such as those at which prices change."""
    by_unit: dict[UnitKey, list[Holding]] = defaultdict(list)
    for one in holdings:
        if one.start < one.end:
            by_unit[one.unit].append(one)
    found = []
    for unit, mine in by_unit.items():
        edges = {edge for one in mine for edge in (one.start, one.end)}
        first, last = min(edges), max(edges)
        edges.update(at for at in cuts if first < at < last)
        for start, end in pairwise(sorted(edges)):
            parts: dict[str, frozenset[str]] = {}
            for one in mine:
                if one.start <= start and end <= one.end:
                    parts[one.allocation] = parts.get(one.allocation, frozenset()) | {one.part}
            if parts:
                found.append(Segment(unit, start, end, parts, _contested(parts, allocations)))
    return found


def _contested(parts: Mapping[str, frozenset[str]], allocations: Mapping[str, Allocation]) -> bool:
    """Tell whether two tenants held the same part, or one of them the whole of which another held a part."""
    tenants: dict[str, set[str]] = defaultdict(set)
    for id_, held in parts.items():
        tenant = allocations[id_].spec.tenant
        if tenant is not None:
            for part in held:
                tenants[part].add(tenant)
    everybody = set().union(*tenants.values())
    return any(len(who) > 1 for who in tenants.values()) or (WHOLE in tenants and len(everybody) > 1)


def stretches(segment: Segment, unit: Unit) -> list[tuple[str, Stretch]]:
    """Return what must be asked for to know what a unit did within a segment, and of which part it is.

    The whole of a GPU in MIG mode is what its parts say where it says nothing itself.
    """
    held = frozenset().union(*segment.parts.values())
    wanted = [WHOLE, *unit.parts] if WHOLE in held else [*held]
    places = {WHOLE: unit.views, **{name: part.views for name, part in unit.parts.items()}}
    return [
        (name, Stretch(cluster=unit.cluster, views=places[name], start=segment.start, end=segment.end))
        for name in wanted
        if places[name]
    ]
