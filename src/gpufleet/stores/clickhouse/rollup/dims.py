"""Statements that compute rollups of values with dimensions. Pure.

The rules are those of `windows.py` and `durations.py`, for each metric with one set of labels. A series that is missing
in a sample is absent there: the validity of its state ends with the next sample of the subject.
"""

from gpufleet.model.catalogue import CATALOGUE, MetricKind, Storage
from gpufleet.model.reading import Provenance
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.tables import (
    CHUNK_CONDITION,
    DIMS_1H,
    DIMS_1M,
    DRIVER_COUNTERS,
    MINUTE_NS,
    NEXT_SAMPLE_NS,
    REPORTER_COLUMNS,
    STATES_1H,
    STATES_1M,
    VALID_NS,
)

DIM_SETTINGS = {"max_threads": 1, "max_insert_threads": 1, "do_not_merge_across_partitions_select_final": 1}

_SERIES = "subject, metric, labels"
_DIMS = [metric for metric in CATALOGUE.values() if metric.storage is Storage.DIM]
_STATES = [metric for metric in _DIMS if metric.kind is MetricKind.STATE]


def _names(kind: MetricKind) -> str:
    return "(" + ", ".join(f"'{metric.name}'" for metric in _DIMS if metric.kind is kind) + ")"


_BY_DRIVER = "(" + ", ".join(f"'{name}'" for name in sorted(DRIVER_COUNTERS)) + ")"
_RESTARTED = (
    f"metric IN {_BY_DRIVER} AND driver_session != 0 AND session_before != 0 AND driver_session != session_before"
)


_UNNUMBERED = f"provenance = '{Provenance.IMPORTED}'"
"""Imported samples arrive in any order: their counters are compared by time, not by sequence number."""


def _growth(kind: str, to: str) -> str:
    value, before = f"{kind}_value", f"{kind}_before"
    return (
        f"multiIf(isNull({value}), NULL, before_ns = 0 OR before_ns > at_ns, {to}(0), "
        f"{value} < assumeNotNull({before}) OR ({_RESTARTED}), {value}, "
        f"{to}(assumeNotNull({value}) - assumeNotNull({before}))) AS {kind}_grown"
    )


def render_dims(window_ns: int) -> str:
    """Return the statement for the windows of an hour.

    Parameters: first_subject and last_subject; since and until (the hour with context for counters); first (start
    of the hour); version. Times in nanoseconds.
    """
    table = DIMS_1M if window_ns == MINUTE_NS else DIMS_1H
    number = "coalesce(toFloat64(int_value), float_value)"
    gauges, counters = (f"metric IN {_names(kind)}" for kind in (MetricKind.GAUGE, MetricKind.COUNTER))
    not_gauges = f"metric NOT IN {_names(MetricKind.GAUGE)}"
    return f"""
INSERT INTO {table.name} ({", ".join(column.name for column in table.columns)})
SELECT {REPORTER_COLUMNS}, metric, labels, toDateTime(intDiv(at_ns, {window_ns}) * {window_ns // NANOS}, 'UTC') AS at,
    {{version:UInt64}}, count(), minIf({number}, {gauges}), maxIf({number}, {gauges}), avgIf({number}, {gauges}),
    argMaxIf(int_value, at_ns, {not_gauges}), sumIf(int_grown, {counters}),
    argMaxIf(float_value, at_ns, {not_gauges}), sumIf(float_grown, {counters})
FROM (
    SELECT *, {_growth("int", "toUInt64")}, {_growth("float", "toFloat64")}
    FROM (
        SELECT {REPORTER_COLUMNS}, metric, labels, int_value, float_value, driver_session, at_ns,
            lagInFrame(at_ns, 1, toInt64(0)) OVER series_before AS before_ns,
            lagInFrame(int_value) OVER series_before AS int_before,
            lagInFrame(float_value) OVER series_before AS float_before,
            lagInFrame(driver_session) OVER series_before AS session_before
        FROM (
            SELECT {REPORTER_COLUMNS}, metric, labels, int_value, float_value, driver_session,
                toUnixTimestamp64Nano(measured_at) AS at_ns,
                if({_UNNUMBERED}, '', epoch) AS course, if({_UNNUMBERED}, 0, seq) AS number,
                max(at_ns) OVER (PARTITION BY {_SERIES}, course ORDER BY number, at_ns
                    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS latest_ns
            FROM dim_samples FINAL WHERE {CHUNK_CONDITION} AND (isNotNull(int_value) OR isNotNull(float_value))
        )
        WINDOW series_before AS (PARTITION BY {_SERIES} ORDER BY latest_ns, course, number, at_ns
            ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
    )
    WHERE at_ns >= {{first:Int64}}
)
GROUP BY {REPORTER_COLUMNS}, metric, labels, at"""  # noqa: S608 - names are from the catalogue; values are bound as parameters


def render_dim_states(window_ns: int) -> str:
    """Return the statement for the seconds per state of an hour.

    Parameters: those of `render_dims`, with `since` early enough for readings that are still valid, and last (end of
    the hour).
    """
    table = STATES_1M if window_ns == MINUTE_NS else STATES_1H
    coded = [(metric.name, number, state) for metric in _STATES for number, state in enumerate(metric.states)]
    known = f"[{', '.join(repr((name, number)) for name, number, _ in coded)}]"
    states = f"[{', '.join(repr(state) for *_, state in coded)}]"
    named = f"{states}[indexOf({known}, (metric, toUInt8(state_number)))]"
    return f"""
INSERT INTO {table.name} ({", ".join(column.name for column in table.columns)})
SELECT {REPORTER_COLUMNS}, metric, labels, if(empty({named}), toString(state_number), {named}) AS state_name,
    toDateTime(number * {window_ns // NANOS}, 'UTC') AS at, {{version:UInt64}},
    sum(least(until_ns, (number + 1) * {window_ns}) - greatest(from_ns, number * {window_ns})) / {NANOS}
FROM (
    SELECT {REPORTER_COLUMNS}, metric, labels, int_value AS state_number, from_ns, until_ns, toInt64(arrayJoin(
        range(toUInt64(intDiv(from_ns, {window_ns})), toUInt64(intDiv(until_ns - 1, {window_ns}) + 1)))) AS number
    FROM (
        SELECT {REPORTER_COLUMNS}, metric, labels, assumeNotNull(int_value) AS int_value, at_ns, lane,
            greatest(at_ns, {{first:Int64}}) AS from_ns,
            least(next_ns, at_ns + {VALID_NS}, {{last:Int64}}) AS until_ns
        FROM (
            SELECT {REPORTER_COLUMNS}, metric, labels, int_value, toUnixTimestamp64Nano(measured_at) AS at_ns
            FROM dim_samples FINAL
            WHERE {CHUNK_CONDITION} AND metric IN {_names(MetricKind.STATE)} AND isNotNull(int_value)
        ) AS readings
        INNER JOIN (
            SELECT subject, toUnixTimestamp64Nano(measured_at) AS at_ns, {NEXT_SAMPLE_NS} AS next_ns
            FROM samples FINAL WHERE {CHUNK_CONDITION} AND subject IN (
                SELECT subject FROM dim_samples WHERE {CHUNK_CONDITION} AND metric IN {_names(MetricKind.STATE)}
            )
        ) AS ended USING (subject, at_ns)
        INNER JOIN (
            SELECT DISTINCT number AS subject, lane FROM subjects
            WHERE number >= {{first_subject:UInt32}} AND number <= {{last_subject:UInt32}}
        ) AS named USING (subject)
        WHERE from_ns < until_ns
    )
)
GROUP BY {REPORTER_COLUMNS}, metric, labels, state_name, number"""  # noqa: S608 - as above
