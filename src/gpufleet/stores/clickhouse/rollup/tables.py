"""The tables of minutes and hours.

A row counts only if its `version` is the one that `rolled_hours` names for its hour: what an attempt left that did not
come to its end, or an earlier one that knew less, is no answer.
"""

from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage, ValueType
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.schema import SUBJECT, TEXT, Column, Table, tables

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
