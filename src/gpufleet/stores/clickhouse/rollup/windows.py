"""What the rows of windows come to: gauges, counters and last states. Pure, over arrays.

Gauges have least, greatest, sum and count of what was measured. Of a counter there is its last reading in the window,
and by how much it grew: each growth belongs to the window of the later of its two readings, so that minutes add up to
their hour. The earlier one may lie up to `APART_SECONDS` before the hour. It is the one that the sender counted before,
which is another than the one that was measured before where a clock was set back. A counter that fell, or whose driver
was loaded anew, counts from zero again, so what it shows is what it grew by. Energy grew by nothing where it would have
taken more than `DRAWS_AT_MOST_WATTS`. What was absent is in none of them.
"""

import msgspec
import numpy as np

from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.rows import Cells, Numbers, Rows
from gpufleet.stores.clickhouse.rollup.tables import DRAWS_AT_MOST_WATTS, ENERGY, OF_THE_DRIVER

_KINDS = {metric.id: metric.kind for metric in CATALOGUE.values()}
_OF_THE_DRIVER = frozenset(CATALOGUE[name].id for name in OF_THE_DRIVER)


class Gauge(msgspec.Struct, frozen=True):
    """Of the windows in `at`, by number: least, greatest, sum and count."""

    at: Numbers
    low: Numbers
    high: Numbers
    total: Numbers
    count: Numbers


class Counter(msgspec.Struct, frozen=True):
    """Of the windows in `at`: the last reading, and what it grew by."""

    at: Numbers
    last: Numbers
    increase: Numbers


class State(msgspec.Struct, frozen=True):
    """Of the windows in `at`: the last state."""

    at: Numbers
    last: Numbers


class Windows(msgspec.Struct, frozen=True):
    """Windows of tellers in order, and what is known of each.

    Attributes:
        first_row: window to a row of its teller.
        start: window to nanoseconds since 1970.
        samples: window to how many samples it has.
        gauges, counters, states: metric id to what there is of it.
    """

    first_row: Numbers
    start: Numbers
    samples: Numbers
    gauges: dict[int, Gauge]
    counters: dict[int, Counter]
    states: dict[int, State]


def windows_of(rows: Rows, first: int, last: int, window_ns: int) -> Windows:
    """Return what the samples in [first, last) come to, in windows of so long from `first` on."""
    inside = np.flatnonzero((rows.at >= first) & (rows.at < last))
    slots = (last - first) // window_ns
    keys = rows.teller[inside] * slots + (rows.at[inside] - first) // window_ns
    found, firsts, numbers, samples = numbered(keys)
    number = np.full(len(rows.at), -1)
    number[inside] = numbers
    places = _Places(number)
    gauges: dict[int, Gauge] = {}
    counters: dict[int, Counter] = {}
    states: dict[int, State] = {}
    for id_, cells in rows.cells.items():
        where = places.of(cells.rows)
        if not len(where.at):
            continue
        match _KINDS.get(id_):
            case MetricKind.GAUGE:
                gauges[id_] = _gauge(cells.values, where)
            case MetricKind.COUNTER:
                counters[id_] = _counter(cells, _grown(id_, cells, rows, last), where)
            case MetricKind.STATE:
                states[id_] = State(where.at, where.picked(cells.values)[where.ends])
    return Windows(inside[firsts], first + found % slots * window_ns, samples, gauges, counters, states)


def coarser(fine: Windows, rows: Rows, first: int) -> Windows:
    """Return hours that begin at `first` from their minutes: the same as of the samples themselves."""
    if not len(fine.start):
        return fine
    keys = rows.teller[fine.first_row]
    _, firsts, parent, _ = numbered(keys)
    gauges: dict[int, Gauge] = {}
    counters: dict[int, Counter] = {}
    states: dict[int, State] = {}
    for id_, gauge in fine.gauges.items():
        at, starts, _ = runs(parent[gauge.at])
        gauges[id_] = Gauge(
            at,
            np.minimum.reduceat(gauge.low, starts),
            np.maximum.reduceat(gauge.high, starts),
            np.add.reduceat(gauge.total, starts),
            np.add.reduceat(gauge.count, starts),
        )
    for id_, counter in fine.counters.items():
        at, starts, ends = runs(parent[counter.at])
        counters[id_] = Counter(at, counter.last[ends], np.add.reduceat(counter.increase, starts))
    for id_, state in fine.states.items():
        at, _, ends = runs(parent[state.at])
        states[id_] = State(at, state.last[ends])
    samples = np.bincount(parent, fine.samples, len(firsts)).astype(np.int64)
    return Windows(fine.first_row[firsts], np.full(len(firsts), first), samples, gauges, counters, states)


def _grown(id_: int, cells: Cells, rows: Rows, last: int) -> Numbers:
    """Return by how much each reading before `last` grew since the one that its sender counted before it.

    That is unknown where the clock was set back between them: others may have been counted in between, too far off to
    be here. A lane that falls more often in the order of counting than in that of time was not counted as it was
    measured (a relay gave its batches other numbers), and is followed by time.
    """
    by_driver = id_ in _OF_THE_DRIVER
    if rows.counted is None:
        return _possible(id_, growth(cells, rows, by_driver=by_driver), rows.at[cells.rows])
    inside = np.flatnonzero(rows.at[cells.rows] < last)
    number = numbered(rows.lane[cells.rows[inside]])[2]
    counted = np.argsort(rows.counted[cells.rows[inside]])
    grown, falls = np.zeros((2, len(inside)), cells.values.dtype), []
    for way, order in zip(grown, (np.arange(len(inside)), counted), strict=True):
        ordered = Cells(cells.rows[inside[order]], cells.values[inside[order]])
        at, values, lane = rows.at[ordered.rows], ordered.values, number[order]
        more = growth(ordered, rows, by_driver=by_driver)
        more[1:] = np.where(at[1:] >= at[:-1], more[1:], 0)
        way[order] = _possible(id_, more, at)
        fell = (values[1:] < values[:-1]) & (lane[1:] == lane[:-1])
        falls.append(np.bincount(lane[1:][fell], minlength=int(number.max(initial=-1)) + 1))
    found = np.zeros_like(cells.values)
    found[inside] = np.where((falls[1] <= falls[0])[number], grown[1], grown[0])
    return found


def _possible(id_: int, grown: Numbers, at: Numbers) -> Numbers:
    return drawn(grown, at) if id_ == ENERGY.id else grown


def growth(cells: Cells, rows: Rows, *, by_driver: bool) -> Numbers:
    """Return by how much each reading is more than the one before it in its lane; the first of a lane by nothing."""
    values, lane = cells.values, rows.lane[cells.rows]
    grown = np.zeros_like(values)
    goes_on = values[1:] >= values[:-1]
    if by_driver:
        session = rows.session[cells.rows]
        goes_on &= (session[1:] == session[:-1]) | (session[1:] == 0) | (session[:-1] == 0)
    grown[1:] = np.where(lane[1:] == lane[:-1], np.where(goes_on, values[1:] - values[:-1], values[1:]), 0)
    return grown


def drawn(grown: Numbers, at: Numbers) -> Numbers:
    """Return by how much energy counters grew (joules), without what no GPU draws between two of these instants."""
    seconds = np.diff(at, prepend=at[:1]) / NANOS
    return np.where(grown <= seconds * DRAWS_AT_MOST_WATTS, grown, 0)


def numbered(keys: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return the distinct keys in order, the first place of each, the number of each place's key, and their counts.

    As `numpy.unique` does, which sorts what nearly always is in order.
    """
    if np.any(keys[1:] < keys[:-1]):
        found, firsts, numbers, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        return found, firsts, numbers, counts
    found, starts, _ = runs(keys)
    counts = np.diff(starts, append=len(keys))
    return found, starts, np.repeat(np.arange(len(starts)), counts), counts


def runs(keys: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return each run of equal keys: the key, its first place and its last."""
    edges = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    starts = np.concatenate((np.zeros(min(1, len(keys)), np.int64), edges))
    return keys[starts], starts, np.append(starts[1:], len(keys))[: len(starts)] - 1


class _Where(msgspec.Struct, frozen=True):
    """Where the readings of one metric lie: windows, and the first and last place of each among those picked."""

    pick: Numbers | None
    at: Numbers
    starts: Numbers
    ends: Numbers

    def picked(self, values: Numbers) -> Numbers:
        return values if self.pick is None else values[self.pick]


class _Places:
    """Where the readings of metrics lie. Most metrics of a device are there in the same rows: those are told once."""

    def __init__(self, number: Numbers) -> None:
        self._number = number
        self._known: dict[int, _Where] = {}

    def of(self, rows: Numbers) -> _Where:
        """Return it of rows that stay where they are as long as this does."""
        where = self._known.get(id(rows))
        if where is None:
            where = self._known[id(rows)] = self._find(rows)
        return where

    def _find(self, rows: Numbers) -> _Where:
        keys = self._number[rows]
        pick = None
        if np.any(keys < 0):
            pick = np.flatnonzero(keys >= 0)
            keys = keys[pick]
        if np.any(keys[1:] < keys[:-1]):  # a lane of two provenances by turns
            order = np.argsort(keys, kind="stable")
            pick, keys = order if pick is None else pick[order], keys[order]
        return _Where(pick, *runs(keys))


def _gauge(values: Numbers, where: _Where) -> Gauge:
    picked = where.picked(values)
    return Gauge(
        where.at,
        np.minimum.reduceat(picked, where.starts),
        np.maximum.reduceat(picked, where.starts),
        np.add.reduceat(picked, where.starts, dtype=np.float64),
        where.ends - where.starts + 1,
    )


def _counter(cells: Cells, grown: Numbers, where: _Where) -> Counter:
    last = where.picked(cells.values)[where.ends]
    return Counter(where.at, last, np.add.reduceat(where.picked(grown), where.starts))
