"""The tables of minutes and hours.

A row counts only if its `version` is the one that `rolled_hours` names for its hour: what an attempt left that did not
come to its end, or an earlier one that knew less, is no answer.
"""

from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.schema import SUBJECT, TEXT, Column, Table, tables

MINUTE_NS = 60 * NANOS
HOUR_NS = 3600 * NANOS

_AT = Column("at", "DateTime('UTC')", "Delta, ZSTD(1)")
_VERSION = Column("version", "UInt64")
_TELLER = (*SUBJECT, Column("reader", TEXT), Column("lane", TEXT), Column("provenance", TEXT))
_TELLER_KEY = ("cluster", "machine", "view", "reader", "lane", "provenance")

_ROLLED = (
    *_TELLER,
    _AT,
    _VERSION,
    Column("samples", "UInt32"),
    Column("gauge_ids", "Array(UInt16)"),
    *(Column(f"gauge_{part}", "Array(Float64)") for part in ("min", "max", "sum")),
    Column("gauge_count", "Array(UInt32)"),
    Column("int_counter_ids", "Array(UInt16)"),
    *(Column(f"int_counter_{part}", "Array(UInt64)") for part in ("first", "last", "increase")),
    Column("float_counter_ids", "Array(UInt16)"),
    *(Column(f"float_counter_{part}", "Array(Float64)") for part in ("first", "last", "increase")),
    Column("state_ids", "Array(UInt16)"),
    Column("state_last", "Array(UInt8)"),
)

_STATES = (
    *_TELLER,
    Column("metric", TEXT),
    Column("state", TEXT),
    _AT,
    _VERSION,
    Column("seconds", "Float64"),
)

_USAGE = (
    *_TELLER,
    _AT,
    _VERSION,
    *(
        Column(name, "Float64")
        for name in ("used_seconds", "idle_seconds", "power_joules", "power_seconds", "energy_joules", "energy_seconds")
    ),
)


def _table(name: str, columns: tuple[Column, ...], key: tuple[str, ...], partition: str) -> Table:
    return Table(name=name, columns=columns, key=key, version="version", partition=partition)


SAMPLES_1M = _table("samples_1m", _ROLLED, (*_TELLER_KEY, "at"), "toDate(at)")
SAMPLES_1H = _table("samples_1h", _ROLLED, (*_TELLER_KEY, "at"), "toYYYYMM(at)")
STATES_1M = _table("state_seconds_1m", _STATES, (*_TELLER_KEY, "metric", "state", "at"), "toDate(at)")
STATES_1H = _table("state_seconds_1h", _STATES, (*_TELLER_KEY, "metric", "state", "at"), "toYYYYMM(at)")
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
    columns=(Column("hour", "DateTime('UTC')"), _VERSION, Column("seen", "UInt64")),
    key=("hour",),
    version="version",
)
"""Hours that were made, and the newest mark that was there before they were: a newer one has them made again."""

ROLLUP_TABLES = (SAMPLES_1M, SAMPLES_1H, STATES_1M, STATES_1H, USAGE_1H, TOUCHED_HOURS, ROLLED_HOURS)


def every_table() -> tuple[Table, ...]:
    """Return the tables of what was received, and those of what was made of it."""
    return (*tables(), *ROLLUP_TABLES)
