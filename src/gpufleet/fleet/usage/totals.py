"""Segments and what is known of them, added up by group. Pure.

What GPUs cost, by model and time. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.usage.segments import Segment, UnitKey
from gpufleet.fleet.usage.units import WHOLE, Unit
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.usage import Dimension, EnergySource, Price, UsageRow, Worked
from gpufleet.model.time import to_ns


class Prices(msgspec.Struct, frozen=True):
    """What GPUs cost; `currency` is None where nobody said."""

    currency: str | None = None
    prices: tuple[Price, ...] = ()


def price_of(model: str | None, at: int, prices: Sequence[Price]) -> float | None:
    """Return what an hour of a GPU costs at an instant, nanoseconds since 1970; None where no price is in force."""
    mine = [one for one in prices if model is not None and one.model.casefold() == model.casefold()]
    valid = [one for one in mine if to_ns(one.valid_from) <= at]
    return max(valid, key=lambda one: one.valid_from).per_gpu_hour if valid else None


JOULES_A_KWH = 3_600_000

Group = tuple[str | None, ...]


class Known(msgspec.Struct, frozen=True):
    """A segment, and what is known of the unit's parts within it."""

    segment: Segment
    unit: Unit
    worked: Mapping[str, Worked]


class _Sum(msgspec.Struct):
    units: set[UnitKey] = msgspec.field(default_factory=set)
    held: float = 0.0
    used: float = 0.0
    idle: float = 0.0
    joules: dict[EnergySource, float] = msgspec.field(default_factory=dict)
    energy_known: float = 0.0
    cost: float = 0.0
    without_price: set[str] = msgspec.field(default_factory=set)


def rows(
    known: Iterable[Known],
    allocations: Mapping[str, Allocation],
    shown: frozenset[str],
    by: Sequence[Dimension],
    prices: Sequence[Price],
) -> tuple[tuple[UsageRow, ...], UsageRow]:
    """Return one row a group, and the total: within each a unit counts once, however many allocations held it.

    Args:
        known: every segment in which one of the `shown` allocations held something.
        allocations: by id.
        shown: of these is told.
        by: dimensions of the groups.
        prices: in any order; empty where there are none.
    """
    sums: dict[Group, _Sum] = {}
    total = _Sum()
    for one in known:
        groups: dict[Group, set[str]] = {}
        for id_, parts in one.segment.parts.items():
            if id_ in shown:
                group = tuple(_value(dimension, allocations[id_], one.unit) for dimension in by)
                groups.setdefault(group, set()).update(parts)
        for group, held in groups.items():
            _add(sums.setdefault(group, _Sum()), one, held, prices)
        if groups:
            _add(total, one, set().union(*groups.values()), prices)
    ordered = sorted(sums.items(), key=lambda item: tuple((value is None, value or "") for value in item[0]))
    return tuple(_row(dict(zip(by, group, strict=True)), one, prices) for group, one in ordered), _row(
        {}, total, prices
    )


def _value(dimension: Dimension, allocation: Allocation, unit: Unit) -> str | None:
    match dimension:
        case Dimension.CLUSTER:
            return allocation.spec.target.cluster
        case Dimension.ALLOCATION:
            return allocation.id
        case Dimension.TENANT:
            return allocation.spec.tenant
        case Dimension.TEAM:
            return allocation.spec.team
        case Dimension.MODEL:
            return unit.model


def _add(into: _Sum, one: Known, held: set[str], prices: Sequence[Price]) -> None:
    unit, seconds = one.unit, one.segment.seconds
    ratio = share(unit, held)
    into.units.add(one.segment.unit)
    into.held += ratio * seconds
    if not one.segment.contested:
        used, idle = did(one, held)
        into.used += used
        into.idle += idle
        source, joules, known = energy(one.worked.get(WHOLE, Worked())) if WHOLE in held else (None, 0.0, 0.0)
        if source is not None:
            into.joules[source] = into.joules.get(source, 0.0) + joules
            into.energy_known += known
    price = price_of(unit.model, one.segment.start, prices)
    if price is None:
        into.without_price.add(unit.model or "a device of unknown model")
    else:
        into.cost += ratio * seconds / 3600 * price


def share(unit: Unit, held: set[str]) -> float:
    """Return how much of a GPU is held: 1, or what its MIG devices are of it; one whose share is not told is none."""
    if WHOLE in held:
        return 1.0
    return min(1.0, sum(unit.parts[part].ratio or 0.0 for part in held))


def did(one: Known, held: set[str]) -> tuple[float, float]:
    """Return seconds of use and idleness of what is held, as shares of the GPU."""
    parts = [name for name in one.unit.parts if WHOLE in held or name in held]
    of_parts = [
        (ratio * worked.used_seconds, ratio * worked.idle_seconds)
        for name in parts
        if (ratio := one.unit.parts[name].ratio) is not None and (worked := one.worked.get(name)) is not None
    ]
    cut_up = sum(used for used, _ in of_parts), sum(idle for _, idle in of_parts)
    whole = one.worked.get(WHOLE, Worked()) if WHOLE in held else Worked()
    own = whole.used_seconds, whole.idle_seconds
    return _within(own if sum(own) >= sum(cut_up) else cut_up, share(one.unit, held) * one.segment.seconds)


def _within(did_: tuple[float, float], held: float) -> tuple[float, float]:
    """Keep rounding from making more of it than there was."""
    known = sum(did_)
    return did_ if known <= held else (did_[0] * held / known, did_[1] * held / known)


def energy(worked: Worked) -> tuple[EnergySource | None, float, float]:
    """Return where the energy comes from, joules, and the seconds of which it is known: the counter, or else power."""
    if worked.energy_seconds > 0 and worked.energy_seconds >= 0.9 * worked.power_seconds:
        return EnergySource.COUNTER, worked.energy_joules, worked.energy_seconds
    if worked.power_seconds > 0:
        return EnergySource.POWER, worked.power_joules, worked.power_seconds
    return None, 0.0, 0.0


def _row(group: Mapping[Dimension, str | None], one: _Sum, prices: Sequence[Price]) -> UsageRow:
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
        energy_kwh=sum(one.joules.values()) / JOULES_A_KWH if one.joules else None,
        energy_source=source,
        energy_gpu_hours=one.energy_known / 3600,
        cost=None if absent else one.cost,
        cost_absent=absent,
        cost_detail=detail,
    )
