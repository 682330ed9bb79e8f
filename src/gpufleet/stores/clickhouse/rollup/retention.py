"""For how long each table keeps its rows: TTLs, which a hub's configuration may change at every start."""

import re

from gpufleet.model.retention import Retention
from gpufleet.stores.clickhouse.client import Handle

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
