"""Rollup of an hour: selection of the due hour, queries for its samples, computation and insert.

An hour is computed from all of its samples at once, and again if more samples arrive.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from gpufleet.model.catalogue import Metric, MetricKind, Storage
from gpufleet.model.stored.retention import Retention
from gpufleet.model.stored.samples import HourRollup
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.rollup.dims import DIM_SETTINGS, render_dim_states, render_dims
from gpufleet.stores.clickhouse.rollup.durations import compute_states, compute_usage
from gpufleet.stores.clickhouse.rollup.hours import (
    CONTEXT_NS,
    QUIET_SECONDS,
    HourState,
    complete_since,
    fetch_hour_states,
    record_rollup,
)
from gpufleet.stores.clickhouse.rollup.output import states_table, usage_table, windows_table
from gpufleet.stores.clickhouse.rollup.rows import SampleColumns, read_rows
from gpufleet.stores.clickhouse.rollup.tables import (
    CHUNK_CONDITION,
    ENERGY,
    HOUR_NS,
    MINUTE_NS,
    STATES_1H,
    STATES_1M,
    USAGE_1H,
    UTILIZATION,
    WATTS,
    WINDOWS_1H,
    WINDOWS_1M,
    metrics_stored_as,
)
from gpufleet.stores.clickhouse.rollup.windows import compute_windows, to_hour

ROWS_PER_CHUNK = 250_000
"""Maximum samples per chunk, if a chunk has several machines: about 300 MB with all core metrics."""

_MACHINES = """
SELECT cluster, machine, count() FROM %s
WHERE measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')
GROUP BY cluster, machine ORDER BY cluster, machine
SETTINGS max_threads = 1
"""


def next_due_hour(
    hours: Sequence[HourState], now: int, retention: Retention, is_quiet: Callable[[int], bool]
) -> HourState | None:
    """Return the oldest due hour: past, not marked recently, and with all samples still present.

    The rollup of an hour with expired samples is kept as it is. If the mark of an hour is in the future, because the
    clock was ahead, `is_quiet` decides whether it was marked recently.
    """
    complete = complete_since(now, retention)
    for one in hours:
        over = (one.hour * NANOS) + HOUR_NS <= now
        if not over or one.is_clean or one.hour * NANOS < complete:
            continue
        if one.marked + QUIET_SECONDS * NANOS <= now or (one.marked > now and is_quiet(one.hour)):
            return one
    return None


def roll_up_hour(
    handle: Handle, state: HourState, retention: Retention, stopped: Callable[[], bool]
) -> HourRollup | None:
    """Compute and write the rollups of an hour; None if stopped, which leaves the hour due."""
    began = time.monotonic()
    first = state.hour * NANOS
    version = max(time.time_ns(), state.version + 1)
    around = {"since": max(0, first - CONTEXT_NS), "until": first + HOUR_NS}
    minutes = retention.keeps_minutes
    machines = 0
    if stopped():
        return None
    for table, make in (("samples", roll_up_samples), ("dim_samples", roll_up_dims)):
        for chunk in _chunks(handle.query(_MACHINES % table, parameters=around).result_rows):
            if stopped():
                return None
            where = {"cluster": chunk.cluster, "first_machine": chunk.first, "last_machine": chunk.last}
            make(handle, where, first, version, minutes=minutes)
            machines += chunk.machines if make is roll_up_samples else 0
    record_rollup(handle, state, version, minutes=minutes)
    return HourRollup(start=first, machines=machines, seconds=time.monotonic() - began, again=state.version > 0)


def fetch_due_hour(handle: Handle, now: int, retention: Retention, is_quiet: Callable[[int], bool]) -> HourState | None:
    """Return the next due hour; see `next_due_hour`."""
    return next_due_hour(fetch_hour_states(handle, 0, now // NANOS), now, retention, is_quiet)


class MachineChunk(msgspec.Struct, frozen=True):
    """Consecutive machines of a cluster: first, last, and their number."""

    cluster: str
    first: str
    last: str
    machines: int


def _chunks(found: Sequence[tuple[str, str, int]]) -> Iterator[MachineChunk]:
    for cluster, rows in groupby(found, key=lambda row: row[0]):
        chunk: list[str] = []
        size = 0
        for _, machine, count in rows:
            if chunk and size + count > ROWS_PER_CHUNK:
                yield MachineChunk(cluster, chunk[0], chunk[-1], len(chunk))
                chunk, size = [], 0
            chunk.append(machine)
            size += count
        yield MachineChunk(cluster, chunk[0], chunk[-1], len(chunk))


_COUNTERS, _STATES = (
    metrics_stored_as(MetricKind.COUNTER, Storage.CORE),
    metrics_stored_as(MetricKind.STATE, Storage.CORE),
)
_CORE = [*metrics_stored_as(MetricKind.GAUGE, Storage.CORE), *_COUNTERS, *_STATES]
_CONTEXT_METRICS = [metric for metric in _CORE if metric in (*_COUNTERS, *_STATES, *UTILIZATION, WATTS)]
"""Metrics that stay valid after a sample, or that later samples are compared with."""

_SETTINGS = {
    "max_threads": 1,
    "do_not_merge_across_partitions_select_final": 1,
    "max_execution_time": 600,
    "output_format_arrow_low_cardinality_as_dictionary": 1,
}

_HEAD = (
    "machine, toLowCardinality(view) AS view_text, reader, lane, provenance, epoch, seq, driver_session, measured_at"
)
_LANE = "machine, view, reader, lane"
_TAILS = "tail_int_ids, tail_int_values, tail_float_ids, tail_float_values"


def _names(metrics: list[Metric]) -> str:
    return ", ".join(f"`{metric.name}`" for metric in metrics)


_HOUR = f"SELECT {_HEAD}, {_names(_CORE)}, {_TAILS} FROM samples WHERE {CHUNK_CONDITION}"  # noqa: S608 - names are from the catalogue; values are bound
_BEFORE = f"SELECT {_HEAD}, {_names(_CONTEXT_METRICS)}, {_TAILS} FROM samples FINAL WHERE {CHUNK_CONDITION}"  # noqa: S608 - as above
_AFTER = f"""
SELECT {_HEAD}, `{ENERGY.name}` FROM samples FINAL WHERE {CHUNK_CONDITION} AND view != '' AND isNotNull(`{ENERGY.name}`)
ORDER BY {_LANE}, measured_at LIMIT 1 BY {_LANE}
"""  # noqa: S608 - as above


def fetch_with_context(handle: Handle, where: dict[str, Any], first: int, *, final: bool) -> Any:
    """Return an Arrow table of the samples of the hour that starts at `first`, with context before and after it.

    Samples before the hour have no gauges; after the hour there is only the first energy reading per lane. Duplicate
    samples are removed only with `final`, which is slow.
    """
    pa = importlib.import_module("pyarrow")
    last = first + HOUR_NS
    hour = _query(handle, _HOUR.replace("FROM samples", "FROM samples FINAL") if final else _HOUR, where, first, last)
    before = _query(handle, _BEFORE, where, max(0, first - CONTEXT_NS), first)
    after = _query(handle, _AFTER, where, last, last + CONTEXT_NS)
    return pa.concat_tables([before, hour, after], promote_options="default").unify_dictionaries().combine_chunks()


def _query(handle: Handle, query: str, where: dict[str, Any], since: int, until: int) -> Any:
    return handle.query_arrow(query, parameters={**where, "since": since, "until": until}, settings=_SETTINGS)


_LONGEST = {"max_execution_time": 600}
"""Time limit of a statement, in seconds."""

_WRITING = {"optimize_on_insert": 0}
"""Inserted rows are ordered and unique already."""


def roll_up_samples(handle: Handle, where: dict[str, Any], first: int, version: int, *, minutes: bool) -> None:
    """Compute and write the rollups of samples."""
    rows = read_rows(fetch_with_context(handle, where, first, final=False))
    if rows.has_duplicates:
        rows = read_rows(fetch_with_context(handle, where, first, final=True))
    for name, table in _tables(where["cluster"], rows, first, version, minutes=minutes).items():
        if table.num_rows:
            handle.insert_arrow(name, table, settings=_WRITING)


def roll_up_dims(handle: Handle, where: dict[str, Any], first: int, version: int, *, minutes: bool) -> None:
    """Compute and write the rollups of values with dimensions."""
    last = first + HOUR_NS
    spans = {"since": max(0, first - CONTEXT_NS), "until": last, "first": first, "last": last, "version": version}
    for window in (MINUTE_NS, HOUR_NS) if minutes else (HOUR_NS,):
        for statement in (render_dims(window), render_dim_states(window)):
            handle.command(statement, parameters={**where, **spans}, settings={**_LONGEST, **DIM_SETTINGS})


def _tables(cluster: str, rows: SampleColumns, first: int, version: int, *, minutes: bool) -> dict[str, Any]:
    last = first + HOUR_NS
    by_minute_states, by_hour_states = compute_states(rows, first, last)
    tables = {
        STATES_1H.name: states_table(cluster, version, rows, by_hour_states),
        USAGE_1H.name: usage_table(cluster, version, rows, compute_usage(rows, first, last), first),
    }
    if minutes:
        by_minute = compute_windows(rows, first, last, MINUTE_NS)
        tables[WINDOWS_1M.name] = windows_table(WINDOWS_1M, cluster, version, rows, by_minute)
        tables[STATES_1M.name] = states_table(cluster, version, rows, by_minute_states)
        by_hour = to_hour(by_minute, rows, first)
    else:
        by_hour = compute_windows(rows, first, last, HOUR_NS)
    tables[WINDOWS_1H.name] = windows_table(WINDOWS_1H, cluster, version, rows, by_hour)
    return tables
