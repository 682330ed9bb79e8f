"""Making hours: each from all of its samples, in one go, and again when more of them came."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import msgspec

from gpufleet.model.retention import Retention
from gpufleet.model.stored import RolledHour
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.rollup.hours import (
    AROUND_NS,
    QUIET_SECONDS,
    Standing,
    fetch_standings,
    kept_since,
    write_rolled,
)
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS

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
    from gpufleet.stores.clickhouse.rollup.making import make_dims, make_samples

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
