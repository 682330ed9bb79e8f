"""Rollup of an hour: selection of the due hour, queries for its samples, computation and insert.

An hour is computed from all of its samples at once, and again if more samples arrive.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage
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
from gpufleet.stores.clickhouse.rollup.rows import AMBIGUOUS_COLUMNS, SampleColumns, SubjectLanes, read_rows
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
    ambiguous_condition,
    metrics_stored_as,
    valid_ns,
)
from gpufleet.stores.clickhouse.rollup.windows import compute_windows, to_hour

ROWS_PER_CHUNK = 250_000
"""Maximum samples per chunk, if a chunk has several blocks of subjects: about 300 MB with all core metrics."""

SUBJECTS_PER_BLOCK = 64
"""Consecutive subjects that are in one chunk."""

_BLOCKS = """
SELECT intDiv(subject, {size:UInt32}) AS block, count(), uniqExact(subject) FROM %s
WHERE measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')
GROUP BY block ORDER BY block
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
    around = {"since": max(0, first - CONTEXT_NS), "until": first + HOUR_NS, "size": SUBJECTS_PER_BLOCK}
    minutes = retention.keeps_minutes
    subjects = 0
    if stopped():
        return None
    for table, make in (("samples", roll_up_samples), ("dim_samples", roll_up_dims)):
        for chunk in _chunks(handle.query(_BLOCKS % table, parameters=around).result_rows):
            if stopped():
                return None
            make(handle, {"first_subject": chunk.first, "last_subject": chunk.last}, first, version, minutes=minutes)
            subjects += chunk.subjects if make is roll_up_samples else 0
    record_rollup(handle, state, version, minutes=minutes)
    return HourRollup(start=first, subjects=subjects, seconds=time.monotonic() - began, again=state.version > 0)


def fetch_due_hour(handle: Handle, now: int, retention: Retention, is_quiet: Callable[[int], bool]) -> HourState | None:
    """Return the next due hour; see `next_due_hour`."""
    return next_due_hour(fetch_hour_states(handle, 0, now // NANOS), now, retention, is_quiet)


class SubjectChunk(msgspec.Struct, frozen=True):
    """Subjects from `first` to `last`, and the number of those with samples."""

    first: int
    last: int
    subjects: int


def _chunks(found: Sequence[tuple[int, int, int]]) -> Iterator[SubjectChunk]:
    blocks: list[tuple[int, int]] = []
    size = 0
    for block, rows, subjects in found:
        if blocks and size + rows > ROWS_PER_CHUNK:
            yield _joined(blocks)
            blocks, size = [], 0
        blocks.append((block, subjects))
        size += rows
    if blocks:
        yield _joined(blocks)


def _joined(blocks: Sequence[tuple[int, int]]) -> SubjectChunk:
    first, last = blocks[0][0] * SUBJECTS_PER_BLOCK, (blocks[-1][0] + 1) * SUBJECTS_PER_BLOCK - 1
    return SubjectChunk(first, last, sum(subjects for _, subjects in blocks))


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
    "output_format_arrow_compression_method": "none",
}

_HEAD = "subject, provenance, epoch, seq, driver_session, measured_at"
_TAILS = "tail_int_ids, tail_int_values, tail_float_ids, tail_float_values"


def _names(metrics: list[Metric]) -> str:
    return ", ".join(f"`{metric.name}`" for metric in metrics)


_AMBIGUOUS = ", ".join(
    f"{ambiguous_condition(CATALOGUE[name])} AS {column}" for name, column in AMBIGUOUS_COLUMNS.items()
)

_HOUR = f"SELECT {_HEAD}, {_names(_CORE)}, {_AMBIGUOUS}, {_TAILS} FROM samples WHERE {CHUNK_CONDITION}"  # noqa: S608 - names are from the catalogue; values are bound
_BEFORE = f"SELECT {_HEAD}, {_names(_CONTEXT_METRICS)}, {_TAILS} FROM samples WHERE {CHUNK_CONDITION}"  # noqa: S608 - as above
_AFTER = f"""
SELECT {_HEAD}, `{ENERGY.name}` FROM samples FINAL WHERE {CHUNK_CONDITION} AND isNotNull(`{ENERGY.name}`)
ORDER BY subject, measured_at LIMIT 1 BY subject
"""  # noqa: S608 - as above


def fetch_with_context(handle: Handle, where: dict[str, Any], first: int, *, final: bool) -> Any:
    """Return an Arrow table of the samples of the hour that starts at `first`, with context before and after it.

    Samples before the hour have no gauges; after the hour there is only the first energy reading per subject. Duplicate
    samples until the end of the hour are removed only with `final`, which is slow.
    """
    pa = importlib.import_module("pyarrow")
    last = first + HOUR_NS
    table = "FROM samples FINAL" if final else "FROM samples"
    hour = _query(handle, _HOUR.replace("FROM samples", table), where, first, last)
    before = _query(handle, _BEFORE.replace("FROM samples", table), where, max(0, first - CONTEXT_NS), first)
    after = _query(handle, _AFTER, where, last, last + CONTEXT_NS)
    return pa.concat_tables([before, hour, after], promote_options="default").unify_dictionaries().combine_chunks()


_LANES = """
SELECT number, lane, view != '' FROM subjects WHERE number >= {first_subject:UInt32} AND number <= {last_subject:UInt32}
ORDER BY number
"""


def fetch_lanes(handle: Handle, where: dict[str, Any]) -> SubjectLanes:
    """Return the lanes of a chunk's subjects."""
    rows = handle.query(_LANES, parameters=where).result_rows
    numbers, lanes, of_device = zip(*rows, strict=True) if rows else ((), (), ())
    return SubjectLanes(
        numbers=np.array(numbers, np.int64),
        valid_ns=np.array([valid_ns(lane) for lane in lanes], np.int64),
        of_device=np.array(of_device, np.bool_),
    )


def _query(handle: Handle, query: str, where: dict[str, Any], since: int, until: int) -> Any:
    return handle.query_arrow(query, parameters={**where, "since": since, "until": until}, settings=_SETTINGS)


_LONGEST = {"max_execution_time": 600}
"""Time limit of a statement, in seconds."""

_WRITING = {"optimize_on_insert": 0}
"""Inserted rows are ordered and unique already."""


def roll_up_samples(handle: Handle, where: dict[str, Any], first: int, version: int, *, minutes: bool) -> None:
    """Compute and write the rollups of samples."""
    samples = fetch_with_context(handle, where, first, final=False)
    lanes = fetch_lanes(handle, where)  # after the samples: every subject of them was stored before
    rows = read_rows(samples, lanes)
    if rows.has_duplicates:
        rows = read_rows(fetch_with_context(handle, where, first, final=True), lanes)
    for name, table in _tables(rows, first, version, minutes=minutes).items():
        if table.num_rows:
            handle.insert_arrow(name, table, settings=_WRITING)


def roll_up_dims(handle: Handle, where: dict[str, Any], first: int, version: int, *, minutes: bool) -> None:
    """Compute and write the rollups of values with dimensions."""
    last = first + HOUR_NS
    spans = {"since": max(0, first - CONTEXT_NS), "until": last, "first": first, "last": last, "version": version}
    for window in (MINUTE_NS, HOUR_NS) if minutes else (HOUR_NS,):
        for statement in (render_dims(window), render_dim_states(window)):
            handle.command(statement, parameters={**where, **spans}, settings={**_LONGEST, **DIM_SETTINGS})


def _tables(rows: SampleColumns, first: int, version: int, *, minutes: bool) -> dict[str, Any]:
    last = first + HOUR_NS
    by_minute_states, by_hour_states = compute_states(rows, first, last)
    tables = {
        STATES_1H.name: states_table(version, rows, by_hour_states),
        USAGE_1H.name: usage_table(version, rows, compute_usage(rows, first, last), first),
    }
    if minutes:
        by_minute = compute_windows(rows, first, last, MINUTE_NS)
        tables[WINDOWS_1M.name] = windows_table(WINDOWS_1M, version, rows, by_minute)
        tables[STATES_1M.name] = states_table(version, rows, by_minute_states)
        by_hour = to_hour(by_minute, rows, first)
    else:
        by_hour = compute_windows(rows, first, last, HOUR_NS)
    tables[WINDOWS_1H.name] = windows_table(WINDOWS_1H, version, rows, by_hour)
    return tables
