"""Gauges, counters and last states of a window. Pure: it renders the statement.

Gauges have least, greatest, sum and count of what was measured. Of a counter there are its first and last reading in
the window, and by how much it grew: each growth belongs to the window of the later of its two readings, so that
minutes add up to their hour. The earlier one may lie up to `APART_SECONDS` before the hour. A counter that fell counts
from zero again, so what it shows is what it grew by. What was absent is in none of them.
"""

from gpufleet.model.catalogue import Metric, MetricKind, Storage, ValueType
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.parts import RANGE, TELLER, column, ids, plain, state_pairs
from gpufleet.stores.clickhouse.rollup.tables import MINUTE_NS, SAMPLES_1H, SAMPLES_1M

_CORE_GAUGES = plain(MetricKind.GAUGE, Storage.CORE)
_TAIL_GAUGES = plain(MetricKind.GAUGE, Storage.TAIL)
_COUNTERS = [*plain(MetricKind.COUNTER, Storage.CORE), *plain(MetricKind.COUNTER, Storage.TAIL)]
_KINDS = (
    ("int", [metric for metric in _COUNTERS if metric.type is ValueType.INT]),
    ("float", [metric for metric in _COUNTERS if metric.type is ValueType.FLOAT]),
)


def render_values(window_ns: int) -> str:
    """Return the statement that makes the rows of a cluster's machines for every window of an hour.

    Its parameters: cluster, machines, first and last (the hour in nanoseconds), since and until (that, and what
    counters had before it), version.
    """
    table = SAMPLES_1M if window_ns == MINUTE_NS else SAMPLES_1H
    names = ", ".join(column.name for column in table.columns)
    seconds = window_ns // NANOS
    return f"""
INSERT INTO {table.name} ({names})
SELECT {TELLER}, at, {{version:UInt64}}, samples,
    gauges.1, gauges.2, gauges.3, gauges.4, gauges.5,
    {", ".join(f"{kind}s.{part}" for kind, _ in _KINDS for part in (1, 2, 3, 4))},
    states.1, arrayMap(v -> toUInt8(v % 256), states.2)
FROM (
    SELECT {TELLER}, at, samples, states,
        arrayConcat(arrayFilter(g -> g.5 > 0, [{", ".join(map(_gauge, _CORE_GAUGES))}]), {_tail_gauges()}) AS found,
        {_unzipped("found", 5)} AS gauges,
        {", ".join(_counters(kind, metrics) for kind, metrics in _KINDS)}
    FROM (
        SELECT {TELLER}, toDateTime(intDiv(at_ns, {window_ns}) * {seconds}, 'UTC') AS at, count() AS samples,
            {", ".join(map(_gauge_state, _CORE_GAUGES))},
            minMap(gauge_ids, gauge_values) AS tail_min, maxMap(gauge_ids, gauge_values) AS tail_max,
            sumMap(gauge_ids, gauge_values) AS tail_sum,
            sumMap(gauge_ids, arrayMap(i -> toUInt64(1), gauge_ids)) AS tail_count,
            {", ".join(map(_readings, _COUNTERS))},
            maxMap(arrayMap(p -> p.1, pairs), arrayMap(p -> toUInt64(intDiv(at_ns, 1000)) * 256 + p.2, pairs)) AS states
        FROM (
            SELECT {TELLER}, toUnixTimestamp64Nano(measured_at) AS at_ns,
                {", ".join(f"`{metric.name}`" for metric in _CORE_GAUGES)},
                {", ".join(map(_growth, _COUNTERS))},
                arrayConcat({_kept("ids", "float")}, {_kept("ids", "int")}) AS gauge_ids,
                arrayConcat({_kept("values", "float")}, {_kept("values", "int")}) AS gauge_values,
                {state_pairs()} AS pairs
            FROM samples FINAL WHERE {RANGE}
            WINDOW before AS (PARTITION BY cluster, machine, view, reader, lane ORDER BY measured_at
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
        )
        WHERE at_ns >= {{first:Int64}} AND at_ns < {{last:Int64}}
        GROUP BY {TELLER}, at
    )
)
SETTINGS max_threads = 1, max_insert_threads = 1, do_not_merge_across_partitions_select_final = 1"""  # noqa: S608 - as in the others


def _gauge_state(metric: Metric) -> str:
    cell, name = f"`{metric.name}`", f"g{metric.id}"
    return (
        f"min({cell}) AS {name}_min, max({cell}) AS {name}_max, sum(toFloat64({cell})) AS {name}_sum, "
        f"count({cell}) AS {name}_count"
    )


def _gauge(metric: Metric) -> str:
    parts = ", ".join(f"toFloat64(ifNull(g{metric.id}_{part}, 0))" for part in ("min", "max", "sum"))
    return f"(toUInt16({metric.id}), {parts}, toUInt32(g{metric.id}_count))"


def _tail_gauges() -> str:
    """Return the gauges of tails; a sum of zero is left out of a map, and is what a lookup of nothing gives."""
    return (
        "arrayMap((i, low, high) -> (i, low, high, tail_sum.2[indexOf(tail_sum.1, i)], "
        "toUInt32(tail_count.2[indexOf(tail_count.1, i)])), tail_min.1, tail_min.2, tail_max.2)"
    )


def _kept(part: str, tail: str) -> str:
    """Return the ids or values of the gauges of a tail."""
    type_ = ValueType.FLOAT if tail == "float" else ValueType.INT
    wanted = ids(metric for metric in _TAIL_GAUGES if metric.type is type_)
    if part == "ids":
        return f"arrayFilter(i -> i IN {wanted}, tail_{tail}_ids)"
    return f"arrayMap(v -> toFloat64(v), arrayFilter((v, i) -> i IN {wanted}, tail_{tail}_values, tail_{tail}_ids))"


def _growth(metric: Metric) -> str:
    """Return what a row has of a counter, and by how much it grew since the row before that had it."""
    name, to = f"c{metric.id}", _to(metric)
    return (
        f"{column(metric)} AS {name}, anyLast({name}) OVER before AS {name}_before, "
        f"multiIf(isNull({name}_before), NULL, {name} >= {name}_before, {to}({name} - {name}_before), {name}) "
        f"AS {name}_growth"
    )


def _readings(metric: Metric) -> str:
    name = f"c{metric.id}"
    return (
        f"argMin({name}, at_ns) AS {name}_first, argMax({name}, at_ns) AS {name}_last, "
        f"sum({name}_growth) AS {name}_increase, count({name}) AS {name}_count"
    )


def _to(metric: Metric) -> str:
    return "toUInt64" if metric.type is ValueType.INT else "toFloat64"


def _counters(kind: str, metrics: list[Metric]) -> str:
    tuples = ", ".join(
        f"(toUInt16({one.id}), "
        + ", ".join(f"{_to(one)}(ifNull(c{one.id}_{part}, 0))" for part in ("first", "last", "increase"))
        + f", c{one.id}_count)"
        for one in metrics
    )
    return f"arrayFilter(c -> c.5 > 0, [{tuples}]) AS {kind}_found, {_unzipped(f'{kind}_found', 4)} AS {kind}s"


def _unzipped(array: str, width: int) -> str:
    return "(" + ", ".join(f"arrayMap(x -> x.{part}, {array})" for part in range(1, width + 1)) + ")"
