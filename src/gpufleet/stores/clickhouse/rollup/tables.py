"""The tables of minutes and hours.

A row counts only if its `version` is the one that `rolled_hours` names for its hour: what an attempt left that did not
come to its end, or an earlier one that knew less, is no answer.

For how long each table keeps its rows: TTLs, which a hub's configuration may change at every start.

Expressions that the statements share, rendered from the catalogue. Everything in them is the catalogue's own.
"""

import re

from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage, ValueType
from gpufleet.model.stored.retention import SPEAKS_SECONDS, Retention
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.tables import SUBJECT, TEXT, Column, Table, tables

MINUTE_NS = 60 * NANOS
HOUR_NS = 3600 * NANOS

_AT = Column("at", "DateTime('UTC')", "Delta, ZSTD(1)")
_VERSION = Column("version", "UInt64")
_TELLER = (*SUBJECT, Column("reader", TEXT), Column("lane", TEXT), Column("provenance", TEXT))
_TELLER_KEY = ("cluster", "machine", "view", "reader", "lane", "provenance")
_LABELS = Column("labels", "Array(String)")
_SUMS = ("used_seconds", "idle_seconds", "power_joules", "power_seconds", "energy_joules", "energy_seconds")


def plain(kind: MetricKind, storage: Storage) -> list[Metric]:
    """Return the catalogue's metrics of a kind that are stored so."""
    return [metric for metric in CATALOGUE.values() if metric.kind is kind and metric.storage is storage]


def _value_columns(metric: Metric, floats: str) -> tuple[Column, ...]:
    """Return the columns of a core metric; `floats` is the type for what was measured as a float."""
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
            return (Column(f"{metric.name}_last", "Nullable(UInt8)"),)


def _windows(floats: str) -> tuple[Column, ...]:
    core = [
        metric
        for kind in (MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.STATE)
        for metric in plain(kind, Storage.CORE)
    ]
    return (
        *_TELLER,
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
    *_TELLER,
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
    *_TELLER,
    Column("metric", TEXT),
    _LABELS,
    Column("state", TEXT),
    _AT,
    _VERSION,
    Column("seconds", "Float64"),
)

_USAGE = (*_TELLER, _AT, _VERSION, *(Column(name, "Float64") for name in _SUMS))


def _table(name: str, columns: tuple[Column, ...], key: tuple[str, ...], partition: str) -> Table:
    return Table(name=name, columns=columns, key=key, version="version", partition=partition)


_DIM_KEY = (*_TELLER_KEY, "metric", "labels", "at")
_STATE_KEY = (*_TELLER_KEY, "metric", "labels", "state", "at")

WINDOWS_1M = _table("windows_1m", _windows("Float32"), (*_TELLER_KEY, "at"), "toDate(at)")
WINDOWS_1H = _table("windows_1h", _windows("Float64"), (*_TELLER_KEY, "at"), "toYYYYMM(at)")
DIMS_1M = _table("dim_windows_1m", _DIMS, _DIM_KEY, "toDate(at)")
DIMS_1H = _table("dim_windows_1h", _DIMS, _DIM_KEY, "toYYYYMM(at)")
STATES_1M = _table("state_windows_1m", _STATES, _STATE_KEY, "toDate(at)")
STATES_1H = _table("state_windows_1h", _STATES, _STATE_KEY, "toYYYYMM(at)")
USAGE_1H = _table("usage_1h", _USAGE, (*_TELLER_KEY, "at"), "toYYYYMM(at)")

TOUCHED_HOURS = Table(
    name="touched_hours",
    columns=(Column("hour", "DateTime('UTC')"), Column("marked_at", "UInt64")),
    key=("hour",),
    version="marked_at",
)
"""Hours that something was written to, which may be long after they ended; a mark comes before what it is for."""

ROLLED_HOURS = Table(
    name="rolled_hours",
    columns=(Column("hour", "DateTime('UTC')"), _VERSION, Column("seen", "UInt64"), Column("without_minutes", "UInt8")),
    key=("hour",),
    version="version",
)
"""Hours that were made, and the newest mark that was there before they were: a newer one has them made again."""

ROLLUP_TABLES = (
    *(WINDOWS_1M, WINDOWS_1H, DIMS_1M, DIMS_1H, STATES_1M, STATES_1H, USAGE_1H),
    TOUCHED_HOURS,
    ROLLED_HOURS,
)


def every_table() -> tuple[Table, ...]:
    """Return the tables of what was received, and those of what was made of it."""
    return (*tables(), *ROLLUP_TABLES)


_KEPT = {
    "samples": ("measured_at", "raw_days"),
    "dim_samples": ("measured_at", "raw_days"),
    "processes": ("measured_at", "raw_days"),
    "windows_1m": ("at", "minute_days"),
    "dim_windows_1m": ("at", "minute_days"),
    "state_windows_1m": ("at", "minute_days"),
    "windows_1h": ("at", "hour_days"),
    "dim_windows_1h": ("at", "hour_days"),
    "state_windows_1h": ("at", "hour_days"),
    "usage_1h": ("at", "hour_days"),
    "touched_hours": ("hour", "hour_days"),
    "rolled_hours": ("hour", "hour_days"),
}
"""Table to its time, and the setting that says for how long."""

_SETTINGS = ("ttl_only_drop_parts", "materialize_ttl_recalculate_only")
"""Rows go by the part, which is of one day or month; and parts that are there already only learn when."""

MOST_DAYS = 18_250
"""Rows that should stay longer (50 years) stay for ever: the end of a TTL is no later than 2106, and one that would be
begins anew in 1970, so that all rows go at once."""

_ENGINES = """
SELECT name, engine_full FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}
"""

_DAYS = re.compile(r"TTL toDateTime\(\w+\) \+ toIntervalDay\((\d+)\)")


_WITHOUT_MINUTES = """
INSERT INTO rolled_hours SELECT hour, version, seen, 1 FROM rolled_hours FINAL WHERE without_minutes = 0
"""
"""Says of every hour that its minutes are gone, so that none is looked for if they are ever made again."""


def set_retention(handle: Handle, retention: Retention) -> list[str]:
    """Bring the TTLs of the tables to what is wanted; return the statements that did, none where they were."""
    statements = []
    for name, engine in sorted(handle.query(_ENGINES, parameters={"names": list(_KEPT)}).result_rows):
        column, setting = _KEPT[name]
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
    """Return after how many days rows go, or None for never."""
    days = int(getattr(retention, setting))
    if days == 0 and setting == "minute_days":
        return 0
    return days if 0 < days <= MOST_DAYS else None


def render_ttl(table: str, column: str, days: int | None) -> str:
    """Return the statements that have a table's rows go after so many days, or never."""
    if days is None:
        return f"ALTER TABLE {table} REMOVE TTL"
    settings = ", ".join(f"{name} = 1" for name in _SETTINGS)
    return (
        f"ALTER TABLE {table} MODIFY SETTING {settings};\n"
        f"ALTER TABLE {table} MODIFY TTL toDateTime({column}) + INTERVAL {days} DAY"
    )


BUSY = (CATALOGUE["gpu_utilization_ratio"], CATALOGUE["gpu_graphics_activity_ratio"])
"""What says whether a device is used: the first that a sample has."""

WATTS, ENERGY = CATALOGUE["gpu_power_watts"], CATALOGUE["gpu_energy_joules_total"]

DRAWS_AT_MOST_WATTS = 4000
"""No GPU draws as much. Energy that would have taken more was not drawn: a clock was set, or a reading was wrong."""

OF_THE_DRIVER = frozenset(
    {
        "gpu_energy_joules_total",
        "gpu_ecc_corrected_errors_total",
        "gpu_ecc_uncorrected_errors_total",
        "gpu_ecc_location_errors_total",
        "gpu_sram_errors_total",
    }
)
"""Counters that begin at zero with every load of the driver; what others do then is seen where they fall."""

TELLER = "cluster, machine, view, reader, lane, provenance"

RANGE = """cluster = {cluster:String} AND machine IN {machines:Array(String)}
    AND measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')"""

CHUNK = """cluster = {cluster:String} AND machine >= {first_machine:String} AND machine <= {last_machine:String}
    AND measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')"""
"""What a statement reads: neighbouring machines of a cluster, and a span of time."""

_SHORTEST = min(SPEAKS_SECONDS.values())

SPEAKS_NS = (
    "multiIf("
    + ", ".join(f"lane = '{lane.value}', {seconds * NANOS}" for lane, seconds in SPEAKS_SECONDS.items())
    + f", {_SHORTEST * NANOS})"
)
"""Nanoseconds for which a reading of a row's lane speaks at most."""

NEXT = """leadInFrame(toUnixTimestamp64Nano(measured_at), 1, toInt64(9223372036854775807)) OVER (
        PARTITION BY cluster, machine, view, reader, lane ORDER BY measured_at
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"""
"""When the next sample of a row's lane was measured: there the row ends to speak, whatever that sample says."""


def speaks_ns(lane: str) -> int:
    """Return the nanoseconds for which a reading of a lane speaks at most."""
    return NANOS * next((seconds for known, seconds in SPEAKS_SECONDS.items() if known.value == lane), _SHORTEST)


def column(metric: Metric) -> str:
    """Return what a row has of a metric, or NULL."""
    if metric.storage is Storage.CORE:
        return f"`{metric.name}`"
    tail = "tail_float" if metric.type is ValueType.FLOAT else "tail_int"
    return f"if(has({tail}_ids, {metric.id}), {tail}_values[indexOf({tail}_ids, {metric.id})], NULL)"
