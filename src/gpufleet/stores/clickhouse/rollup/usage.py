"""Usage of devices within intervals: whole hours from rollups, other parts from samples.

The rules are those of the rollups (`durations.py`). A device is used while its newest utilisation is at least
`USED_RATIO`, and idle while it is less. A reading is valid until the next sample of its lane and for
`READING_VALID_SECONDS` at most; time that is neither used nor idle is unknown. Energy is the increase of the counter,
distributed evenly between readings at most `MAX_COUNTER_GAP_SECONDS` apart, and unknown if it exceeds `MAX_GPU_WATTS`.
Energy from power readings is computed too, with the same validity as utilisation.

Intervals are split at hours, and each part is answered by one reporter. So both sources give equal results. Values of
`REPEATED` do not count in a part in which another reporter lost the device or its GPU: they can be from before that.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gpufleet.fleet.readings import REPEATED, STATE
from gpufleet.model.api.usage import USED_RATIO, DeviceInterval, DeviceUsage
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.device_state import LOST
from gpufleet.model.stored.retention import MAX_COUNTER_GAP_SECONDS, Retention
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.rollup.hours import CONTEXT_NS, complete_since, fetch_hour_states
from gpufleet.stores.clickhouse.rollup.tables import (
    ENERGY,
    HOUR_NS,
    MAX_GPU_WATTS,
    NEXT_SAMPLE_NS,
    RANGE_CONDITION,
    REPORTER_COLUMNS,
    STATES_1H,
    USAGE_1H,
    UTILIZATION,
    WATTS,
    valid_ns,
    value_expression,
)
from gpufleet.stores.clickhouse.samples.cache import SubjectRow, SubjectsOf

_BUSY = f"coalesce({', '.join(map(value_expression, UTILIZATION))})"
_WATTS, _JOULES = value_expression(WATTS), value_expression(ENERGY)
_STATE = value_expression(CATALOGUE[STATE])

SUMS = ("used_seconds", "idle_seconds", "power_joules", "power_seconds", "energy_joules", "energy_seconds")

_SUMMED = ", ".join(f"sum({name}) AS total_{name}" for name in SUMS)


_MERGE_SETTINGS = "SETTINGS do_not_merge_across_partitions_select_final = 1"
"""All rows with one key are in one partition: the key contains the time."""


def _pieces(number: str, first: str, last: str, join: str) -> str:
    """Return the query for pieces of time with known usage, of every reporter, limited to an interval.

    The condition is on columns of the key only: it may be checked before rows with one key are merged.
    """
    return f"""
    SELECT {REPORTER_COLUMNS}, {number} AS number, s.card AS card, s.rank AS rank, greatest(at_ns, {first}) AS from_ns,
        least(next_ns, at_ns + s.valid_ns, {last}) AS until_ns, (until_ns - from_ns) / {NANOS} AS seconds,
        if(ifNull(busy >= {USED_RATIO}, 0), seconds, 0) AS used_seconds,
        if(ifNull(busy < {USED_RATIO}, 0), seconds, 0) AS idle_seconds,
        ifNull(watts, 0) * seconds AS power_joules, if(isNull(watts), 0, seconds) AS power_seconds,
        toFloat64(0) AS energy_joules, toFloat64(0) AS energy_seconds
    FROM (
        SELECT {REPORTER_COLUMNS}, {_BUSY} AS busy, {_WATTS} AS watts, toUnixTimestamp64Nano(measured_at) AS at_ns,
            {NEXT_SAMPLE_NS} AS next_ns
        FROM samples FINAL PREWHERE {RANGE_CONDITION}
    ) AS readings {join}
    WHERE from_ns < until_ns AND (isNotNull(busy) OR isNotNull(watts))
    UNION ALL
    SELECT {REPORTER_COLUMNS}, {number} AS number, s.card AS card, s.rank AS rank,
        greatest(before_ns, {first}) AS from_ns, least(at_ns, {last}) AS until_ns,
        (until_ns - from_ns) / {NANOS} AS seconds, 0, 0, 0, 0,
        (if(joules >= joules_before AND (driver_session = session_before OR 0 IN (driver_session, session_before)),
            joules - joules_before, joules) AS grown) * (until_ns - from_ns) / (at_ns - before_ns),
        seconds
    FROM (
        SELECT {REPORTER_COLUMNS}, assumeNotNull({_JOULES}) AS joules, toUnixTimestamp64Nano(measured_at) AS at_ns,
            driver_session, lagInFrame(driver_session, 1, toUInt64(0)) OVER lane_before AS session_before,
            lagInFrame(joules, 1, toFloat64(0)) OVER lane_before AS joules_before,
            lagInFrame(at_ns, 1, toInt64(0)) OVER lane_before AS before_ns
        FROM samples FINAL PREWHERE {RANGE_CONDITION} WHERE isNotNull({_JOULES})
        WINDOW lane_before AS (PARTITION BY subject ORDER BY measured_at
            ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
    ) AS readings {join}
    WHERE from_ns < until_ns AND before_ns > 0 AND at_ns - before_ns <= {MAX_COUNTER_GAP_SECONDS * NANOS}
        AND grown <= (at_ns - before_ns) / {NANOS} * {MAX_GPU_WATTS}
"""  # noqa: S608 - names are from the catalogue; values are bound as parameters


_INTERVALS = """
    SELECT arrayJoin(arrayZip({of:Array(UInt32)}, {numbers:Array(UInt32)}, {firsts:Array(Int64)},
        {lasts:Array(Int64)}, {cards:Array(String)}, {valid:Array(Int64)}, {ranks:Array(UInt32)})) AS s,
        s.1 AS of_subject, s.2 AS number, s.3 AS first_ns, s.4 AS last_ns, s.5 AS card, s.6 AS valid_ns, s.7 AS rank
"""


def render_best_reporter(usage: str, by: str) -> str:
    """Return the query that selects, for each value of `by`, the reporter that covers most of it.

    Use, power and energy are selected separately: the best reporter of one may not cover the others. Of equal reporters
    that with the greatest rank is selected.
    """
    used = "total_used_seconds, total_idle_seconds"
    return f"""
    SELECT {by}, argMax(({used}), (total_used_seconds + total_idle_seconds, rank)) AS use,
        argMax((total_power_joules, total_power_seconds), (total_power_seconds, rank)) AS power,
        argMax((total_energy_joules, total_energy_seconds), (total_energy_seconds, rank)) AS energy
    FROM ({usage}) GROUP BY {by}"""  # noqa: S608


_REPEATED = "provenance IN (" + ", ".join(f"'{one}'" for one in sorted(REPEATED)) + ")"

_STATES = """
    SELECT arrayJoin(arrayZip({state_of:Array(UInt32)}, {state_numbers:Array(UInt32)}, {state_firsts:Array(Int64)},
        {state_lasts:Array(Int64)}, {state_valid:Array(Int64)})) AS s,
        s.1 AS of_subject, s.2 AS number, s.3 AS first_ns, s.4 AS last_ns, s.5 AS valid_ns
"""

_LOST_PARTS = f"""
    SELECT s.number FROM (
        SELECT {REPORTER_COLUMNS}, {_STATE} AS state, toUnixTimestamp64Nano(measured_at) AS at_ns,
            {NEXT_SAMPLE_NS} AS next_ns
        FROM samples FINAL PREWHERE {RANGE_CONDITION}
            AND subject IN (SELECT subject FROM samples PREWHERE {RANGE_CONDITION} WHERE {_STATE} = '{LOST}')
    ) AS readings INNER JOIN ({_STATES}) AS s ON readings.subject = s.of_subject
    WHERE state = '{LOST}' AND NOT {_REPEATED}
        AND greatest(at_ns, s.first_ns) < least(next_ns, at_ns + s.valid_ns, s.last_ns)"""  # noqa: S608
"""Query for the parts of intervals in which a reporter that repeats nothing lost the device.

Only subjects with such a state are sorted by time: hardly any has one.
"""

_LOST_HOURS = f"""
    SELECT s.number, at FROM (
        SELECT subject, at FROM {STATES_1H.name} FINAL
        WHERE subject IN {{subjects:Array(UInt32)}} AND metric = '{STATE}' AND state = '{LOST}' AND NOT {_REPEATED}
            AND at >= toDateTime({{start:Int64}}, 'UTC') AND at < toDateTime({{end:Int64}}, 'UTC')
            AND (at, version) IN (SELECT hour, max(version) FROM rolled_hours GROUP BY hour)
    ) AS states INNER JOIN ({_STATES}) AS s ON states.subject = s.of_subject"""  # noqa: S608
"""The same for whole hours: number and hour."""

_SELECTED = "use.1, use.2, power.1, power.2, energy.1, energy.2"


def render_intervals() -> str:
    """Return the query for parts of intervals within an hour, from samples: (number, card, six sums) by part and card.

    Parameters: subjects, since, until, and lists of equal length: of (subjects), numbers, firsts, lasts, cards, valid
    (nanoseconds for which a reading is valid) and ranks. Subjects with the same number are one device, seen from
    several sides and by several readers. Its cards are GPUs that replaced one another. Lists with the prefix `state_`
    have the subjects whose states are those of the device.
    """
    join = f"INNER JOIN ({_INTERVALS}) AS s ON readings.subject = s.of_subject"
    pieces = _pieces("s.number", "s.first_ns", "s.last_ns", join)
    by = f"{REPORTER_COLUMNS}, number, card, rank"
    usage = f"""
        SELECT {by}, {_SUMMED} FROM ({pieces}) WHERE NOT ({_REPEATED} AND number IN ({_LOST_PARTS})) GROUP BY {by}
    """  # noqa: S608
    best = render_best_reporter(usage, "number, card")
    return f"SELECT number, card, {_SELECTED} FROM ({best}) {_MERGE_SETTINGS}"  # noqa: S608


def render_whole_hours() -> str:
    """Return the query for whole hours, from rollups: (number, card, six sums) per run of hours and card.

    Parameters: those of `render_intervals`, with firsts and lasts on the hour, and start and end, the total interval in
    seconds.
    """
    usage = f"""
        SELECT number, card, rank, at,
            {", ".join(f"{name} AS total_{name}" for name in SUMS)}
        FROM (
            SELECT * FROM {USAGE_1H.name} FINAL
            WHERE subject IN {{subjects:Array(UInt32)}}
                AND at >= toDateTime({{start:Int64}}, 'UTC') AND at < toDateTime({{end:Int64}}, 'UTC')
                AND (at, version) IN (SELECT hour, max(version) FROM rolled_hours GROUP BY hour)
        ) AS readings INNER JOIN ({_INTERVALS}) AS s ON readings.subject = s.of_subject
        WHERE toUnixTimestamp(at) * {NANOS} >= s.first_ns AND toUnixTimestamp(at) * {NANOS} < s.last_ns
            AND NOT ({_REPEATED} AND (number, at) IN ({_LOST_HOURS}))"""  # noqa: S608
    sums = ", ".join(f"sum({one})" for one in _SELECTED.split(", "))
    best = render_best_reporter(usage, "number, card, at")
    return f"SELECT number, card, {sums} FROM ({best}) GROUP BY number, card"  # noqa: S608


PARTS_PER_QUERY = 256
"""Interval parts per query."""

ROWS_PER_QUERY = 2_000
"""Pairs of a part and a subject per query: a server accepts 128 KiB per parameter."""

HOURS_PER_QUERY = 24
"""Maximum number of hours per query: a day, because samples are partitioned by day."""


class IntervalPart(msgspec.Struct, frozen=True):
    """Part of an interval: the interval's number, and start and end in nanoseconds since 1970."""

    number: int
    start: int
    end: int


def fetch_device_usage(
    handle: Handle, subjects_of: SubjectsOf, intervals: Sequence[DeviceInterval], retention: Retention, now: int
) -> list[DeviceUsage]:
    """Return the usage of each interval; all sums are zero if nothing is known."""
    if not intervals:
        return []
    first, last = min(one.start for one in intervals), max(one.end for one in intervals)
    hours = fetch_hour_states(handle, first // HOUR_NS * 3600, -(-last // HOUR_NS) * 3600)
    rolled = {one.hour for one in hours if one.is_usable(complete_since(now, retention))}
    written = {one.hour for one in hours}
    sums = [[0.0] * len(SUMS) for _ in intervals]
    for cluster, runs, parts in _by_cluster(intervals, rolled, written):
        devices = _devices(subjects_of, cluster, [one for one in intervals if one.cluster == cluster])
        for chunk in _chunks(runs, intervals, devices):
            _add(sums, handle, render_whole_hours(), devices, intervals, chunk)
        for hours_of_query in _joined_hours(parts):
            for chunk in _chunks(hours_of_query, intervals, devices):
                _add(sums, handle, render_intervals(), devices, intervals, chunk, each=True)
    return [DeviceUsage(**dict(zip(SUMS, one, strict=True))) for one in sums]


_Devices = Mapping[tuple[str, str], Sequence[tuple[int, SubjectRow]]]
"""(machine, view) to its subjects with their ranks."""

_PREFERRED = ("nvidia_smi", "dcgm", "nvml")
"""Readers that are preferred if their coverage is equal, the last one most."""


def _devices(subjects_of: SubjectsOf, cluster: str, intervals: Sequence[DeviceInterval]) -> _Devices:
    views = {view for one in intervals for view in (*one.views, *one.whole)}
    machines = sorted({machine for machine, _ in views})
    subjects = [one for one in subjects_of(cluster, machines) if (one.machine, one.view) in views]
    subjects.sort(key=lambda one: (one.machine, _preference(one.reader), one.reader, one.lane, one.view))
    found: dict[tuple[str, str], list[tuple[int, SubjectRow]]] = defaultdict(list)
    for rank, one in enumerate(subjects):
        found[one.machine, one.view].append((rank, one))
    return found


def _preference(reader: str) -> int:
    return _PREFERRED.index(reader) if reader in _PREFERRED else -1


def split_interval(
    number: int, interval: DeviceInterval, rolled: set[int], written: set[int]
) -> tuple[list[IntervalPart], list[IntervalPart]]:
    """Split an interval into runs of whole hours with rollups, and parts of other hours with samples."""
    runs: list[IntervalPart] = []
    parts: list[IntervalPart] = []
    at = interval.start
    while at < interval.end:
        hour = at // HOUR_NS
        end = min(interval.end, (hour + 1) * HOUR_NS)
        if hour * 3600 in rolled and end - at == HOUR_NS:
            if runs and runs[-1].end == at:
                runs[-1] = IntervalPart(number, runs[-1].start, end)
            else:
                runs.append(IntervalPart(number, at, end))
        elif hour * 3600 in written:
            parts.append(IntervalPart(number, at, end))
        at = end
    return runs, parts


def _by_cluster(
    intervals: Sequence[DeviceInterval], rolled: set[int], written: set[int]
) -> Iterator[tuple[str, list[IntervalPart], dict[int, list[IntervalPart]]]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, one in enumerate(intervals):
        numbers[one.cluster].append(number)
    for cluster, mine in numbers.items():
        whole: list[IntervalPart] = []
        hours: dict[int, list[IntervalPart]] = defaultdict(list)
        for number in mine:
            runs, parts = split_interval(number, intervals[number], rolled, written)
            whole += runs
            for part in parts:
                hours[part.start // HOUR_NS].append(part)
        yield cluster, whole, hours


def _chunks(
    parts: Sequence[IntervalPart], intervals: Sequence[DeviceInterval], devices: _Devices
) -> Iterator[Sequence[IntervalPart]]:
    chunk: list[IntervalPart] = []
    rows = 0
    for part in parts:
        of = intervals[part.number]
        more = sum(len(devices.get(view, ())) for view in (*of.views, *of.whole))
        if chunk and (len(chunk) == PARTS_PER_QUERY or rows + more > ROWS_PER_QUERY):
            yield chunk
            chunk, rows = [], 0
        chunk.append(part)
        rows += more
    if chunk:
        yield chunk


def _joined_hours(parts: Mapping[int, list[IntervalPart]]) -> Iterator[list[IntervalPart]]:
    """Yield the parts of hours. Parts of the same day are joined up to the size of a query."""
    found: list[IntervalPart] = []
    first = 0
    for hour in sorted(parts):
        is_other_day = hour // HOURS_PER_QUERY != first // HOURS_PER_QUERY
        if found and (is_other_day or len(found) + len(parts[hour]) > PARTS_PER_QUERY):
            yield found
            found = []
        if not found:
            first = hour
        found = [*found, *parts[hour]]
    if found:
        yield found


def _add(
    sums: list[list[float]],
    handle: Handle,
    query: str,
    devices: _Devices,
    intervals: Sequence[DeviceInterval],
    parts: Sequence[IntervalPart],
    *,
    each: bool = False,
) -> None:
    """Add the usage of parts to that of their intervals. With `each`, the reporter of each part is selected alone."""
    # Runs have the number of their interval, so their sums add up to it.
    numbers = [place if each else part.number for place, part in enumerate(parts)]
    rows = [
        (rank, subject, part, number)
        for part, number in zip(parts, numbers, strict=True)
        for view in intervals[part.number].views
        for rank, subject in devices.get(view, ())
    ]
    if not rows:
        return
    states = [
        (subject, part, number)
        for part, number in zip(parts, numbers, strict=True)
        for view in (*intervals[part.number].views, *intervals[part.number].whole)
        for _, subject in devices.get(view, ())
        if subject.lane == CATALOGUE[STATE].lane
    ]
    first, last = min(part.start for part in parts), max(part.end for part in parts)
    parameters: dict[str, Any] = {
        "subjects": sorted({one.number for one in (*(row[1] for row in rows), *(state[0] for state in states))}),
        "since": max(0, first - CONTEXT_NS),
        "until": last + CONTEXT_NS,
        "start": first // NANOS,
        "end": last // NANOS,
        "of": [subject.number for _, subject, _, _ in rows],
        "numbers": [number for _, _, _, number in rows],
        "firsts": [part.start for _, _, part, _ in rows],
        "lasts": [part.end for _, _, part, _ in rows],
        "cards": [_card(subject.view) for _, subject, _, _ in rows],
        "valid": [valid_ns(subject.lane) for _, subject, _, _ in rows],
        "ranks": [rank for rank, _, _, _ in rows],
        "state_of": [subject.number for subject, _, _ in states],
        "state_numbers": [number for _, _, number in states],
        "state_firsts": [part.start for _, part, _ in states],
        "state_lasts": [part.end for _, part, _ in states],
        "state_valid": [valid_ns(subject.lane) for subject, _, _ in states],
    }
    by_number: dict[int, list[tuple[str, list[float]]]] = defaultdict(list)
    for number, card, *found in handle.query(query, parameters=parameters).result_rows:
        by_number[number].append((card, found))
    lengths: dict[int, int] = defaultdict(int)
    for part, number in zip(parts, numbers, strict=True):
        lengths[number] += part.end - part.start
    for key, found in by_number.items():
        number = parts[key].number if each else key
        added = add_cards(found, lengths[key] / NANOS)
        sums[number] = [before + more for before, more in zip(sums[number], added, strict=True)]


def _card(view: str) -> str:
    """Return the UUID in the key of a view, or an empty text. A vGPU's driver adds the prefix `GPU-` to it."""
    name = view.partition("/")[2]
    return "" if name.startswith(("pci/", "instance/")) else name.removeprefix("GPU-")


def add_cards(found: Sequence[tuple[str, Sequence[float]]], length: float) -> list[float]:
    """Return the usage of a device whose cards replaced one another: the sum of the known usage of each.

    Cards that together are known for longer than the interval were present at the same time, and so was a view without
    UUID. Then only the card with the longest known time counts. Use, power and energy are judged separately.

    Args:
        found: card (a UUID, or empty) and its sums.
        length: of the interval in seconds.
    """
    known = {"use": (0, 1), "power": (3,), "energy": (5,)}
    places = {"use": (0, 1), "power": (2, 3), "energy": (4, 5)}
    total = [0.0] * len(SUMS)
    for kind, seconds in known.items():
        of_card = [(sum(sums[place] for place in seconds), sums) for card, sums in found if card]
        unnamed = [(sum(sums[place] for place in seconds), sums) for card, sums in found if not card]
        together = [sum(sums[place] for _, sums in of_card) for place in range(len(SUMS))]
        covered = sum(time for time, _ in of_card)
        candidates = [*unnamed, (covered, together)] if covered <= length + 1 else [*unnamed, *of_card]
        _, best = max(candidates, key=lambda one: one[0])
        for place in places[kind]:
            total[place] = best[place]
    return total
