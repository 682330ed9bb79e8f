"""Inputs that both kinds of usage have in common: limits of a query, and the usage of devices. Blocks."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from gpufleet.fleet.usage.segments import UnitInterval, UnitKey
from gpufleet.fleet.usage.totals import MeasuredSegment
from gpufleet.fleet.usage.units import PhysicalUnit
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.model.api.usage import DeviceInterval, DeviceUsage
from gpufleet.ports.store import Store

MAX_SPAN_NS = 1100 * 86_400 * 10**9
"""Maximum interval of a query."""


def check_interval(start: int, end: int) -> None:
    """Raise InvalidQueryError if an interval is empty or too long."""
    if end <= start:
        raise InvalidQueryError("end", "must be after start, by a microsecond at least")
    if end - start > MAX_SPAN_NS:
        raise InvalidQueryError("start", "is more than 1100 days before the end: shorten the interval")


Measurable = TypeVar("Measurable", bound=UnitInterval)


def measured(
    store: Store,
    segments: Sequence[Measurable],
    units: Mapping[UnitKey, PhysicalUnit],
    devices: Callable[[Measurable, PhysicalUnit], Iterable[tuple[str, DeviceInterval]]],
) -> list[MeasuredSegment[Measurable]]:
    """Return segments with the usage of their devices: (part, interval) of each device."""
    intervals: list[DeviceInterval] = []
    places: list[tuple[int, str]] = []
    for number, segment in enumerate(segments):
        for name, interval in devices(segment, units[segment.unit]):
            places.append((number, name))
            intervals.append(interval)
    usage: dict[int, dict[str, DeviceUsage]] = defaultdict(dict)
    for (number, name), one in zip(places, store.device_usage(intervals), strict=True):
        usage[number][name] = one
    return [
        MeasuredSegment(segment, units[segment.unit], usage.get(number, {})) for number, segment in enumerate(segments)
    ]
