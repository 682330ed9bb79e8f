"""Aggregates of windows: gauges, counters and last states. Pure, over arrays.

- Gauge: minimum, maximum, sum and count.
- Counter: last reading and increase. An increase belongs to the window of the later of its two readings, so minutes
  add up to their hour. The earlier reading may be up to `MAX_COUNTER_GAP_SECONDS` before the hour. It is the previous
  reading by sequence number, which differs from the order of time if a clock moved back. After a decrease or a driver
  restart a counter starts from zero, and the increase is the reading itself. An energy increase that exceeds
  `MAX_GPU_WATTS` is ignored.
- State: last state.

Absent values are not included, except that a gauge with an `ambiguous_zero` reading has no sum: NaN. Its minimum and
maximum are those of the values, or NaN.
"""

import msgspec
import numpy as np

from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.rows import Array, MetricCells, SampleColumns
from gpufleet.stores.clickhouse.rollup.tables import DRIVER_COUNTERS, ENERGY, MAX_GPU_WATTS

_KINDS = {metric.id: metric.kind for metric in CATALOGUE.values()}
_OF_THE_DRIVER = frozenset(CATALOGUE[name].id for name in DRIVER_COUNTERS)


class GaugeWindows(msgspec.Struct, frozen=True):
    """Minimum, maximum, sum and count of a gauge in the windows `at` (indexes)."""

    at: Array
    low: Array
    high: Array
    total: Array
    count: Array


class CounterWindows(msgspec.Struct, frozen=True):
    """Last reading and increase of a counter in the windows `at`."""

    at: Array
    last: Array
    increase: Array


class StateWindows(msgspec.Struct, frozen=True):
    """Last state in the windows `at`, and its time in nanoseconds since 1970."""

    at: Array
    last: Array
    last_at: Array


class WindowSet(msgspec.Struct, frozen=True):
    """Windows in order of reporter and time, with their aggregates.

    Attributes:
        first_row: window to a row of its reporter.
        start: window to its start, nanoseconds since 1970.
        samples: window to its number of samples.
        gauges, counters, states: metric id to aggregates.
    """

    first_row: Array
    start: Array
    samples: Array
    gauges: dict[int, GaugeWindows]
    counters: dict[int, CounterWindows]
    states: dict[int, StateWindows]


def compute_windows(rows: SampleColumns, first: int, last: int, window_ns: int) -> WindowSet:
    """Aggregate the samples in [first, last) to windows of `window_ns` that start at `first`."""
    inside = np.flatnonzero((rows.at >= first) & (rows.at < last))
    slots = (last - first) // window_ns
    keys = rows.reporter[inside] * slots + (rows.at[inside] - first) // window_ns
    found, firsts, numbers, samples = number_keys(keys)
    number = np.full(len(rows.at), -1)
    number[inside] = numbers
    places = _Selections(number)
    gauges: dict[int, GaugeWindows] = {}
    counters: dict[int, CounterWindows] = {}
    states: dict[int, StateWindows] = {}
    for id_, cells in {**rows.cells, **rows.means}.items():
        where = places.of(cells.rows)
        if not len(where.at):
            continue
        match _KINDS.get(id_):
            case MetricKind.GAUGE:
                gauges[id_] = _gauge(cells.values, where)
            case MetricKind.COUNTER:
                counters[id_] = _counter(cells, _reading_growth(id_, cells, rows, last), where)
            case MetricKind.STATE:
                ends, times = where.ends, rows.at[cells.rows]
                states[id_] = StateWindows(where.at, where.picked(cells.values)[ends], where.picked(times)[ends])
    return WindowSet(inside[firsts], first + found % slots * window_ns, samples, gauges, counters, states)


def to_hour(fine: WindowSet, rows: SampleColumns, first: int) -> WindowSet:
    """Aggregate minutes to the hour that starts at `first`: the same result as from samples."""
    if not len(fine.start):
        return fine
    keys = rows.reporter[fine.first_row]
    _, firsts, parent, _ = number_keys(keys)
    gauges: dict[int, GaugeWindows] = {}
    counters: dict[int, CounterWindows] = {}
    states: dict[int, StateWindows] = {}
    for id_, gauge in fine.gauges.items():
        at, starts, _ = find_runs(parent[gauge.at])
        gauges[id_] = GaugeWindows(
            at,
            np.fmin.reduceat(gauge.low, starts),
            np.fmax.reduceat(gauge.high, starts),
            np.add.reduceat(gauge.total, starts),
            np.add.reduceat(gauge.count, starts),
        )
    for id_, counter in fine.counters.items():
        at, starts, ends = find_runs(parent[counter.at])
        counters[id_] = CounterWindows(at, counter.last[ends], np.add.reduceat(counter.increase, starts))
    for id_, state in fine.states.items():
        at, _, ends = find_runs(parent[state.at])
        states[id_] = StateWindows(at, state.last[ends], state.last_at[ends])
    samples = np.bincount(parent, fine.samples, len(firsts)).astype(np.int64)
    return WindowSet(fine.first_row[firsts], np.full(len(firsts), first), samples, gauges, counters, states)


def _reading_growth(id_: int, cells: MetricCells, rows: SampleColumns, last: int) -> Array:
    """Return the increase of each reading before `last` over the previous reading by sequence number.

    If the clock moved back between the two readings, the increase is unknown, because readings in between may be out of
    range. A subject that decreases more often by sequence number than by time is compared by time: its numbers do not
    follow the measurements (a relay renumbered its batches).
    """
    by_driver = id_ in _OF_THE_DRIVER
    if rows.sequence is None:
        return _plausible(id_, growth(cells, rows, by_driver=by_driver), rows.at[cells.rows])
    inside = np.flatnonzero(rows.at[cells.rows] < last)
    number = number_keys(rows.subject[cells.rows[inside]])[2]
    by_sequence = np.argsort(rows.sequence[cells.rows[inside]])
    grown, decreases = np.zeros((2, len(inside)), cells.values.dtype), []
    for target, order in zip(grown, (np.arange(len(inside)), by_sequence), strict=True):
        ordered = MetricCells(cells.rows[inside[order]], cells.values[inside[order]])
        at, values, mine = rows.at[ordered.rows], ordered.values, number[order]
        more = growth(ordered, rows, by_driver=by_driver)
        more[1:] = np.where(at[1:] >= at[:-1], more[1:], 0)
        target[order] = _plausible(id_, more, at)
        decreased = (values[1:] < values[:-1]) & (mine[1:] == mine[:-1])
        decreases.append(np.bincount(mine[1:][decreased], minlength=int(number.max(initial=-1)) + 1))
    found = np.zeros_like(cells.values)
    found[inside] = np.where((decreases[1] <= decreases[0])[number], grown[1], grown[0])
    return found


def _plausible(id_: int, grown: Array, at: Array) -> Array:
    return limit_energy(grown, at) if id_ == ENERGY.id else grown


def growth(cells: MetricCells, rows: SampleColumns, *, by_driver: bool) -> Array:
    """Return the increase of each reading over the previous one of its subject; 0 for the first of a subject."""
    values, subject = cells.values, rows.subject[cells.rows]
    grown = np.zeros_like(values)
    continues = values[1:] >= values[:-1]
    if by_driver:
        session = rows.session[cells.rows]
        continues &= (session[1:] == session[:-1]) | (session[1:] == 0) | (session[:-1] == 0)
    grown[1:] = np.where(subject[1:] == subject[:-1], np.where(continues, values[1:] - values[:-1], values[1:]), 0)
    return grown


def limit_energy(grown: Array, at: Array) -> Array:
    """Return energy increases (joules), with 0 for those that exceed `MAX_GPU_WATTS` between the two instants."""
    seconds = np.diff(at, prepend=at[:1]) / NANOS
    return np.where(grown <= seconds * MAX_GPU_WATTS, grown, 0)


def number_keys(keys: Array) -> tuple[Array, Array, Array, Array]:
    """Return distinct keys in order, first position of each, key number of each position, and counts.

    Same as `numpy.unique`, but without sorting keys that are in order already, which is the usual case.
    """
    if np.any(keys[1:] < keys[:-1]):
        found, firsts, numbers, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        return found, firsts, numbers, counts
    found, starts, _ = find_runs(keys)
    counts = np.diff(starts, append=len(keys))
    return found, starts, np.repeat(np.arange(len(starts)), counts), counts


def find_runs(keys: Array) -> tuple[Array, Array, Array]:
    """Return each run of equal keys: key, first position and last position."""
    edges = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    starts = np.concatenate((np.zeros(min(1, len(keys)), np.int64), edges))
    return keys[starts], starts, np.append(starts[1:], len(keys))[: len(starts)] - 1


class _Selection(msgspec.Struct, frozen=True):
    """Positions of the readings of a metric: windows, and first and last position of each among the picked readings."""

    pick: Array | None
    at: Array
    starts: Array
    ends: Array

    def picked(self, values: Array) -> Array:
        return values if self.pick is None else values[self.pick]


class _Selections:
    """Cache of selections by row array: most metrics of a device are present in the same rows."""

    def __init__(self, number: Array) -> None:
        self._number = number
        self._known: dict[int, _Selection] = {}

    def of(self, rows: Array) -> _Selection:
        """Return the selection of rows; the array must live as long as this cache."""
        where = self._known.get(id(rows))
        if where is None:
            where = self._known[id(rows)] = self._find(rows)
        return where

    def _find(self, rows: Array) -> _Selection:
        keys = self._number[rows]
        pick = None
        if np.any(keys < 0):
            pick = np.flatnonzero(keys >= 0)
            keys = keys[pick]
        if np.any(keys[1:] < keys[:-1]):  # a subject with alternating provenances
            order = np.argsort(keys, kind="stable")
            pick, keys = order if pick is None else pick[order], keys[order]
        return _Selection(pick, *find_runs(keys))


def _gauge(values: Array, where: _Selection) -> GaugeWindows:
    picked = where.picked(values)
    return GaugeWindows(
        where.at,
        np.fmin.reduceat(picked, where.starts),
        np.fmax.reduceat(picked, where.starts),
        np.add.reduceat(picked, where.starts, dtype=np.float64),
        where.ends - where.starts + 1,
    )


def _counter(cells: MetricCells, grown: Array, where: _Selection) -> CounterWindows:
    last = where.picked(cells.values)[where.ends]
    return CounterWindows(where.at, last, np.add.reduceat(where.picked(grown), where.starts))
