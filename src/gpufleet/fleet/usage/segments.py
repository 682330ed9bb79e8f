"""Segments: intervals in which the allocations of a GPU do not change. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit
from gpufleet.model.allocation import VM_KINDS, Allocation
from gpufleet.model.api.usage import DeviceInterval
from gpufleet.model.view import normalise_uuid

UnitKey = tuple[str, str]
"""Cluster, and id of the unit."""


class HeldPart(NamedTuple):
    """Unit, or part of it, that an allocation held.

    Attributes:
        name: the part, or `WHOLE`.
        holder: pod or job by which the allocation had it, or None for all of it.
        fraction: share of that holder.
        replicas: replicas of the time-sliced or MPS device that the holder has.
        is_confirmed: whether the source of the holding confirms it; the activity is unknown if not.
    """

    name: str
    holder: tuple[str, str] | None = None
    fraction: float = 1.0
    replicas: int = 0
    is_confirmed: bool = True


class UnitHolding(msgspec.Struct, frozen=True):
    """Interval in which an allocation held a unit, or a part of it; nanoseconds since 1970.

    Attributes:
        unit, part: what it held.
        allocation: id of the allocation.
        start, end: the interval.
        is_counted: whether it has the hours. A holding without hours can still contest those of another tenant.
    """

    unit: UnitKey
    part: HeldPart
    allocation: str
    start: int
    end: int
    is_counted: bool = True


class UnitInterval(msgspec.Struct, frozen=True):
    """Interval of a unit; nanoseconds since 1970, `end` excluded."""

    unit: UnitKey
    start: int
    end: int

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end - self.start) / 1e9


class Segment(UnitInterval, frozen=True):
    """Interval of a unit with constant allocations.

    Attributes:
        parts: allocation to the parts that it held.
        contested: several tenants held the same part, or may have held it: its activity is shown to none of them.
        in_vm: a virtual machine held the unit, or a part of it.
    """

    parts: Mapping[str, frozenset[HeldPart]]
    contested: bool
    in_vm: bool = False


def cut_segments(
    holdings: Iterable[UnitHolding],
    allocations: Mapping[str, Allocation],
    cuts: Sequence[int] = (),
    units: Mapping[UnitKey, PhysicalUnit] = {},
) -> list[Segment]:
    """Cut holdings into segments, and additionally at the instants `cuts` and at changes of a unit.

    Args:
        holdings: in any order.
        allocations: by id.
        cuts: nanoseconds since 1970, such as price changes.
        units: by key, as far as their changes are known.
    """
    by_unit: dict[UnitKey, list[UnitHolding]] = defaultdict(list)
    for one in holdings:
        if one.start < one.end:
            by_unit[one.unit].append(one)
    found: list[Segment] = []
    for unit, own in by_unit.items():
        found += _unit_segments(unit, own, allocations, [*cuts, *unit_changes(units.get(unit))])
    return found


def _unit_segments(
    unit: UnitKey, holdings: Sequence[UnitHolding], allocations: Mapping[str, Allocation], cuts: Sequence[int]
) -> Iterator[Segment]:
    """Yield the segments of one unit, in order of time."""
    begun: dict[int, list[int]] = defaultdict(list)
    ended: dict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(holdings):
        begun[one.start].append(number)
        ended[one.end].append(number)
    edges = {*begun, *ended}
    first, last = min(edges), max(edges)
    edges.update(at for at in cuts if first < at < last)
    present: set[int] = set()
    for start, end in pairwise(sorted(edges)):
        present.difference_update(ended.get(start, ()))
        present.update(begun.get(start, ()))
        parts: dict[str, set[HeldPart]] = {}
        uncounted: list[UnitHolding] = []
        for number in sorted(present):
            if holdings[number].is_counted:
                parts.setdefault(holdings[number].allocation, set()).add(holdings[number].part)
            else:
                uncounted.append(holdings[number])
        if parts:
            held = {id_: frozenset(of_allocation) for id_, of_allocation in parts.items()}
            contested = _contested(held, allocations) or _may_be_contested(held, uncounted, allocations)
            contested = contested or _is_claimed(held, allocations)
            in_vm = any(allocations[id_].spec.kind in VM_KINDS for id_ in held)
            yield Segment(unit, start, end, held, contested, in_vm)


def _contested(parts: Mapping[str, frozenset[HeldPart]], allocations: Mapping[str, Allocation]) -> bool:
    """Return whether two tenants held the same part, or a tenant held the whole unit while another one held a part.

    Two holders that share a part do not contest it.
    """
    tenants: dict[str, dict[tuple[str, str] | None, set[str]]] = defaultdict(lambda: defaultdict(set))
    for id_, held in parts.items():
        tenant = allocations[id_].spec.tenant
        if tenant is not None:
            for part in held:
                tenants[part.name][part.holder].add(tenant)
    of_part = {name: set().union(*by_holder.values()) for name, by_holder in tenants.items()}
    every = set().union(*of_part.values())
    return (
        any(len(own) > 1 for by_holder in tenants.values() for own in by_holder.values())
        or any(None in by_holder and len(of_part[name]) > 1 for name, by_holder in tenants.items())
        or (WHOLE in tenants and len(tenants) > 1 and len(every) > 1)
    )


def _is_claimed(parts: Mapping[str, frozenset[HeldPart]], allocations: Mapping[str, Allocation]) -> bool:
    """Return whether a virtual machine without tenant has a part that a tenant has by another target.

    A part held by a pod or job is not claimed, as in `_may_be_contested`.
    """
    whole = [
        (spec.tenant, normalise_uuid(spec.target.vm_uuid or "") if spec.kind in VM_KINDS else None, part.name)
        for id_, held in parts.items()
        for spec in [allocations[id_].spec]
        for part in held
        if part.holder is None
    ]
    return any(
        vm != other and (name == other_name or WHOLE in (name, other_name))
        for unowned, vm, name in whole
        if unowned is None and vm is not None
        for tenant, other, other_name in whole
        if tenant is not None
    )


def _may_be_contested(
    parts: Mapping[str, frozenset[HeldPart]], uncounted: Iterable[UnitHolding], allocations: Mapping[str, Allocation]
) -> bool:
    """Return whether a holding without hours may be of a part that another tenant held as the only holder.

    A part held by a pod or job is not contested: its own holding is certain, or not known itself.
    """
    owned = {
        (part.name, tenant)
        for id_, held in parts.items()
        if (tenant := allocations[id_].spec.tenant) is not None
        for part in held
        if part.holder is None
    }
    return any(
        tenant != other and (name == one.part.name or WHOLE in (name, one.part.name))
        for one in uncounted
        if (other := allocations[one.allocation].spec.tenant) is not None
        for name, tenant in owned
    )


def unit_changes(unit: PhysicalUnit | None) -> list[int]:
    """Return the instants at which the name or placement of a unit, or the share of one of its parts, changes."""
    if unit is None:
        return []
    of_parts = (at for part in unit.parts.values() for at, _ in part.changes)
    return [*(one.since for one in unit.placements), *(at for at, _ in unit.models[1:]), *of_parts]


def device_intervals(segment: Segment, unit: PhysicalUnit) -> list[tuple[str, DeviceInterval]]:
    """Return (part, interval) for each device whose usage is needed to describe a segment.

    The usage of a whole GPU in MIG mode is that of its parts if the GPU reports none itself. Guests that claim a GPU of
    a host do not count while no virtual machine has it.
    """
    held = {part.name for own in segment.parts.values() for part in own}
    guests = frozenset() if segment.in_vm else frozenset(machine for machine, _ in unit.claims)
    return part_intervals(unit, held, segment.start, segment.end, guests)


def part_intervals(
    unit: PhysicalUnit, held: Collection[str], start: int, end: int, without: Collection[str] = ()
) -> list[tuple[str, DeviceInterval]]:
    """Return (part, interval) for each device whose usage is needed to describe these parts of a unit.

    The views of the machines `without` are left out.
    """
    wanted = [WHOLE, *unit.parts] if WHOLE in held else [*held]
    views = {WHOLE: unit.views, **{name: part.views for name, part in unit.parts.items()}}
    places = {name: tuple(one for one in own if one[0] not in without) for name, own in views.items()}
    return [
        (
            name,
            DeviceInterval(
                cluster=unit.cluster,
                views=places[name],
                start=start,
                end=end,
                whole=() if name == WHOLE else places[WHOLE],
            ),
        )
        for name in wanted
        if places[name]
    ]
