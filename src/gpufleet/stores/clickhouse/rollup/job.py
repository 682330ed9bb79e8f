"""Making hours: each from all of its samples, in one go, and again when more of them came.

One hour of some machines: asked for, made, and written.

Asks for the samples that minutes and hours are made of: an hour's, and those around it that have a say in it.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from gpufleet.model.catalogue import Metric, MetricKind, Storage
from gpufleet.model.stored.retention import Retention
from gpufleet.model.stored.samples import RolledHour
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.rollup.dims import SETTINGS, render_dim_states, render_dims
from gpufleet.stores.clickhouse.rollup.durations import states_of, usage_of
from gpufleet.stores.clickhouse.rollup.hours import (
    AROUND_NS,
    QUIET_SECONDS,
    Standing,
    fetch_standings,
    kept_since,
    write_rolled,
)
from gpufleet.stores.clickhouse.rollup.rows import Rows, read_rows
from gpufleet.stores.clickhouse.rollup.tables import (
    BUSY,
    CHUNK,
    ENERGY,
    HOUR_NS,
    MINUTE_NS,
    STATES_1H,
    STATES_1M,
    USAGE_1H,
    WATTS,
    WINDOWS_1H,
    WINDOWS_1M,
    plain,
)
from gpufleet.stores.clickhouse.rollup.windows import coarser, windows_of
from gpufleet.stores.clickhouse.rollup.writing import states_table, usage_table, windows_table

ROWS_AT_ONCE = 250_000
"""Samples that are made something of at once, or those of one machine: some 300 MB where each has the core metrics."""

_MACHINES = """
SELECT cluster, machine, count() FROM %s
WHERE measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')
GROUP BY cluster, machine ORDER BY cluster, machine
SETTINGS max_threads = 1
"""


def next_hour(
    standings: Sequence[Standing], now: int, retention: Retention, is_quiet: Callable[[int], bool]
) -> Standing | None:
    """Return the oldest hour that should be made: it is over, has not been written to for a while, and is all there.

    Of an hour that the retention of samples has begun to take, what was made before stands. Of one whose mark is later
    than now, as the clock was ahead, `is_quiet` says whether it has not been written to.
    """
    kept = kept_since(now, retention)
    for one in standings:
        over = (one.hour * NANOS) + HOUR_NS <= now
        if not over or one.is_clean or one.hour * NANOS < kept:
            continue
        if one.marked + QUIET_SECONDS * NANOS <= now or (one.marked > now and is_quiet(one.hour)):
            return one
    return None


def roll_hour(
    handle: Handle, standing: Standing, retention: Retention, stopped: Callable[[], bool]
) -> RolledHour | None:
    """Make an hour; None where it was stopped on the way, which leaves the hour as unmade as it was."""

    began = time.monotonic()
    first = standing.hour * NANOS
    version = max(time.time_ns(), standing.version + 1)
    around = {"since": max(0, first - AROUND_NS), "until": first + HOUR_NS}
    minutes = retention.keeps_minutes
    machines = 0
    if stopped():
        return None
    for table, make in (("samples", make_samples), ("dim_samples", make_dims)):
        for chunk in _chunks(handle.query(_MACHINES % table, parameters=around).result_rows):
            if stopped():
                return None
            where = {"cluster": chunk.cluster, "first_machine": chunk.first, "last_machine": chunk.last}
            make(handle, where, first, version, minutes=minutes)
            machines += chunk.machines if make is make_samples else 0
    write_rolled(handle, standing, version, minutes=minutes)
    return RolledHour(start=first, machines=machines, seconds=time.monotonic() - began, again=standing.version > 0)


def fetch_next(handle: Handle, now: int, retention: Retention, is_quiet: Callable[[int], bool]) -> Standing | None:
    """Ask which hour should be made next; see `next_hour`."""
    return next_hour(fetch_standings(handle, 0, now // NANOS), now, retention, is_quiet)


class Chunk(msgspec.Struct, frozen=True):
    """Machines of a cluster that are neighbours: from the first to the last, and how many."""

    cluster: str
    first: str
    last: str
    machines: int


def _chunks(found: Sequence[tuple[str, str, int]]) -> Iterator[Chunk]:
    for cluster, rows in groupby(found, key=lambda row: row[0]):
        chunk: list[str] = []
        held = 0
        for _, machine, count in rows:
            if chunk and held + count > ROWS_AT_ONCE:
                yield Chunk(cluster, chunk[0], chunk[-1], len(chunk))
                chunk, held = [], 0
            chunk.append(machine)
            held += count
        yield Chunk(cluster, chunk[0], chunk[-1], len(chunk))


_COUNTERS, _STATES = plain(MetricKind.COUNTER, Storage.CORE), plain(MetricKind.STATE, Storage.CORE)
_CORE = [*plain(MetricKind.GAUGE, Storage.CORE), *_COUNTERS, *_STATES]
_SPEAKING = [metric for metric in _CORE if metric in (*_COUNTERS, *_STATES, *BUSY, WATTS)]
"""What a sample says for longer than its instant, or a later one is compared with."""

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


_HOUR = f"SELECT {_HEAD}, {_names(_CORE)}, {_TAILS} FROM samples WHERE {CHUNK}"  # noqa: S608 - the names are the catalogue's own; what is asked for is bound
_BEFORE = f"SELECT {_HEAD}, {_names(_SPEAKING)}, {_TAILS} FROM samples FINAL WHERE {CHUNK}"  # noqa: S608 - as above
_AFTER = f"""
SELECT {_HEAD}, `{ENERGY.name}` FROM samples FINAL WHERE {CHUNK} AND view != '' AND isNotNull(`{ENERGY.name}`)
ORDER BY {_LANE}, measured_at LIMIT 1 BY {_LANE}
"""  # noqa: S608 - as above


def fetch_around(handle: Handle, where: dict[str, Any], first: int, *, final: bool) -> Any:
    """Return an Arrow table of the samples of an hour that begins at `first`, and of those with a say in it.

    Those before the hour lack gauges, and after it there is the first reading of energy alone. A sample of the hour
    that came more than once is there as often, unless `final`: that is worth its price only where there is one.
    """
    pa = importlib.import_module("pyarrow")
    last = first + HOUR_NS
    hour = _ask(handle, _HOUR.replace("FROM samples", "FROM samples FINAL") if final else _HOUR, where, first, last)
    before = _ask(handle, _BEFORE, where, max(0, first - AROUND_NS), first)
    after = _ask(handle, _AFTER, where, last, last + AROUND_NS)
    return pa.concat_tables([before, hour, after], promote_options="default").unify_dictionaries().combine_chunks()


def _ask(handle: Handle, query: str, where: dict[str, Any], since: int, until: int) -> Any:
    return handle.query_arrow(query, parameters={**where, "since": since, "until": until}, settings=_SETTINGS)


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
