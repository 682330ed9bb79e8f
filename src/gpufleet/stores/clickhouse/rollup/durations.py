"""Durations within an hour: seconds per state, use and energy. Pure, over arrays.

A sample is valid until the next sample of its subject, whatever its values, and for `READING_VALID_SECONDS` at most. So
the seconds of a window can add up to less than the window.
"""

import msgspec
import numpy as np

from gpufleet.model.api.usage import USED_RATIO
from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind
from gpufleet.model.stored.retention import MAX_COUNTER_GAP_SECONDS
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.rows import Array, SampleColumns
from gpufleet.stores.clickhouse.rollup.tables import ENERGY, MAX_GPU_WATTS, MINUTE_NS, UTILIZATION, WATTS
from gpufleet.stores.clickhouse.rollup.windows import growth, number_keys

_STATES = [metric for metric in CATALOGUE.values() if metric.kind is MetricKind.STATE]
_VALUES = 256


class StateDurations(msgspec.Struct, frozen=True):
    """Seconds of states within windows: a row of the reporter, metric id, state position, window start, seconds."""

    row: Array
    metric: Array
    state: Array
    start: Array
    seconds: Array


class _Pieces(msgspec.Struct, frozen=True):
    """Intervals of states of reporters."""

    row: Array
    metric: Array
    state: Array
    since: Array
    until: Array


def compute_states(rows: SampleColumns, first: int, last: int) -> tuple[StateDurations, StateDurations]:
    """Return the seconds of each state of each reporter, per minute of [first, last) and in total."""
    pieces = _pieces(rows, first, last)
    minutes = _sum_durations(rows, _by_minute(pieces, first), first, MINUTE_NS)
    return minutes, _sum_durations(rows, pieces, first, last - first)


def _pieces(rows: SampleColumns, first: int, last: int) -> _Pieces:
    found: list[tuple[Array, ...]] = []
    since, until = np.maximum(rows.at, first), np.minimum(np.minimum(rows.next_at, rows.valid_until), last)
    for metric in _STATES:
        cells = rows.cells.get(metric.id)
        if cells is None:
            continue
        valid = since[cells.rows] < until[cells.rows]
        row, state = cells.rows[valid], cells.values[valid].astype(np.int64) % _VALUES
        # Adjacent intervals of the same state are merged: an hour of one state is a single interval.
        continues = np.zeros(len(row), bool)
        continues[1:] = (
            (rows.reporter[row[1:]] == rows.reporter[row[:-1]])
            & (state[1:] == state[:-1])
            & (since[row[1:]] == until[row[:-1]])
        )
        starts = np.flatnonzero(~continues)
        ends = np.append(starts[1:], len(row))[: len(starts)] - 1
        row, state, ending = row[starts], state[starts], row[ends]
        found.append((row, np.full(len(row), metric.id), state, since[row], until[ending]))
    if not found:
        return _Pieces(*[np.zeros(0, np.int64)] * 5)
    return _Pieces(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _by_minute(pieces: _Pieces, first: int) -> _Pieces:
    begins, ends = (pieces.since - first) // MINUTE_NS, (pieces.until - 1 - first) // MINUTE_NS
    counts = ends - begins + 1
    which = np.repeat(np.arange(len(counts)), counts)
    minute = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + begins[which]
    start = first + minute * MINUTE_NS
    return _Pieces(
        pieces.row[which],
        pieces.metric[which],
        pieces.state[which],
        np.maximum(pieces.since[which], start),
        np.minimum(pieces.until[which], start + MINUTE_NS),
    )


def _sum_durations(rows: SampleColumns, pieces: _Pieces, first: int, window_ns: int) -> StateDurations:
    window = (pieces.since - first) // window_ns
    order = np.lexsort((window, pieces.state, pieces.metric, rows.reporter[pieces.row]))
    row, metric, state = pieces.row[order], pieces.metric[order], pieces.state[order]
    window, lasted = window[order], (pieces.until - pieces.since)[order]
    keys = (rows.reporter[row], metric, state, window)
    starts = _changes(keys)
    sums = np.add.reduceat(lasted, starts) if len(starts) else lasted
    return StateDurations(row[starts], metric[starts], state[starts], first + window[starts] * window_ns, sums / NANOS)


def _changes(keys: tuple[Array, ...]) -> Array:
    """Return the positions at which any key changes, including the first position."""
    changed = np.ones(len(keys[0]), bool)
    changed[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return np.flatnonzero(changed)


class HourUsage(msgspec.Struct, frozen=True):
    """Usage of each reporter's device within an hour: a row of the reporter, and the columns of `usage_1h`."""

    row: Array
    sums: dict[str, Array]


def compute_usage(rows: SampleColumns, first: int, last: int) -> HourUsage:
    """Return the usage of each device in [first, last), by reporter.

    A device is used while its newest utilisation is at least `USED_RATIO`, and idle while it is less. Energy is the
    increase of its counter, distributed evenly between readings at most `MAX_COUNTER_GAP_SECONDS` apart. It is unknown
    if it exceeds `MAX_GPU_WATTS`.
    """
    reporters, firsts, number, _ = number_keys(rows.reporter)
    count = len(reporters)
    lasted = np.minimum(np.minimum(rows.next_at, rows.valid_until), last) - np.maximum(rows.at, first)
    seconds = np.where(rows.of_device, np.maximum(lasted, 0), 0) / NANOS
    busy, watts = _dense(rows, *UTILIZATION), _dense(rows, WATTS)
    joules, joined = _energy(rows, first, last)

    def by_reporter(weights: Array) -> Array:
        return np.bincount(number, weights, count)

    sums = {
        "used_seconds": by_reporter(np.where(busy >= USED_RATIO, seconds, 0)),
        "idle_seconds": by_reporter(np.where(busy < USED_RATIO, seconds, 0)),
        "power_joules": by_reporter(np.where(np.isnan(watts), 0, watts * seconds)),
        "power_seconds": by_reporter(np.where(np.isnan(watts), 0, seconds)),
        "energy_joules": by_reporter(joules),
        "energy_seconds": by_reporter(joined),
    }
    known = sums["used_seconds"] + sums["idle_seconds"] + sums["power_seconds"] + sums["energy_seconds"] > 0
    return HourUsage(firsts[known], {name: of[known] for name, of in sums.items()})


def _dense(rows: SampleColumns, *metrics: Metric) -> Array:
    """Return row to its value of the first present metric; NaN if none is present."""
    found = np.full(len(rows.at), np.nan)
    for metric in reversed(metrics):
        cells = rows.cells.get(metric.id)
        if cells is not None:
            found[cells.rows] = cells.values
    return found


def _energy(rows: SampleColumns, first: int, last: int) -> tuple[Array, Array]:
    """Return row to joules and seconds since the previous reading, limited to the hour."""
    joules, seconds = np.zeros(len(rows.at)), np.zeros(len(rows.at))
    cells = rows.cells.get(ENERGY.id)
    if cells is None or len(cells.rows) < 2:
        return joules, seconds
    at, subject = rows.at[cells.rows], rows.subject[cells.rows]
    before, after, row = at[:-1], at[1:], cells.rows[1:]
    within = np.minimum(after, last) - np.maximum(before, first)
    apart = after - before
    grown = growth(cells, rows, by_driver=True)[1:]
    known = (
        (subject[1:] == subject[:-1]) & rows.of_device[row] & (apart <= MAX_COUNTER_GAP_SECONDS * NANOS) & (within > 0)
    )
    known &= grown <= apart / NANOS * MAX_GPU_WATTS
    joules[row[known]] = grown[known] * within[known] / apart[known]
    seconds[row[known]] = within[known] / NANOS
    return joules, seconds
