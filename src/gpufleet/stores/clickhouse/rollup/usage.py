"""How long a device was used, idle, and what energy it took within a stretch of time. Pure: it renders statements.

The hours that they read were made by the same rules (`lasting.py`).

A device is used while the newest word of its utilisation is at least `USED_RATIO`, idle while it is less. A word stands
until the next sample of its lane, and for `SPEAKS_SECONDS` at most: what is neither used nor idle is unknown. Energy is
what its counter grew by, spread evenly between two readings no more than `APART_SECONDS` apart, and unknown where it
would have taken more than `DRAWS_AT_MOST_WATTS`; beside it is what its power came to, each word of it standing as those
of utilisation do.

What devices did within stretches of time: whole hours from those that were made, the rest from the samples.

Every stretch is cut at the hours, and in each part one teller answers: so it makes no difference which is which.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gpufleet.model.api.usage import USED_RATIO, Stretch, Worked
from gpufleet.model.stored.retention import APART_SECONDS, Retention
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.rollup.hours import AROUND_NS, fetch_standings, kept_since
from gpufleet.stores.clickhouse.rollup.tables import (
    BUSY,
    DRAWS_AT_MOST_WATTS,
    ENERGY,
    HOUR_NS,
    NEXT,
    RANGE,
    SPEAKS_NS,
    TELLER,
    USAGE_1H,
    WATTS,
    column,
)

_BUSY = f"coalesce({', '.join(map(column, BUSY))})"
_WATTS, _JOULES = column(WATTS), column(ENERGY)

SUMS = ("used_seconds", "idle_seconds", "power_joules", "power_seconds", "energy_joules", "energy_seconds")

_SUMMED = ", ".join(f"sum({name}) AS total_{name}" for name in SUMS)


def _pieces(number: str, first: str, last: str, join: str = "") -> str:
    """Return the question for pieces of time of which something is known, of every teller, cut to a stretch."""
    return f"""
    SELECT {TELLER}, {number} AS number, greatest(at_ns, {first}) AS from_ns,
        least(next_ns, at_ns + {SPEAKS_NS}, {last}) AS until_ns, (until_ns - from_ns) / {NANOS} AS seconds,
        if(ifNull(busy >= {USED_RATIO}, 0), seconds, 0) AS used_seconds,
        if(ifNull(busy < {USED_RATIO}, 0), seconds, 0) AS idle_seconds,
        ifNull(watts, 0) * seconds AS power_joules, if(isNull(watts), 0, seconds) AS power_seconds,
        toFloat64(0) AS energy_joules, toFloat64(0) AS energy_seconds
    FROM (
        SELECT {TELLER}, {_BUSY} AS busy, {_WATTS} AS watts, toUnixTimestamp64Nano(measured_at) AS at_ns,
            {NEXT} AS next_ns
        FROM samples FINAL WHERE {RANGE} AND view != ''
    ) AS told {join}
    WHERE from_ns < until_ns AND (isNotNull(busy) OR isNotNull(watts))
    UNION ALL
    SELECT {TELLER}, {number} AS number, greatest(before_ns, {first}) AS from_ns, least(at_ns, {last}) AS until_ns,
        (until_ns - from_ns) / {NANOS} AS seconds, 0, 0, 0, 0,
        (if(joules >= joules_before AND (driver_session = session_before OR 0 IN (driver_session, session_before)),
            joules - joules_before, joules) AS grown) * (until_ns - from_ns) / (at_ns - before_ns),
        seconds
    FROM (
        SELECT {TELLER}, assumeNotNull({_JOULES}) AS joules, toUnixTimestamp64Nano(measured_at) AS at_ns,
            driver_session, lagInFrame(driver_session, 1, toUInt64(0)) OVER lane_before AS session_before,
            lagInFrame(joules, 1, toFloat64(0)) OVER lane_before AS joules_before,
            lagInFrame(at_ns, 1, toInt64(0)) OVER lane_before AS before_ns
        FROM samples FINAL WHERE {RANGE} AND view != '' AND isNotNull({_JOULES})
        WINDOW lane_before AS (PARTITION BY cluster, machine, view, reader, lane ORDER BY measured_at
            ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
    ) AS told {join}
    WHERE from_ns < until_ns AND before_ns > 0 AND at_ns - before_ns <= {APART_SECONDS * NANOS}
        AND grown <= (at_ns - before_ns) / {NANOS} * {DRAWS_AT_MOST_WATTS}
"""  # noqa: S608 - the names are the catalogue's own; what is asked for is bound


_STRETCHES = """
    SELECT arrayJoin(arrayZip({views:Array(String)}, {of:Array(String)}, {numbers:Array(UInt32)},
        {firsts:Array(Int64)}, {lasts:Array(Int64)})) AS s,
        s.1 AS view, s.2 AS machine, s.3 AS number, s.4 AS first_ns, s.5 AS last_ns
"""


def render_best(told: str, by: str) -> str:
    """Return a question that takes, for each of `by`, the one teller that knows most of it.

    Use and energy each have a teller of their own: who knows the one need not know the other.
    """
    priority = "transform(reader, ['nvml', 'dcgm', 'nvidia_smi'], [3, 2, 1], 0)"
    rank = f"machine, {priority}, reader, lane, view"
    used = "total_used_seconds, total_idle_seconds"
    return f"""
    SELECT {by}, argMax(({used}), (total_used_seconds + total_idle_seconds, {rank})) AS use,
        argMax((total_power_joules, total_power_seconds), (total_power_seconds, {rank})) AS power,
        argMax((total_energy_joules, total_energy_seconds), (total_energy_seconds, {rank})) AS energy
    FROM ({told}) GROUP BY {by}"""  # noqa: S608


_ALL = "use.1, use.2, power.1, power.2, energy.1, energy.2"


def render_stretches() -> str:
    """Return the question for stretches within an hour, from the samples: (number, six sums) a stretch.

    Its parameters: cluster, machines, since, until, and alike long lists of views, of (their machines), numbers, firsts
    and lasts. Views of one number are one device, seen from several sides.
    """
    join = f"INNER JOIN ({_STRETCHES}) AS s ON told.machine = s.machine AND told.view = s.view"
    pieces = _pieces("s.number", "s.first_ns", "s.last_ns", join)
    told = f"SELECT {TELLER}, number, {_SUMMED} FROM ({pieces}) GROUP BY {TELLER}, number"  # noqa: S608
    return f"SELECT number, {_ALL} FROM ({render_best(told, 'number')})"  # noqa: S608


def render_runs() -> str:
    """Return the question for whole hours, from those that were made of them: (number, six sums) a run.

    Its parameters: as those of `render_stretches`, with firsts and lasts on the hour; and start and end, the seconds
    around them all.
    """
    told = f"""
        SELECT told.machine AS machine, told.view AS view, reader, lane, number, at,
            {", ".join(f"{name} AS total_{name}" for name in SUMS)}
        FROM (
            SELECT * FROM {USAGE_1H.name} FINAL
            WHERE cluster = {{cluster:String}} AND machine IN {{machines:Array(String)}}
                AND at >= toDateTime({{start:Int64}}, 'UTC') AND at < toDateTime({{end:Int64}}, 'UTC')
                AND (at, version) IN (SELECT hour, max(version) FROM rolled_hours GROUP BY hour)
        ) AS told INNER JOIN ({_STRETCHES}) AS s ON told.machine = s.machine AND told.view = s.view
        WHERE toUnixTimestamp(at) * {NANOS} >= s.first_ns AND toUnixTimestamp(at) * {NANOS} < s.last_ns"""  # noqa: S608
    sums = ", ".join(f"sum({one})" for one in _ALL.split(", "))
    return f"SELECT number, {sums} FROM ({render_best(told, 'number, at')}) GROUP BY number"  # noqa: S608


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
