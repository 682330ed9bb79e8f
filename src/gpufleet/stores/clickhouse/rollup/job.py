"""Making hours: each from all of its samples, in one go, and again when more of them came."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from gpufleet.model.retention import Retention
from gpufleet.model.stored import RolledHour
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.rollup.hours import (
    AROUND_NS,
    QUIET_SECONDS,
    Standing,
    fetch_standings,
    write_rolled,
)
from gpufleet.stores.clickhouse.rollup.states import render_states
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS, MINUTE_NS
from gpufleet.stores.clickhouse.rollup.usage import render_hours
from gpufleet.stores.clickhouse.rollup.values import render_values

MACHINES_AT_ONCE = 64
"""Of which minutes are made in one statement: so much is in memory. Some 200 MB of nodes with eight GPUs each."""

LONGEST_SECONDS = 600
"""One statement may take."""

_MACHINES = """
SELECT DISTINCT cluster, machine FROM samples
WHERE measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')
ORDER BY cluster, machine
"""


def next_hour(standings: Sequence[Standing], now: int, retention: Retention) -> Standing | None:
    """Return the oldest hour that should be made: it is over, has not been written to for a while, and is all there.

    Of an hour that the retention of samples has begun to take, what was made before stands.
    """
    # The day that samples go by is the server's: a day more, so that none is made of a part of its samples.
    kept = now - (retention.raw_days - 1) * 86_400 * NANOS if retention.raw_days else 0
    for one in standings:
        over = (one.hour * NANOS) + HOUR_NS <= now
        if over and not one.is_clean and one.marked + QUIET_SECONDS * NANOS <= now and one.hour * NANOS >= kept:
            return one
    return None


def roll_hour(handle: Handle, standing: Standing, stopped: Callable[[], bool]) -> RolledHour | None:
    """Make an hour; None where it was stopped on the way, which leaves the hour as unmade as it was."""
    began = time.monotonic()
    first = standing.hour * NANOS
    last = first + HOUR_NS
    version = max(time.time_ns(), standing.version + 1)
    around = {"since": max(0, first - AROUND_NS), "until": last + AROUND_NS}
    spans = {"first": first, "last": last, "version": version}
    machines = 0
    found = handle.query(_MACHINES, parameters=around).result_rows
    for cluster, ids in _chunks(found):
        where = {"cluster": cluster, "machines": ids, **spans}
        for window in (MINUTE_NS, 3600 * NANOS):
            if stopped():
                return None
            _run(handle, render_values(window), {**where, **around})
            _run(handle, render_states(window), {**where, **around})
        _run(handle, render_hours(), {**where, **around})
        machines += len(ids)
    write_rolled(handle, standing, version)
    return RolledHour(start=first, machines=machines, seconds=time.monotonic() - began, again=standing.version > 0)


def fetch_next(handle: Handle, now: int, retention: Retention) -> Standing | None:
    """Ask which hour should be made next."""
    return next_hour(fetch_standings(handle, 0, now // NANOS), now, retention)


def _run(handle: Handle, statement: str, parameters: dict[str, object]) -> None:
    # What it inserts may be what an attempt before inserted: that is no repetition, for its version is another.
    handle.command(statement, parameters=parameters, settings={"max_execution_time": LONGEST_SECONDS})


def _chunks(found: Sequence[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    for cluster, rows in groupby(found, key=lambda row: row[0]):
        ids = [machine for _, machine in rows]
        for begin in range(0, len(ids), MACHINES_AT_ONCE):
            yield cluster, ids[begin : begin + MACHINES_AT_ONCE]
