"""For how long each table keeps its rows: TTLs, which a hub's configuration may change at every start."""

import re

from gpufleet.model.retention import Retention
from gpufleet.stores.clickhouse.client import Handle

_KEPT = {
    "samples": ("measured_at", "raw_days"),
    "dim_samples": ("measured_at", "raw_days"),
    "processes": ("measured_at", "raw_days"),
    "samples_1m": ("at", "minute_days"),
    "state_seconds_1m": ("at", "minute_days"),
    "samples_1h": ("at", "hour_days"),
    "state_seconds_1h": ("at", "hour_days"),
    "usage_1h": ("at", "hour_days"),
    "touched_hours": ("hour", "hour_days"),
    "rolled_hours": ("hour", "hour_days"),
}
"""Table to its time, and the setting that says for how long."""

_SETTINGS = ("ttl_only_drop_parts", "materialize_ttl_recalculate_only")
"""Rows go by the part, which is of one day or month; and parts that are there already only learn when."""

_ENGINES = """
SELECT name, engine_full FROM system.tables WHERE database = currentDatabase() AND name IN {names:Array(String)}
"""

_DAYS = re.compile(r"TTL toDateTime\(\w+\) \+ toIntervalDay\((\d+)\)")


def set_retention(handle: Handle, retention: Retention) -> list[str]:
    """Bring the TTLs of the tables to what is wanted; return the statements that did, none where they were."""
    statements = []
    for name, engine in sorted(handle.query(_ENGINES, parameters={"names": list(_KEPT)}).result_rows):
        column, setting = _KEPT[name]
        days = getattr(retention, setting)
        found = _DAYS.search(engine)
        if days == (int(found[1]) if found else 0):
            continue
        statements.append(render_ttl(name, column, days))
    for statement in statements:
        for each in statement.split(";\n"):
            handle.command(each)
    return statements


def render_ttl(table: str, column: str, days: int) -> str:
    """Return the statements that have a table's rows go after so many days; never with 0."""
    if not days:
        return f"ALTER TABLE {table} REMOVE TTL"
    settings = ", ".join(f"{name} = 1" for name in _SETTINGS)
    return (
        f"ALTER TABLE {table} MODIFY SETTING {settings};\n"
        f"ALTER TABLE {table} MODIFY TTL toDateTime({column}) + INTERVAL {days} DAY"
    )
