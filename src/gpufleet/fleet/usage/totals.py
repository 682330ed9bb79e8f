"""Usage totals by group: hours, energy and cost of measured segments. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

import msgspec

from gpufleet.fleet.usage.prices import PriceTable
from gpufleet.fleet.usage.segments import HeldPart, Segment, UnitInterval, UnitKey
from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.usage import DeviceUsage, EnergySource, UsageDimension, UsageRow

JOULES_PER_KWH = 3_600_000

Group = tuple[str | None, ...]

Part = TypeVar("Part", bound=UnitInterval)

WHOLE_FRACTION = 1 - 1e-9
"""Sum of the fractions of all holders of a device, at least."""


class MeasuredSegment(msgspec.Struct, Generic[Part], frozen=True):
    """Segment with the known usage of the unit's parts."""

    segment: Part
    unit: PhysicalUnit
    usage: Mapping[str, DeviceUsage]


class GroupShare(msgspec.Struct):
    """Share of a unit that a group had.

    Attributes:
        parts: parts that it had as a whole; their activity is that of the group.
        shared: share of the unit by parts that it had together with others.
        unconfirmed: share of the unit by holdings that their source does not confirm, or by unknown parts.
        replicas: replicas of time-sliced or MPS devices.
    """

    parts: set[str] = msgspec.field(default_factory=set)
    shared: float = 0.0
    unconfirmed: float = 0.0
    replicas: int = 0


class UsageTotal(msgspec.Struct):
    """Sums of a group, in seconds."""

    units: set[UnitKey] = msgspec.field(default_factory=set)
    held: float = 0.0
    used: float = 0.0
    idle: float = 0.0
    shared: float = 0.0
    replicas: float = 0.0
    unattributed: float = 0.0
    joules: dict[EnergySource, float] = msgspec.field(default_factory=dict)
    energy_known: float = 0.0
    cost: float = 0.0
    without_price: set[str] = msgspec.field(default_factory=set)


def usage_rows(
    known: Iterable[MeasuredSegment[Segment]],
    allocations: Mapping[str, Allocation],
    shown: frozenset[str],
    by: Sequence[UsageDimension],
    prices: PriceTable,
) -> tuple[tuple[UsageRow, ...], UsageRow]:
    """Return a row per group, and the total. In each, a unit counts once, however many allocations held it.

    A holder's share of a unit counts once, however many allocations name the holder.

    Args:
        known: every segment in which one of the `shown` allocations held something.
        allocations: by id.
        shown: allocations that the answer is about.
        by: dimensions of the groups.
        prices: the prices; may be empty.
    """
    sums: dict[Group, UsageTotal] = {}
    total = UsageTotal()
    for one in known:
        groups: dict[Group, set[HeldPart]] = {}
        model = one.unit.model_at(one.segment.start)
        for id_, parts in one.segment.parts.items():
            if id_ in shown:
                group = tuple(_value(dimension, allocations[id_], model) for dimension in by)
                groups.setdefault(group, set()).update(parts)
        is_known = not one.segment.contested
        for group, held in groups.items():
            add_usage(sums.setdefault(group, UsageTotal()), one, _share(one, held), prices, is_known=is_known)
        if groups:
            every = set().union(*groups.values())
            add_usage(total, one, _share(one, every), prices, is_known=is_known)
    ordered = sorted(sums.items(), key=lambda item: group_order(item[0]))
    rows = tuple(usage_row(dict(zip(by, group, strict=True)), one, prices) for group, one in ordered)
    return rows, usage_row({}, total, prices)


def group_order(group: Group) -> tuple[tuple[bool, str], ...]:
    """Return the place of a group among the others: by its values, unknown ones last."""
    return tuple((value is None, value or "") for value in group)


def _share(one: MeasuredSegment[Segment], held: AbstractSet[HeldPart]) -> GroupShare:
    """Return the share of a unit in a segment that these parts are together."""
    found = GroupShare()
    by_name: dict[str, dict[tuple[str, str] | None, HeldPart]] = {}
    for part in held:
        by_name.setdefault(part.name, {})[part.holder] = part
    for name, parts in by_name.items():
        found.replicas += sum(part.replicas for part in parts.values())
        fraction = min(1.0, sum(part.fraction for part in parts.values()))
        if None in parts or (fraction >= WHOLE_FRACTION and all(part.is_confirmed for part in parts.values())):
            found.parts.add(name)
        elif fraction >= WHOLE_FRACTION:
            found.unconfirmed += held_ratio(one, {name})
        else:
            found.shared += held_ratio(one, {name}) * fraction
    return found


def _value(dimension: UsageDimension, allocation: Allocation, model: str | None) -> str | None:
    match dimension:
        case UsageDimension.CLUSTER:
            return allocation.spec.target.cluster
        case UsageDimension.ALLOCATION:
            return allocation.id
        case UsageDimension.TENANT:
            return allocation.spec.tenant
        case UsageDimension.TEAM:
            return allocation.spec.team
        case UsageDimension.MODEL:
            return model
        case _:
            return None  # a dimension of holders


def add_usage(
    into: UsageTotal, one: MeasuredSegment[Part], share: GroupShare, prices: PriceTable, *, is_known: bool = True
) -> None:
    """Add a group's share of a segment; `is_known` is whether the activity of the parts that it had may be counted."""
    unit, seconds = one.unit, one.segment.seconds
    whole = held_ratio(one, share.parts)
    ratio = min(1.0, whole + share.shared + share.unconfirmed)
    into.units.add(one.segment.unit)
    into.held += ratio * seconds
    into.shared += min(share.shared, 1.0 - whole) * seconds
    into.replicas += share.replicas * seconds
    if is_known:
        used, idle = activity(one, share.parts)
        into.used += used
        into.idle += idle
        of_unit = WHOLE in share.parts
        source, joules, known = energy(one.usage.get(WHOLE, DeviceUsage())) if of_unit else (None, 0.0, 0.0)
        if source is not None:
            into.joules[source] = into.joules.get(source, 0.0) + joules
            into.energy_known += known
    price = prices.find(unit, one.segment.start)
    if price is None:
        into.without_price.add(unit.model_at(one.segment.start) or "a device of unknown model")
    else:
        into.cost += ratio * seconds / 3600 * price


def held_ratio(one: MeasuredSegment[Part], held: AbstractSet[str]) -> float:
    """Return the held fraction of a GPU in a segment: 1, or the share of its MIG devices; unknown ones count as 0."""
    if WHOLE in held:
        return 1.0
    return min(1.0, sum(one.unit.parts[part].ratio_at(one.segment.start) or 0.0 for part in held))


def activity(one: MeasuredSegment[Part], held: AbstractSet[str]) -> tuple[float, float]:
    """Return used and idle seconds of the held parts, as shares of the GPU."""
    parts = [name for name in one.unit.parts if WHOLE in held or name in held]
    of_parts = [
        (ratio * usage.used_seconds, ratio * usage.idle_seconds)
        for name in parts
        if (ratio := one.unit.parts[name].ratio_at(one.segment.start)) is not None
        and (usage := one.usage.get(name)) is not None
    ]
    of_all_parts = sum(used for used, _ in of_parts), sum(idle for _, idle in of_parts)
    whole = one.usage.get(WHOLE, DeviceUsage()) if WHOLE in held else DeviceUsage()
    own = whole.used_seconds, whole.idle_seconds
    seconds = own if sum(own) >= sum(of_all_parts) else of_all_parts
    return _within(seconds, held_ratio(one, held) * one.segment.seconds)


def _within(seconds: tuple[float, float], held: float) -> tuple[float, float]:
    """Scale used and idle seconds down to the held time, which rounding may exceed."""
    known = sum(seconds)
    return seconds if known <= held else (seconds[0] * held / known, seconds[1] * held / known)


def energy(usage: DeviceUsage) -> tuple[EnergySource | None, float, float]:
    """Return source, joules, and seconds with known energy: from the counter, or else from power."""
    if usage.energy_seconds > 0 and usage.energy_seconds >= 0.9 * usage.power_seconds:
        return EnergySource.COUNTER, usage.energy_joules, usage.energy_seconds
    if usage.power_seconds > 0:
        return EnergySource.POWER, usage.power_joules, usage.power_seconds
    return None, 0.0, 0.0


def usage_row(
    group: Mapping[UsageDimension, str | None],
    one: UsageTotal,
    prices: PriceTable,
    holder_absent: Reason | None = None,
) -> UsageRow:
    """Return the row of a group; `holder_absent` is why it has no holder."""
    held, known = one.held / 3600, (one.used + one.idle) / 3600
    absent, detail = None, ""
    if not prices:
        absent, detail = Reason.NOT_ENABLED, "the hub has no prices"
    elif one.without_price:
        absent, detail = Reason.NO_DATA, f"no price for {', '.join(sorted(one.without_price))} at some of the time"
    source = None
    if one.joules:
        source = next(iter(one.joules)) if len(one.joules) == 1 else EnergySource.MIXED
    return UsageRow(
        group=dict(group),
        gpus=len(one.units),
        held_gpu_hours=held,
        used_gpu_hours=one.used / 3600,
        idle_gpu_hours=one.idle / 3600,
        unknown_gpu_hours=max(0.0, held - known),
        known_ratio=min(1.0, known / held) if held else None,
        energy_kwh=sum(one.joules.values()) / JOULES_PER_KWH if one.joules else None,
        energy_source=source,
        energy_gpu_hours=one.energy_known / 3600,
        cost=None if absent else one.cost,
        cost_absent=absent,
        cost_detail=detail,
        shared_gpu_hours=one.shared / 3600,
        replica_hours=one.replicas / 3600,
        unattributed_gpu_hours=one.unattributed / 3600,
        holder_absent=holder_absent,
    )
