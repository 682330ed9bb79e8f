"""Time series queries."""

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product

from gpufleet.dialects.all_smi import AMBIGUOUS
from gpufleet.fleet.readings import STATE
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage
from gpufleet.model.catalogue.events import XID_LAST
from gpufleet.model.device_state import WORST_FIRST
from gpufleet.model.errors import StoreError
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.status import MISSED_PASSES
from gpufleet.model.stored.retention import Resolution, Retention
from gpufleet.model.stored.samples import StoredSeries
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.machines.counts import STATE_INTERVAL_SECONDS
from gpufleet.stores.clickhouse.rollup.hours import SourceChoice, choose_sources, fetch_hour_states, needs_samples_only
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS, ambiguous_condition, value_expression
from gpufleet.stores.clickhouse.samples import xids
from gpufleet.stores.clickhouse.samples.cache import SubjectRow, subject_slices
from gpufleet.stores.clickhouse.samples.gaps import NEWEST_SET, StepGrid, StepSet, fetch_gap_reasons
from gpufleet.stores.clickhouse.samples.keys import MACHINE_VIEW
from gpufleet.stores.clickhouse.samples.newest_rows import value_of
from gpufleet.stores.clickhouse.schema.sets import AbsenceSets

MAX_POINTS = 11_000
"""Maximum number of steps of a series."""

MAX_ROWS = 2_000_000
"""Maximum number of rows of a query, over all views and readers."""

MAX_ROWS_WITH_SETS = 100_000
"""Maximum number of rows of a query that has the reasons of gaps, too."""

StepPart = tuple[Value, int]
"""Sum and count for a mean; otherwise the last value and its time of measurement. An unknown sum is NaN."""

_HEAD = """
SELECT subject, intDiv({at} - {{start:Int64}}, {{step:Int64}}) AS number, {newest_set} AS newest_set,
    {aggregates}
FROM {table} FINAL
WHERE subject IN {{subjects:Array(UInt32)}} AND provenance = {{provenance:String}}
    AND ({spans}){more}
GROUP BY subject, number
HAVING {present} OR newest_set != 0
ORDER BY subject, number
SETTINGS do_not_merge_across_partitions_select_final = 1, max_result_rows = {max_rows}{settings}
"""

_CURRENT = " AND (toStartOfHour(at), version) IN (SELECT hour, max(version) FROM rolled_hours GROUP BY hour)"

_FROM_PAGES = frozenset({Provenance.IMPORTED, Provenance.SLICE_GUEST})
"""Sources whose readings can be those of an exporter's page."""

_STATE_VALID_NS = int(MISSED_PASSES * STATE_INTERVAL_SECONDS * NANOS)
"""Time for which the last state of a reader counts beside newer ones of others, as in `fleet.readings`."""

_TABLES = {Resolution.MINUTE: "windows_1m", Resolution.HOUR: "windows_1h"}


def fetch_series(
    handle: Handle,
    absences: AbsenceSets,
    subjects: Sequence[SubjectRow],
    metrics: Sequence[str],
    start: int,
    end: int,
    step: int,
    provenance: Provenance,
    retention: Retention,
    views: Collection[str] | None = None,
    xids_since: int = 0,
) -> StoredSeries:
    """Return (view key, metric) to (start of step, value) of a machine; see `ports.HistoryStore.series`.

    `subjects` are all of the machine. A series is of a single reader: of several readers of the same metric and view,
    the reader with values in the most steps. The state of a GPU is the worst last state of all readers that did not
    stop long before, as in `fleet.readings`. A mean over an `ambiguous_zero` is absent with this reason: it would be
    too high.

    Raises:
        StoreError: for a metric without series, an invalid interval or step, or too many points.
    """
    requested = _check(metrics, start, end, step)
    if not requested:
        return StoredSeries(points={}, resolution=Resolution.RAW)
    now = time.time_ns()
    is_raw = needs_samples_only(start, end, step, retention, now)
    hours = [] if is_raw else fetch_hour_states(handle, start // HOUR_NS * 3600, -(-end // NANOS))
    source = choose_sources(start, end, step, hours, retention, now)
    wanted = None if views is None else {MACHINE_VIEW, *views}
    chosen = {one.number: one for one in subjects if wanted is None or one.view in wanted}
    parameters = {
        "provenance": provenance.value,
        "start": start,
        "step": step,
        **xids.xid_parameters(handle, requested, chosen, provenance, xids_since, end),
    }
    grid = StepGrid(start, end, step)
    # Of a long interval, fewer rows are read if the reasons of gaps have a query of their own.
    has_sets = not source.rolled and grid.count * len(chosen) <= MAX_ROWS_WITH_SETS
    sets: list[StepSet] = []
    found: dict[tuple[str, str], dict[str, dict[int, StepPart]]] = defaultdict(lambda: defaultdict(dict))
    queries = _queries(source, requested, provenance, has_sets=has_sets)
    for query, subjects_of_query in product(queries, subject_slices(chosen)):
        bound = {**parameters, "subjects": subjects_of_query}
        for subject, number, newest_set, *parts in handle.query(query, parameters=bound).result_rows:
            of = chosen[subject]
            if newest_set:
                sets.append((subject, number, newest_set))
            for metric, value, weight in zip(requested, parts[::2], parts[1::2], strict=True):
                if value is not None and weight:
                    steps = found[of.view, metric.name][of.reader]
                    steps[number] = _merge(metric, steps.get(number), (value, weight))
    longest = {key: _of_readers(CATALOGUE[key[1]], readers) for key, readers in found.items()}
    reasons = fetch_gap_reasons(handle, absences, chosen, longest, grid, provenance, sets if has_sets else None)
    return StoredSeries(
        points={
            (view or None, name): _points(CATALOGUE[name], steps, start, step)
            for (view, name), (_, steps) in longest.items()
        },
        resolution=source.resolution,
        absences={
            (view or None, name): {start + number * step: reason for number, reason in of_steps.items()}
            for (view, name), (_, steps) in longest.items()
            if (of_steps := {**reasons.get((view, name), {}), **_ambiguous_steps(name, steps)})
        },
    )


def _of_readers(metric: Metric, readers: Mapping[str, Mapping[int, StepPart]]) -> tuple[str, Mapping[int, StepPart]]:
    """Return the reader with values in the most steps, and the steps of the series."""
    reader, steps = max(
        sorted(readers.items()), key=lambda item: len(item[1]) - len(_ambiguous_steps(metric.name, item[1]))
    )
    if metric.name != STATE or len(readers) == 1:
        return reader, steps
    parts: dict[int, list[StepPart]] = defaultdict(list)
    for of_reader in readers.values():
        for number, part in of_reader.items():
            parts[number].append(part)
    return reader, {number: _deciding(several) for number, several in parts.items()}


def _ambiguous_steps(metric: str, steps: Mapping[int, StepPart]) -> dict[int, Reason]:
    """Return the steps whose mean is not known."""
    if metric not in AMBIGUOUS:
        return {}
    return {number: Reason.AMBIGUOUS_ZERO for number, (total, _) in steps.items() if math.isnan(float(total))}


def _deciding(parts: Sequence[StepPart]) -> StepPart:
    """Return the worst last state of a step, without those of readers that stopped before."""
    newest = max(at for _, at in parts)
    return min((part for part in parts if newest - part[1] <= _STATE_VALID_NS), key=_severity)


def _severity(part: StepPart) -> int:
    """Return the rank of the state of a GPU, 0 for the worst."""
    state = str(_value(CATALOGUE[STATE], part))
    return WORST_FIRST.index(state) if state in WORST_FIRST else len(WORST_FIRST)


def _queries(
    source: SourceChoice, metrics: Sequence[Metric], provenance: Provenance, *, has_sets: bool
) -> Iterator[str]:
    """Yield the queries of samples and of windows. With `has_sets`, a few samples are read, with their absence sets."""
    if source.raw:
        yield _HEAD.format(
            at="toUnixTimestamp64Nano(measured_at)",
            newest_set=NEWEST_SET if has_sets else "0",
            **_aggregates(_sample_aggregates(one, provenance) for one in metrics),
            table="samples",
            spans=" OR ".join(f"(measured_at >= {_instant(a)} AND measured_at < {_instant(b)})" for a, b in source.raw),
            more="",
            max_rows=MAX_ROWS,
            settings=", max_threads = 1" if has_sets else "",  # less time for small parts
        )
    if source.rolled:
        yield _HEAD.format(
            at=f"toInt64(toUnixTimestamp(at)) * {NANOS}",
            newest_set="0",
            **_aggregates(map(_window_aggregates, metrics)),
            table=_TABLES[source.resolution],
            spans=" OR ".join(
                f"(at >= toDateTime({a // NANOS}, 'UTC') AND at < toDateTime({b // NANOS}, 'UTC'))"
                for a, b in source.rolled
            ),
            more=_CURRENT,
            max_rows=MAX_ROWS,
            settings="",
        )


def _aggregates(parts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the aggregates of a query, and the condition of steps with a value."""
    found = list(parts)
    return {
        "aggregates": ",\n    ".join(f"{value}, {weight}" for value, weight in found),
        "present": " OR ".join(f"{weight} > 0" for _, weight in found),
    }


def _instant(at: int) -> str:
    return f"fromUnixTimestamp64Nano(toInt64({at}), 'UTC')"


def _merge(metric: Metric, before: StepPart | None, part: StepPart) -> StepPart:
    """Merge the parts of a step: of several lanes, from samples and from windows."""
    if before is None:
        return part
    if _is_mean(metric):
        return float(before[0]) + float(part[0]), before[1] + part[1]
    return max(before, part, key=lambda one: one[1])


def _points(metric: Metric, steps: Mapping[int, StepPart], start: int, step: int) -> list[tuple[int, Value]]:
    unknown = _ambiguous_steps(metric.name, steps)
    return [
        (start + number * step, _value(metric, part)) for number, part in sorted(steps.items()) if number not in unknown
    ]


def _check(metrics: Sequence[str], start: int, end: int, step: int) -> list[Metric]:
    if step <= 0:
        raise StoreError(f"series: the step is {step} ns: it must be greater than 0")
    if end <= start:
        raise StoreError(f"series: the end ({end}) is not after the start ({start})")
    points = -(-(end - start) // step)
    if points > MAX_POINTS:
        enough = -(-(end - start) // MAX_POINTS) / NANOS
        raise StoreError(
            f"series: {points} steps exceed the limit of {MAX_POINTS}: use a step of at least {enough:.3f} s, "
            "or a shorter interval"
        )
    checked = []
    for name in dict.fromkeys(metrics):
        metric = CATALOGUE.get(name)
        if metric is None:
            raise StoreError(f"series: {name[:100]!r} is not in the catalogue")
        if metric.storage not in (Storage.CORE, Storage.TAIL):
            raise StoreError(f"series: {name} has no series, because it has dimensions or is a text")
        checked.append(metric)
    return checked


def _is_mean(metric: Metric) -> bool:
    """Return whether a step has the mean of a metric. The mean of two XIDs would be a third one."""
    return metric.kind is MetricKind.GAUGE and metric.name not in xids.NEWEST


def _sample_aggregates(metric: Metric, provenance: Provenance) -> tuple[str, str]:
    """Return the SQL expressions for the parts of a step, from samples."""
    cell = xids.sample_cell(metric) if metric.name in xids.FILTERED else value_expression(metric)
    if _is_mean(metric):
        if provenance in _FROM_PAGES and metric.name in AMBIGUOUS:
            cell = f"if({ambiguous_condition(metric)}, nan, toFloat64({cell}))"  # the sum becomes NaN
        return f"sum(toFloat64({cell}))", f"count({cell})"
    return f"argMax({cell}, measured_at)", f"maxIf(toUnixTimestamp64Nano(measured_at), isNotNull({cell}))"


def _window_aggregates(metric: Metric) -> tuple[str, str]:
    """Return the SQL expressions for the parts of a step, from windows."""
    instant = f"toInt64(toUnixTimestamp(at)) * {NANOS}"
    if metric.storage is Storage.CORE:
        if metric.kind is MetricKind.GAUGE:
            # Minutes store 32-bit floats: the decimal text gives 0.65 instead of 0.6499999761581421
            value = f"sum(toFloat64(toString({metric.name}_avg)) * {metric.name}_count)"
            return value, f"sum({metric.name}_count)"
        last = f"{metric.name}_last"
        if metric.kind is MetricKind.STATE:
            instant = f"toInt64(toUnixTimestamp(coalesce({last}_at, at))) * {NANOS}"
        return f"argMax({last}, at)", f"maxIf({instant}, isNotNull({last}))"
    if metric.name in xids.FILTERED:
        return xids.window_aggregates(metric, instant)
    prefix = f"tail_{metric.kind.value}"
    place = f"indexOf({prefix}_ids, {metric.id})"
    if metric.kind is MetricKind.GAUGE:
        return f"sum({prefix}_avg[{place}] * {prefix}_count[{place}])", f"sum({prefix}_count[{place}])"
    present = f"has({prefix}_ids, {metric.id})"
    return f"argMaxIf({prefix}_last[{place}], at, {present})", f"maxIf({instant}, {present})"


def _value(metric: Metric, part: StepPart) -> Value:
    """Return the value as in readings. Core states are stored by name, other states by position."""
    value, weight = part
    if _is_mean(metric):
        return float(value) / weight
    if metric.name == XID_LAST:
        return int(value)
    return value if isinstance(value, str) else value_of(metric, value)
