"""What minutes and hours should hold, a reading at a time, written apart from the statements that make them."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

SPEAKS, APART, HOUR = 120, 1500, 3600
MOST_WATTS = 4000


class Told(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One sample of a device: seconds after the first hour, and what it says; None is absent."""

    at: int
    watts: float | None = None
    busy: float | None = None
    joules: float | None = None
    errors: int | None = None
    state: str | None = None
    bar1: int | None = None  # a gauge that is kept in the tail
    mig: str | None = None  # a state that is kept in the tail
    sent: int | None = None  # a counter that is kept in the tail
    session: int = 0  # of the driver
    seq: int = 0  # of the batch that it came in


OF_THE_DRIVER = ("joules", "errors")


def gauges(told: Sequence[Told], name: str, window: int) -> dict[int, tuple[float, float, float, int]]:
    found: dict[int, list[float]] = defaultdict(list)
    for one in told:
        value = getattr(one, name)
        if value is not None:
            found[one.at // window * window].append(value)
    return {at: (min(values), max(values), sum(values), len(values)) for at, values in found.items()}


def grown(before: Told, after: Told, name: str) -> float:
    """By how much a counter grew between two readings of it."""
    first: float = getattr(before, name)
    last: float = getattr(after, name)
    anew = name in OF_THE_DRIVER and before.session and after.session and before.session != after.session
    return last if last < first or anew else last - first


def can_be(before: Told, after: Told, name: str) -> bool:
    """Whether a GPU can have drawn that between two readings."""
    return name != "joules" or grown(before, after, name) <= MOST_WATTS * (after.at - before.at)


def counters(told: Sequence[Told], name: str, window: int, hour: int) -> dict[int, tuple[float, float]]:
    """Last reading and growth of each window of an hour; what came before the hour counts where it is close.

    They grow in the order in which their sender counted, and by nothing unknown over a clock that was set back; by time
    where they fall less often in that order.
    """
    near = [one for one in told if getattr(one, name) is not None and hour - APART <= one.at < hour + HOUR]
    lasts = {one.at // window * window: getattr(one, name) for one in near if one.at >= hour}
    more: dict[int, float] = defaultdict(int)
    ways = sorted(near, key=lambda one: (one.seq, one.at)), sorted(near, key=lambda one: one.at)

    def falls(way: Iterable[Told]) -> int:
        return sum(getattr(one, name) < getattr(before, name) for before, one in itertools.pairwise(way))

    for before, one in itertools.pairwise(min(ways, key=falls)):
        if one.at > before.at and can_be(before, one, name):
            more[one.at // window * window] += grown(before, one, name)
    return {at: (last, more[at]) for at, last in lasts.items()}


def speaks(told: Sequence[Told], lasts: int = SPEAKS) -> list[tuple[int, int, Told]]:
    """From when to when each sample speaks."""
    ends = [*(one.at for one in told[1:]), 10**9][: len(told)]
    return [(one.at, min(end, one.at + lasts), one) for one, end in zip(told, ends, strict=True)]


def states(told: Sequence[Told], name: str, window: int) -> dict[tuple[int, str], float]:
    found: dict[tuple[int, str], float] = defaultdict(float)
    for start, end, one in speaks(told):
        value = getattr(one, name)
        for second in range(start, end):
            if value is not None:
                found[second // window * window, value] += 1
    return dict(found)


def usage(told: Sequence[Told], start: int, end: int) -> dict[str, float]:
    """Seconds and joules between two instants."""
    found = dict.fromkeys(
        ("used_seconds", "idle_seconds", "power_joules", "power_seconds", "energy_joules", "energy_seconds"), 0.0
    )
    for first, last, one in speaks(told):
        seconds = max(0, min(last, end) - max(first, start))
        if one.busy is not None:
            found["used_seconds" if one.busy >= 0.01 else "idle_seconds"] += seconds
        if one.watts is not None:
            found["power_joules"] += one.watts * seconds
            found["power_seconds"] += seconds
    counted = [one for one in told if one.joules is not None]
    for before, after in itertools.pairwise(counted):
        seconds = max(0, min(after.at, end) - max(before.at, start))
        if seconds and after.at - before.at <= APART and can_be(before, after, "joules"):
            found["energy_joules"] += grown(before, after, "joules") * seconds / (after.at - before.at)
            found["energy_seconds"] += seconds
    return found
