"""Rollup tables, retention, and SQL expressions shared by the rollup statements.

A rollup row is valid only if its `version` is the version that `rolled_hours` has for its hour. Rows of incomplete or
earlier runs are ignored. The hub's configuration may change the retention (TTL) at every start. All expressions are
rendered from the catalogue.
"""

import re

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage, ValueType
from gpufleet.model.stored.retention import READING_VALID_SECONDS, Retention
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.tables import SUBJECT_NUMBER, TEXT, Column, TableDefinition, tables

MINUTE_NS = 60 * NANOS
HOUR_NS = 3600 * NANOS

_AT = Column("at", "DateTime('UTC')", "Delta, ZSTD(1)")
_VERSION = Column("version", "UInt64")
_REPORTER = (SUBJECT_NUMBER, Column("provenance", TEXT))
_REPORTER_KEY = ("subject", "provenance")
_LABELS = Column("labels", "Array(String)")
_SUMS = ("used_seconds", "idle_seconds", "power_joules", "power_seconds", "energy_joules", "energy_seconds")


def metrics_stored_as(kind: MetricKind, storage: Storage) -> list[Metric]:
    """Return the catalogue's metrics of a kind and storage."""
    return [metric for metric in CATALOGUE.values() if metric.kind is kind and metric.storage is storage]


def _value_columns(metric: Metric, floats: str) -> tuple[Column, ...]:
    """Return the columns of a core metric; `floats` is the type for float metrics."""
    own = "UInt64" if metric.type is ValueType.INT else floats
    match metric.kind:
        case MetricKind.GAUGE:
            mean = "Float64" if metric.type is ValueType.INT else floats
            kept = (("min", own), ("max", own), ("avg", mean))
            nullable = (Column(f"{metric.name}_{part}", f"Nullable({type_})") for part, type_ in kept)
            return (*nullable, Column(f"{metric.name}_count", "UInt32"))
        case MetricKind.COUNTER:
            last = "UInt64" if metric.type is ValueType.INT else "Float64"
            return (
                Column(f"{metric.name}_last", f"Nullable({last})", "Delta, ZSTD(1)"),
                Column(f"{metric.name}_increase", f"Nullable({own})"),
            )
        case _:
            return (
                Column(f"{metric.name}_last", "Nullable(UInt8)"),
                Column(f"{metric.name}_last_at", "Nullable(DateTime('UTC'))", "Delta, ZSTD(1)"),
            )


def _windows(floats: str) -> tuple[Column, ...]:
    core = [
        metric
        for kind in (MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.STATE)
        for metric in metrics_stored_as(kind, Storage.CORE)
    ]
    return (
        *_REPORTER,
        _AT,
        _VERSION,
        Column("samples", "UInt32"),
        *(column for metric in core for column in _value_columns(metric, floats)),
        Column("tail_gauge_ids", "Array(UInt16)"),
        *(Column(f"tail_gauge_{part}", "Array(Float64)") for part in ("min", "max", "avg")),
        Column("tail_gauge_count", "Array(UInt32)"),
        Column("tail_counter_ids", "Array(UInt16)"),
        *(Column(f"tail_counter_{part}", "Array(UInt64)") for part in ("last", "increase")),
        Column("tail_state_ids", "Array(UInt16)"),
        Column("tail_state_last", "Array(UInt8)"),
    )


_DIMS = (
    *_REPORTER,
    Column("metric", TEXT),
    _LABELS,
    _AT,
    _VERSION,
    Column("count", "UInt32"),
    *(Column(part, "Nullable(Float64)") for part in ("min", "max", "avg")),
    Column("int_last", "Nullable(UInt64)"),
    Column("int_increase", "Nullable(UInt64)"),
    Column("float_last", "Nullable(Float64)"),
    Column("float_increase", "Nullable(Float64)"),
)

_STATES = (
    *_REPORTER,
    Column("metric", TEXT),
    _LABELS,
    Column("state", TEXT),
    _AT,
    _VERSION,
    Column("seconds", "Float64"),
)

_USAGE = (*_REPORTER, _AT, _VERSION, *(Column(name, "Float64") for name in _SUMS))


def _table(name: str, columns: tuple[Column, ...], key: tuple[str, ...], partition: str) -> TableDefinition:
    return TableDefinition(name=name, columns=columns, key=key, version="version", partition=partition)


_DIM_KEY = (*_REPORTER_KEY, "metric", "labels", "at")
_STATE_KEY = (*_REPORTER_KEY, "metric", "labels", "state", "at")

WINDOWS_1M = _table("windows_1m", _windows("Float32"), (*_REPORTER_KEY, "at"), "toDate(at)")
WINDOWS_1H = _table("windows_1h", _windows("Float64"), (*_REPORTER_KEY, "at"), "toYYYYMM(at)")
DIMS_1M = _table("dim_windows_1m", _DIMS, _DIM_KEY, "toDate(at)")
DIMS_1H = _table("dim_windows_1h", _DIMS, _DIM_KEY, "toYYYYMM(at)")
STATES_1M = _table("state_windows_1m", _STATES, _STATE_KEY, "toDate(at)")
STATES_1H = _table("state_windows_1h", _STATES, _STATE_KEY, "toYYYYMM(at)")
USAGE_1H = _table("usage_1h", _USAGE, (*_REPORTER_KEY, "at"), "toYYYYMM(at)")

TOUCHED_HOURS = TableDefinition(
    name="touched_hours",
    columns=(Column("hour", "DateTime('UTC')"), Column("marked_at", "UInt64")),
    key=("hour",),
    version="marked_at",
)
"""Hours with new rows, possibly long after the hour. A mark is written before its rows."""

ROLLED_HOURS = TableDefinition(
    name="rolled_hours",
    columns=(Column("hour", "DateTime('UTC')"), _VERSION, Column("seen", "UInt64"), Column("without_minutes", "UInt8")),
    key=("hour",),
    version="version",
)
"""Completed rollups, each with the newest mark seen before it started. A newer mark makes the hour due again."""

ROLLUP_TABLES = (
    *(WINDOWS_1M, WINDOWS_1H, DIMS_1M, DIMS_1H, STATES_1M, STATES_1H, USAGE_1H),
    TOUCHED_HOURS,
    ROLLED_HOURS,
)


def all_tables() -> tuple[TableDefinition, ...]:
    """Return every table, rollups included."""
    return (*tables(), *ROLLUP_TABLES)


_TTLS = {
    "samples": ("measured_at", "raw_days"),
    "dim_samples": ("measured_at", "raw_days"),
    "processes": ("measured_at", "raw_days"),
    "holdings": ("reported_at", "rollup_1h_days"),
    "holder_states": ("reported_at", "raw_days"),
    "cluster_objects": ("reported_at", "rollup_1h_days"),
    "collectors": ("reported_at", "raw_days"),
    "windows_1m": ("at", "rollup_1m_days"),
    "dim_windows_1m": ("at", "rollup_1m_days"),
    "state_windows_1m": ("at", "rollup_1m_days"),
    "windows_1h": ("at", "rollup_1h_days"),
    "dim_windows_1h": ("at", "rollup_1h_days"),
    "state_windows_1h": ("at", "rollup_1h_days"),
    "usage_1h": ("at", "rollup_1h_days"),
    "touched_hours": ("hour", "rollup_1h_days"),
    "rolled_hours": ("hour", "rollup_1h_days"),
}
"""Table name to its time column and its setting in `Retention`."""

_SETTINGS = ("ttl_only_drop_parts", "materialize_ttl_recalculate_only")
"""Rows expire by part, which covers a day or a month. Existing parts only get a new expiry."""

_UNPARTITIONED = frozenset({"holdings", "holder_states", "cluster_objects", "collectors"})
"""Tables whose rows expire one by one: a part has rows of any age."""

MAX_TTL_DAYS = 18_250
"""Longest TTL (50 years); longer retention is unlimited. An expiry after 2106 would wrap to 1970 and drop all rows."""

_ENGINES = """
SELECT name, engine_full FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}
"""

_DAYS = re.compile(r"TTL toDateTime\(\w+\) \+ toIntervalDay\((\d+)\)")


_WITHOUT_MINUTES = """
INSERT INTO rolled_hours SELECT hour, version, seen, 1 FROM rolled_hours FINAL WHERE without_minutes = 0
"""
"""Marks every hour as without minutes, so that hours before a later change are not answered from minutes."""


def apply_retention(handle: Handle, retention: Retention) -> list[str]:
    """Apply the retention to the TTLs of the tables; return the statements that changed something."""
    statements = []
    for name, engine in sorted(handle.query(_ENGINES, parameters={"names": list(_TTLS)}).result_rows):
        column, setting = _TTLS[name]
        days = _days(retention, setting)
        found = _DAYS.search(engine)
        if days == (int(found[1]) if found else None):
            continue
        statements.append(render_ttl(name, column, days))
        if days == 0:
            statements.append(_WITHOUT_MINUTES)
    for statement in statements:
        for each in statement.split(";\n"):
            handle.command(each)
    return statements


def _days(retention: Retention, setting: str) -> int | None:
    """Return the days after which rows expire, or None for never."""
    days = int(getattr(retention, setting))
    if days == 0 and setting == "rollup_1m_days":
        return 0
    return days if 0 < days <= MAX_TTL_DAYS else None


def render_ttl(table: str, column: str, days: int | None) -> str:
    """Return the statements that set or remove the TTL of a table."""
    if days is None:
        return f"ALTER TABLE {table} REMOVE TTL"
    settings = ", ".join(f"{name} = 1" for name in _SETTINGS[table in _UNPARTITIONED :])
    return (
        f"ALTER TABLE {table} MODIFY SETTING {settings};\n"
        f"ALTER TABLE {table} MODIFY TTL toDateTime({column}) + INTERVAL {days} DAY"
    )


UTILIZATION = (CATALOGUE["gpu_utilization_ratio"], CATALOGUE["gpu_graphics_activity_ratio"])
"""Metrics that show use of a device; the first one present in a sample counts."""

WATTS, ENERGY = CATALOGUE["gpu_power_watts"], CATALOGUE["gpu_energy_joules_total"]

MAX_GPU_WATTS = 4000
"""Upper bound of a GPU's power. More energy than this means a clock step or a wrong reading, and is ignored."""

DRIVER_COUNTERS = frozenset(
    {
        "gpu_energy_joules_total",
        "gpu_ecc_corrected_errors_total",
        "gpu_ecc_uncorrected_errors_total",
        "gpu_ecc_location_errors_total",
        "gpu_sram_errors_total",
    }
)
"""Counters that restart at zero with the driver. Resets of other counters show as a decrease."""

REPORTER_COLUMNS = ", ".join(_REPORTER_KEY)

RANGE_CONDITION = """subject IN {subjects:Array(UInt32)}
    AND measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')"""

CHUNK_CONDITION = """subject >= {first_subject:UInt32} AND subject <= {last_subject:UInt32}
    AND measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')"""
"""Condition for consecutive subjects in an interval."""

_SHORTEST = min(READING_VALID_SECONDS.values())

VALID_NS = (
    "multiIf("
    + ", ".join(f"lane = '{lane.value}', {seconds * NANOS}" for lane, seconds in READING_VALID_SECONDS.items())
    + f", {_SHORTEST * NANOS})"
)
"""SQL expression: nanoseconds for which a reading is valid at most, by lane."""

NEXT_SAMPLE_NS = """leadInFrame(toUnixTimestamp64Nano(measured_at), 1, toInt64(9223372036854775807)) OVER (
        PARTITION BY subject ORDER BY measured_at
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"""
"""SQL expression: time of the next sample of the subject, which ends the validity of a row whatever its values."""


def valid_ns(lane: str) -> int:
    """Return the nanoseconds for which a reading of a lane is valid at most."""
    return NANOS * next((seconds for known, seconds in READING_VALID_SECONDS.items() if known.value == lane), _SHORTEST)


def value_expression(metric: Metric) -> str:
    """Return the SQL expression for the value of a metric in a row, or NULL."""
    if metric.storage is Storage.CORE:
        return f"`{metric.name}`"
    tail = "tail_float" if metric.type is ValueType.FLOAT else "tail_int"
    return f"if(has({tail}_ids, {metric.id}), {tail}_values[indexOf({tail}_ids, {metric.id})], NULL)"


def ambiguous_condition(metric: Metric) -> str:
    """Return the SQL condition for rows in which a metric is absent with `ambiguous_zero`."""
    is_ambiguous = f"(metric, reason) -> metric = '{metric.name}' AND reason = '{Reason.AMBIGUOUS_ZERO}'"
    return f"absence_set IN (SELECT id FROM absence_sets WHERE arrayExists({is_ambiguous}, metrics, reasons))"  # noqa: S608 - names are from the catalogue
