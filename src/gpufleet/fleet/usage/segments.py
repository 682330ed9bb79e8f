"""Segments: intervals in which the allocations of a GPU do not change. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.usage import DeviceInterval

UnitKey = tuple[str, str]
"""Cluster, and id of the unit."""


class UnitHolding(msgspec.Struct, frozen=True):
    """Interval in which an allocation held a unit, or a part of it; nanoseconds since 1970."""

    unit: UnitKey
    part: str
    allocation: str
    start: int
    end: int


class Segment(msgspec.Struct, frozen=True):
    """Interval of a unit with constant holders.

    Attributes:
        unit: the unit.
        start, end: nanoseconds since 1970.
        parts: allocation to the parts that it held.
        contested: several tenants held the same part: its activity is shown to none of them.
    """

    unit: UnitKey
    start: int
    end: int
    parts: Mapping[str, frozenset[str]]
    contested: bool

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end - self.start) / 1e9


def cut_segments(
    holdings: Iterable[UnitHolding], allocations: Mapping[str, Allocation], cuts: Sequence[int] = ()
) -> list[Segment]:
    """Cut holdings into segments, and additionally at the instants `cuts`, such as price changes."""
    by_unit: dict[UnitKey, list[UnitHolding]] = defaultdict(list)
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
    """Return whether two tenants held the same part, or a tenant held the whole unit while another one held a part."""
    tenants: dict[str, set[str]] = defaultdict(set)
    for id_, held in parts.items():
        tenant = allocations[id_].spec.tenant
        if tenant is not None:
            for part in held:
                tenants[part].add(tenant)
    every = set().union(*tenants.values())
    return any(len(holders) > 1 for holders in tenants.values()) or (WHOLE in tenants and len(every) > 1)


def device_intervals(segment: Segment, unit: PhysicalUnit) -> list[tuple[str, DeviceInterval]]:
    """Return (part, interval) for each device whose usage is needed to describe a segment.

    The usage of a whole GPU in MIG mode is that of its parts if the GPU reports none itself.
    """
    held = frozenset().union(*segment.parts.values())
    wanted = [WHOLE, *unit.parts] if WHOLE in held else [*held]
    places = {WHOLE: unit.views, **{name: part.views for name, part in unit.parts.items()}}
    return [
        (name, DeviceInterval(cluster=unit.cluster, views=places[name], start=segment.start, end=segment.end))
        for name in wanted
        if places[name]
    ]
