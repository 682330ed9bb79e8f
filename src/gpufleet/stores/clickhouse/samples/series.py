"""Values of a machine's metrics over time, in steps."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage
from gpufleet.model.errors import StoreError
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.stored.retention import Resolution, Retention
from gpufleet.model.stored.samples import StoredSeries
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.rollup.hours import Choice, choose, fetch_standings
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS, column
from gpufleet.stores.clickhouse.samples.latest import value_of

MAX_POINTS = 11_000
"""Most steps a series may have."""

MAX_ROWS = 2_000_000
"""Most rows a question may come to, over all views and readers."""

Part = tuple[Value, int]
"""Of a gauge the sum and the count; of others the last value, and when it was measured."""

_HEAD = """
SELECT view, reader, intDiv({at} - {{start:Int64}}, {{step:Int64}}) AS number,
    {aggregates}
FROM {table} FINAL
WHERE cluster = {{cluster:String}} AND machine = {{machine:String}} AND provenance = {{provenance:String}}
    AND ({spans}){more}
GROUP BY view, reader, number
ORDER BY view, reader, number
SETTINGS do_not_merge_across_partitions_select_final = 1, max_result_rows = {max_rows}
"""

_CURRENT = " AND (toStartOfHour(at), version) IN (SELECT hour, max(version) FROM rolled_hours GROUP BY hour)"

_TABLES = {Resolution.MINUTE: "windows_1m", Resolution.HOUR: "windows_1h"}


def fetch_series(
    handle: Handle,
    cluster: str,
    machine: str,
    metrics: Sequence[str],
    start: int,
    end: int,
    step: int,
    provenance: Provenance,
    retention: Retention,
) -> StoredSeries:
    """Ask for (view key, metric) to (start of step, value), as `ports.Store.series` says.

    A series is of one reader: where several measured the same metric of a view, the one that measured in
    most steps; readers are never mixed into one series.

    Raises:
        StoreError: for a metric that has no series, a span or step that makes none, or too many points.
    """
    asked = _checked(metrics, start, end, step)
    if not asked:
        return StoredSeries(points={}, resolution=Resolution.RAW)
    standings = fetch_standings(handle, start // HOUR_NS * 3600, -(-end // NANOS))
    choice = choose(start, end, step, standings, retention, time.time_ns())
    parameters = {
        "cluster": cluster,
        "machine": machine,
        "provenance": provenance.value,
        "start": start,
        "step": step,
    }
    found: dict[tuple[str, str], dict[str, dict[int, Part]]] = defaultdict(lambda: defaultdict(dict))
    for query in _queries(choice, asked):
        for view, reader, number, *parts in handle.query(query, parameters=parameters).result_rows:
            for metric, value, weight in zip(asked, parts[::2], parts[1::2], strict=True):
                if value is not None and weight:
                    steps = found[view, metric.name][reader]
                    steps[number] = _joined(metric, steps.get(number), (value, weight))
    return StoredSeries(
        points={
            (view or None, name): _points(CATALOGUE[name], readers, start, step)
            for (view, name), readers in found.items()
        },
        resolution=choice.resolution,
    )


def _queries(choice: Choice, asked: Sequence[Metric]) -> Iterator[str]:
    if choice.raw:
        yield _HEAD.format(
            at="toUnixTimestamp64Nano(measured_at)",
            aggregates=",\n    ".join(map(_of_samples, asked)),
            table="samples",
            spans=" OR ".join(f"(measured_at >= {_instant(a)} AND measured_at < {_instant(b)})" for a, b in choice.raw),
            more="",
            max_rows=MAX_ROWS,
        )
    if choice.rolled:
        yield _HEAD.format(
            at=f"toInt64(toUnixTimestamp(at)) * {NANOS}",
            aggregates=",\n    ".join(map(_of_windows, asked)),
            table=_TABLES[choice.resolution],
            spans=" OR ".join(
                f"(at >= toDateTime({a // NANOS}, 'UTC') AND at < toDateTime({b // NANOS}, 'UTC'))"
                for a, b in choice.rolled
            ),
            more=_CURRENT,
            max_rows=MAX_ROWS,
        )


def _instant(at: int) -> str:
    return f"fromUnixTimestamp64Nano(toInt64({at}), 'UTC')"


def _joined(metric: Metric, before: Part | None, part: Part) -> Part:
    """Put together what samples and what windows say of one step."""
    if before is None:
        return part
    if metric.kind is MetricKind.GAUGE:
        return float(before[0]) + float(part[0]), before[1] + part[1]
    return max(before, part, key=lambda one: one[1])


def _points(
    metric: Metric, readers: Mapping[str, Mapping[int, Part]], start: int, step: int
) -> list[tuple[int, Value]]:
    _, steps = max(sorted(readers.items()), key=lambda item: len(item[1]))
    return [(start + number * step, _value(metric, part)) for number, part in sorted(steps.items())]


def _checked(metrics: Sequence[str], start: int, end: int, step: int) -> list[Metric]:
    if step <= 0:
        raise StoreError(f"series: a step of {step} ns: write one greater than 0")
    if end <= start:
        raise StoreError(f"series: the end ({end}) is not after the start ({start})")
    points = -(-(end - start) // step)
    if points > MAX_POINTS:
        enough = -(-(end - start) // MAX_POINTS) / NANOS
        raise StoreError(
            f"series: {points} steps, the limit is {MAX_POINTS}: ask for a step of at least {enough:.3f} s, "
            "or a shorter span"
        )
    asked = []
    for name in dict.fromkeys(metrics):
        metric = CATALOGUE.get(name)
        if metric is None:
            raise StoreError(f"series: {name[:100]!r} is not in the catalogue")
        if metric.storage not in (Storage.CORE, Storage.TAIL):
            raise StoreError(f"series: {name} has no series: it has dimensions or is a text")
        asked.append(metric)
    return asked


def _of_samples(metric: Metric) -> str:
    cell = column(metric)
    if metric.kind is MetricKind.GAUGE:
        return f"sum(toFloat64({cell})), count({cell})"
    return f"argMax({cell}, measured_at), maxIf(toUnixTimestamp64Nano(measured_at), isNotNull({cell}))"


def _of_windows(metric: Metric) -> str:
    instant = f"toInt64(toUnixTimestamp(at)) * {NANOS}"
    if metric.storage is Storage.CORE:
        if metric.kind is MetricKind.GAUGE:
            # Minutes keep floats of 32 bits: as written, 0.65 is not 0.6499999761581421
            return f"sum(toFloat64(toString({metric.name}_avg)) * {metric.name}_count), sum({metric.name}_count)"
        last = f"{metric.name}_last"
        return f"argMax({last}, at), maxIf({instant}, isNotNull({last}))"
    prefix = f"tail_{metric.kind.value}"
    place = f"indexOf({prefix}_ids, {metric.id})"
    if metric.kind is MetricKind.GAUGE:
        return f"sum({prefix}_avg[{place}] * {prefix}_count[{place}]), sum({prefix}_count[{place}])"
    told = f"has({prefix}_ids, {metric.id})"
    return f"argMaxIf({prefix}_last[{place}], at, {told}), maxIf({instant}, {told})"


def _value(metric: Metric, part: Part) -> Value:
    """Return the value as readings carry it: a core state comes by its name, another one by its position."""
    value, weight = part
    if metric.kind is MetricKind.GAUGE:
        return float(value) / weight
    return value if isinstance(value, str) else value_of(metric, value)
