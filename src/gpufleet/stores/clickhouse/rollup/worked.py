"""What devices did within stretches of time: whole hours from those that were made, the rest from the samples.

Every stretch is cut at the hours, and in each part one teller answers: so it makes no difference which is which.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gpufleet.model.retention import Retention
from gpufleet.model.time import NANOS
from gpufleet.model.usage import Stretch, Worked
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.rollup.hours import AROUND_NS, fetch_standings, kept_since
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS
from gpufleet.stores.clickhouse.rollup.usage import SUMS, render_runs, render_stretches

AT_ONCE = 256
"""Parts of stretches in one question."""


class Part(msgspec.Struct, frozen=True):
    """A part of a stretch: its number, and nanoseconds since 1970."""

    number: int
    start: int
    end: int


def fetch_worked(handle: Handle, stretches: Sequence[Stretch], retention: Retention, now: int) -> list[Worked]:
    """Ask what is known of each stretch; nothing known is nothing but zeros."""
    if not stretches:
        return []
    first, last = min(one.start for one in stretches), max(one.end for one in stretches)
    standings = fetch_standings(handle, first // HOUR_NS * 3600, -(-last // HOUR_NS) * 3600)
    made = {one.hour for one in standings if one.stands(kept_since(now, retention))}
    told = {one.hour for one in standings}
    sums = [[0.0] * len(SUMS) for _ in stretches]
    for cluster, runs, parts in _by_cluster(stretches, made, told):
        for chunk in _chunks(runs):
            _add(sums, handle, render_runs(), cluster, stretches, chunk)
        for hour in parts.values():
            for chunk in _chunks(hour):
                _add(sums, handle, render_stretches(), cluster, stretches, chunk)
    return [Worked(**dict(zip(SUMS, one, strict=True))) for one in sums]


def cut(number: int, stretch: Stretch, made: set[int], told: set[int]) -> tuple[list[Part], list[Part]]:
    """Cut a stretch into runs of whole hours that were made, and parts of other hours that something was told of."""
    runs: list[Part] = []
    parts: list[Part] = []
    at = stretch.start
    while at < stretch.end:
        hour = at // HOUR_NS
        end = min(stretch.end, (hour + 1) * HOUR_NS)
        if hour * 3600 in made and end - at == HOUR_NS:
            if runs and runs[-1].end == at:
                runs[-1] = Part(number, runs[-1].start, end)
            else:
                runs.append(Part(number, at, end))
        elif hour * 3600 in told:
            parts.append(Part(number, at, end))
        at = end
    return runs, parts


def _by_cluster(
    stretches: Sequence[Stretch], made: set[int], told: set[int]
) -> Iterator[tuple[str, list[Part], dict[int, list[Part]]]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, one in enumerate(stretches):
        numbers[one.cluster].append(number)
    for cluster, mine in numbers.items():
        whole: list[Part] = []
        hours: dict[int, list[Part]] = defaultdict(list)
        for number in mine:
            runs, parts = cut(number, stretches[number], made, told)
            whole += runs
            for part in parts:
                hours[part.start // HOUR_NS].append(part)
        yield cluster, whole, hours


def _chunks(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    for begin in range(0, len(parts), AT_ONCE):
        yield parts[begin : begin + AT_ONCE]


def _add(
    sums: list[list[float]],
    handle: Handle,
    query: str,
    cluster: str,
    stretches: Sequence[Stretch],
    parts: Sequence[Part],
) -> None:
    rows = [(view, machine, part) for part in parts for machine, view in stretches[part.number].views]
    if not rows:
        return
    first, last = min(part.start for part in parts), max(part.end for part in parts)
    parameters: dict[str, Any] = {
        "cluster": cluster,
        "machines": sorted({machine for _, machine, _ in rows}),
        "since": max(0, first - AROUND_NS),
        "until": last + AROUND_NS,
        "start": first // NANOS,
        "end": last // NANOS,
        "views": [view for view, _, _ in rows],
        "of": [machine for _, machine, _ in rows],
        # Runs of one stretch are numbered by the stretch: their sums are sums of it.
        "numbers": [part.number for _, _, part in rows],
        "firsts": [part.start for _, _, part in rows],
        "lasts": [part.end for _, _, part in rows],
    }
    for number, *found in handle.query(query, parameters=parameters).result_rows:
        sums[number] = [before + more for before, more in zip(sums[number], found, strict=True)]
