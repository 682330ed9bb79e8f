"""Expected content of minutes and hours, computed one measurement at a time and independently of the product."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

VALID_SECONDS, MAX_GAP_SECONDS, HOUR = 120, 1500, 3600
MOST_WATTS = 4000


class Measurement(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One sample of a device: seconds after the first hour, and its values. None is absent."""

    at: int
    watts: float | None = None
    busy: float | None = None
    joules: float | None = None
    errors: int | None = None
    state: str | None = None
    bar1: int | None = None  # a gauge of the tail
    mig: str | None = None  # a state of the tail
    sent: int | None = None  # a counter of the tail
    session: int = 0  # driver session
    seq: int = 0  # sequence number of the batch


RESET_BY_DRIVER = ("joules", "errors")


def gauges(measurements: Sequence[Measurement], name: str, window: int) -> dict[int, tuple[float, float, float, int]]:
    found: dict[int, list[float]] = defaultdict(list)
    for one in measurements:
        value = getattr(one, name)
        if value is not None:
            found[one.at // window * window].append(value)
    return {at: (min(values), max(values), sum(values), len(values)) for at, values in found.items()}


def increase(before: Measurement, after: Measurement, name: str) -> float:
    """Return the growth of a counter between two measurements."""
    first: float = getattr(before, name)
    last: float = getattr(after, name)
    is_reset = name in RESET_BY_DRIVER and before.session and after.session and before.session != after.session
    return last if last < first or is_reset else last - first


def is_possible(before: Measurement, after: Measurement, name: str) -> bool:
    """Return whether a GPU can have drawn that energy between two measurements."""
    return name != "joules" or increase(before, after, name) <= MOST_WATTS * (after.at - before.at)


def counters(measurements: Sequence[Measurement], name: str, window: int, hour: int) -> dict[int, tuple[float, float]]:
    """Return the last value and the increase of each window of an hour.

    A measurement shortly before the hour counts as its start. Increases follow the sequence numbers of the sender, or
    the time of measuring if the counter falls less often in that order. Growth across a clock that was set back is
    unknown and adds nothing.
    """
    near = [
        one for one in measurements if getattr(one, name) is not None and hour - MAX_GAP_SECONDS <= one.at < hour + HOUR
    ]
    lasts = {one.at // window * window: getattr(one, name) for one in near if one.at >= hour}
    more: dict[int, float] = defaultdict(int)
    orders = sorted(near, key=lambda one: (one.seq, one.at)), sorted(near, key=lambda one: one.at)

    def falls(order: Iterable[Measurement]) -> int:
        return sum(getattr(one, name) < getattr(before, name) for before, one in itertools.pairwise(order))

    for before, one in itertools.pairwise(min(orders, key=falls)):
        if one.at > before.at and is_possible(before, one, name):
            more[one.at // window * window] += increase(before, one, name)
    return {at: (last, more[at]) for at, last in lasts.items()}


def validity(measurements: Sequence[Measurement], lasts: int = VALID_SECONDS) -> list[tuple[int, int, Measurement]]:
    """Return start and end of the validity of each measurement."""
    ends = [*(one.at for one in measurements[1:]), 10**9][: len(measurements)]
    return [(one.at, min(end, one.at + lasts), one) for one, end in zip(measurements, ends, strict=True)]


def states(measurements: Sequence[Measurement], name: str, window: int) -> dict[tuple[int, str], float]:
    found: dict[tuple[int, str], float] = defaultdict(float)
    for start, end, one in validity(measurements):
        value = getattr(one, name)
        for second in range(start, end):
            if value is not None:
                found[second // window * window, value] += 1
    return dict(found)


def usage(measurements: Sequence[Measurement], start: int, end: int) -> dict[str, float]:
    """Return seconds and joules between two instants."""
    found = dict.fromkeys(
        ("used_seconds", "idle_seconds", "power_joules", "power_seconds", "energy_joules", "energy_seconds"), 0.0
    )
    for first, last, one in validity(measurements):
        seconds = max(0, min(last, end) - max(first, start))
        if one.busy is not None:
            found["used_seconds" if one.busy >= 0.01 else "idle_seconds"] += seconds
        if one.watts is not None:
            found["power_joules"] += one.watts * seconds
            found["power_seconds"] += seconds
    counted = [one for one in measurements if one.joules is not None]
    for before, after in itertools.pairwise(counted):
        seconds = max(0, min(after.at, end) - max(before.at, start))
        if seconds and after.at - before.at <= MAX_GAP_SECONDS and is_possible(before, after, "joules"):
            found["energy_joules"] += increase(before, after, "joules") * seconds / (after.at - before.at)
            found["energy_seconds"] += seconds
    return found
