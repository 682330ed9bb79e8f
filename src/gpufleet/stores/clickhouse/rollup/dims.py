"""Minutes and hours of values with dimensions. Pure: it renders statements.

The rules are those of `windows.py` and `lasting.py`, each series being one metric with one set of labels. A series that
a sample lacks is absent there: its state ends to speak with the next sample of its lane, whether that has the series
or not.
"""

from gpufleet.model.catalogue import CATALOGUE, MetricKind, Storage
from gpufleet.model.reading import Provenance
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.tables import (
    CHUNK,
    DIMS_1H,
    DIMS_1M,
    MINUTE_NS,
    NEXT,
    OF_THE_DRIVER,
    SPEAKS_NS,
    STATES_1H,
    STATES_1M,
    TELLER,
)

SETTINGS = {"max_threads": 1, "max_insert_threads": 1, "do_not_merge_across_partitions_select_final": 1}

_SERIES = "cluster, machine, view, reader, lane, metric, labels"
_DIMS = [metric for metric in CATALOGUE.values() if metric.storage is Storage.DIM]
_STATES = [metric for metric in _DIMS if metric.kind is MetricKind.STATE]


def _names(kind: MetricKind) -> str:
    return "(" + ", ".join(f"'{metric.name}'" for metric in _DIMS if metric.kind is kind) + ")"


_BY_DRIVER = "(" + ", ".join(f"'{name}'" for name in sorted(OF_THE_DRIVER)) + ")"
_ANEW = f"metric IN {_BY_DRIVER} AND driver_session != 0 AND session_before != 0 AND driver_session != session_before"


_UNCOUNTED = f"(epoch = '' OR provenance = '{Provenance.IMPORTED}')"
"""What was written before schema version 6, and what comes in any order: it is followed by time."""


def _grown(kind: str, to: str) -> str:
    value, before = f"{kind}_value", f"{kind}_before"
    return (
        f"multiIf(isNull({value}), NULL, before_ns = 0 OR before_ns > at_ns, {to}(0), "
        f"{value} < assumeNotNull({before}) OR ({_ANEW}), {value}, "
        f"{to}(assumeNotNull({value}) - assumeNotNull({before}))) AS {kind}_grown"
    )


def render_dims(window_ns: int) -> str:
    """Return the statement that makes the windows of an hour's values with dimensions.

    Its parameters: cluster, first_machine, last_machine, since and until (the hour, and what counters had before it),
    first (the hour, in nanoseconds), version.
    """
    table = DIMS_1M if window_ns == MINUTE_NS else DIMS_1H
    number = "coalesce(toFloat64(int_value), float_value)"
    gauges, counters = (f"metric IN {_names(kind)}" for kind in (MetricKind.GAUGE, MetricKind.COUNTER))
    not_gauges = f"metric NOT IN {_names(MetricKind.GAUGE)}"
    return f"""
INSERT INTO {table.name} ({", ".join(column.name for column in table.columns)})
SELECT {TELLER}, metric, labels, toDateTime(intDiv(at_ns, {window_ns}) * {window_ns // NANOS}, 'UTC') AS at,
    {{version:UInt64}}, count(), minIf({number}, {gauges}), maxIf({number}, {gauges}), avgIf({number}, {gauges}),
    argMaxIf(int_value, at_ns, {not_gauges}), sumIf(int_grown, {counters}),
    argMaxIf(float_value, at_ns, {not_gauges}), sumIf(float_grown, {counters})
FROM (
    SELECT *, {_grown("int", "toUInt64")}, {_grown("float", "toFloat64")}
    FROM (
        SELECT {TELLER}, metric, labels, int_value, float_value, driver_session, at_ns,
            lagInFrame(at_ns, 1, toInt64(0)) OVER series_before AS before_ns,
            lagInFrame(int_value) OVER series_before AS int_before,
            lagInFrame(float_value) OVER series_before AS float_before,
            lagInFrame(driver_session) OVER series_before AS session_before
        FROM (
            SELECT {TELLER}, metric, labels, int_value, float_value, driver_session,
                toUnixTimestamp64Nano(measured_at) AS at_ns,
                if({_UNCOUNTED}, '', epoch) AS course, if({_UNCOUNTED}, 0, seq) AS number,
                max(at_ns) OVER (PARTITION BY {_SERIES}, course ORDER BY number, at_ns
                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS latest_ns
            FROM dim_samples FINAL WHERE {CHUNK} AND (isNotNull(int_value) OR isNotNull(float_value))
        )
        WINDOW series_before AS (PARTITION BY {_SERIES} ORDER BY latest_ns, course, number, at_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
    )
    WHERE at_ns >= {{first:Int64}}
)
GROUP BY {TELLER}, metric, labels, at"""  # noqa: S608 - the names are the catalogue's own; what is asked for is bound


def render_dim_states(window_ns: int) -> str:
    """Return the statement that makes the seconds of an hour's states with dimensions.

    Its parameters: those of `render_dims`, with `since` early enough for what still speaks, and last: the hour's end.
    """
    table = STATES_1M if window_ns == MINUTE_NS else STATES_1H
    coded = [(metric.name, number, state) for metric in _STATES for number, state in enumerate(metric.states)]
    known = f"[{', '.join(repr((name, number)) for name, number, _ in coded)}]"
    states = f"[{', '.join(repr(state) for *_, state in coded)}]"
    named = f"{states}[indexOf({known}, (metric, toUInt8(state_number)))]"
    lane = "cluster, machine, view, reader, lane"
    return f"""
INSERT INTO {table.name} ({", ".join(column.name for column in table.columns)})
SELECT {TELLER}, metric, labels, if(empty({named}), toString(state_number), {named}) AS state_name,
    toDateTime(number * {window_ns // NANOS}, 'UTC') AS at, {{version:UInt64}},
    sum(least(until_ns, (number + 1) * {window_ns}) - greatest(from_ns, number * {window_ns})) / {NANOS}
FROM (
    SELECT {TELLER}, metric, labels, int_value AS state_number, from_ns, until_ns, toInt64(arrayJoin(
        range(toUInt64(intDiv(from_ns, {window_ns})), toUInt64(intDiv(until_ns - 1, {window_ns}) + 1)))) AS number
    FROM (
        SELECT {TELLER}, metric, labels, assumeNotNull(int_value) AS int_value, at_ns,
            greatest(at_ns, {{first:Int64}}) AS from_ns,
            least(next_ns, at_ns + {SPEAKS_NS}, {{last:Int64}}) AS until_ns
        FROM (
            SELECT {TELLER}, metric, labels, int_value, toUnixTimestamp64Nano(measured_at) AS at_ns
            FROM dim_samples FINAL WHERE {CHUNK} AND metric IN {_names(MetricKind.STATE)} AND isNotNull(int_value)
        ) AS told
        INNER JOIN (
            SELECT {lane}, toUnixTimestamp64Nano(measured_at) AS at_ns, {NEXT} AS next_ns
            FROM samples FINAL WHERE {CHUNK} AND (machine, reader) IN (
                SELECT machine, reader FROM dim_samples WHERE {CHUNK} AND metric IN {_names(MetricKind.STATE)}
            )
        ) AS ended USING ({lane}, at_ns)
        WHERE from_ns < until_ns
    )
)
GROUP BY {TELLER}, metric, labels, state_name, number"""  # noqa: S608 - as above
