"""One hour of some machines: asked for, made, and written."""

from typing import Any

from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.rollup.dims import SETTINGS, render_dim_states, render_dims
from gpufleet.stores.clickhouse.rollup.fetch import fetch_around
from gpufleet.stores.clickhouse.rollup.hours import AROUND_NS
from gpufleet.stores.clickhouse.rollup.lasting import states_of, usage_of
from gpufleet.stores.clickhouse.rollup.rows import Rows, read_rows
from gpufleet.stores.clickhouse.rollup.tables import (
    HOUR_NS,
    MINUTE_NS,
    STATES_1H,
    STATES_1M,
    USAGE_1H,
    WINDOWS_1H,
    WINDOWS_1M,
)
from gpufleet.stores.clickhouse.rollup.windows import coarser, windows_of
from gpufleet.stores.clickhouse.rollup.writing import states_table, usage_table, windows_table

_LONGEST = {"max_execution_time": 600}
"""Seconds that one statement may take."""

_WRITING = {"optimize_on_insert": 0}
"""What is inserted is in order and there once."""


def make_samples(handle: Handle, where: dict[str, Any], first: int, version: int, *, minutes: bool) -> None:
    """Make the rows of an hour of what has no dimensions, once from its samples."""
    rows = read_rows(fetch_around(handle, where, first, final=False))
    if rows.has_doubles:
        rows = read_rows(fetch_around(handle, where, first, final=True))
    for name, table in _tables(where["cluster"], rows, first, version, minutes=minutes).items():
        if table.num_rows:
            handle.insert_arrow(name, table, settings=_WRITING)


def make_dims(handle: Handle, where: dict[str, Any], first: int, version: int, *, minutes: bool) -> None:
    """Make the rows of an hour of what has dimensions."""
    last = first + HOUR_NS
    spans = {"since": max(0, first - AROUND_NS), "until": last, "first": first, "last": last, "version": version}
    for window in (MINUTE_NS, HOUR_NS) if minutes else (HOUR_NS,):
        for statement in (render_dims(window), render_dim_states(window)):
            handle.command(statement, parameters={**where, **spans}, settings={**_LONGEST, **SETTINGS})


def _tables(cluster: str, rows: Rows, first: int, version: int, *, minutes: bool) -> dict[str, Any]:
    last = first + HOUR_NS
    fine, whole = states_of(rows, first, last)
    made = {
        STATES_1H.name: states_table(cluster, version, rows, whole),
        USAGE_1H.name: usage_table(cluster, version, rows, usage_of(rows, first, last), first),
    }
    if minutes:
        by_minute = windows_of(rows, first, last, MINUTE_NS)
        made[WINDOWS_1M.name] = windows_table(WINDOWS_1M, cluster, version, rows, by_minute)
        made[STATES_1M.name] = states_table(cluster, version, rows, fine)
        by_hour = coarser(by_minute, rows, first)
    else:
        by_hour = windows_of(rows, first, last, HOUR_NS)
    made[WINDOWS_1H.name] = windows_table(WINDOWS_1H, cluster, version, rows, by_hour)
    return made
