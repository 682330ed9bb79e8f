"""What stood within an hour and for how long: seconds of states, use and energy. Pure, over arrays.

A sample speaks until the next sample of its lane, whatever that says, and for `SPEAKS_SECONDS` at most. So the seconds
of a window add up to less than the window where nothing was known.
"""

import msgspec
import numpy as np

from gpufleet.model.api.usage import USED_RATIO
from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind
from gpufleet.model.stored.retention import APART_SECONDS
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.rows import Numbers, Rows
from gpufleet.stores.clickhouse.rollup.tables import BUSY, DRAWS_AT_MOST_WATTS, ENERGY, MINUTE_NS, WATTS
from gpufleet.stores.clickhouse.rollup.windows import growth, numbered

_STATES = [metric for metric in CATALOGUE.values() if metric.kind is MetricKind.STATE]
_VALUES = 256


class Lasted(msgspec.Struct, frozen=True):
    """For how long a state lasted within a window: a row of the teller, metric id, state's number, start, seconds."""

    row: Numbers
    metric: Numbers
    state: Numbers
    start: Numbers
    seconds: Numbers


class _Pieces(msgspec.Struct, frozen=True):
    """A state of a teller, from when to when."""

    row: Numbers
    metric: Numbers
    state: Numbers
    since: Numbers
    until: Numbers


def states_of(rows: Rows, first: int, last: int) -> tuple[Lasted, Lasted]:
    """Return for how long each state of each teller lasted in each minute of [first, last), and in all of it."""
    pieces = _pieces(rows, first, last)
    minutes = _summed(rows, _by_minute(pieces, first), first, MINUTE_NS)
    return minutes, _summed(rows, pieces, first, last - first)


def _pieces(rows: Rows, first: int, last: int) -> _Pieces:
    found: list[tuple[Numbers, ...]] = []
    since, until = np.maximum(rows.at, first), np.minimum(np.minimum(rows.next_at, rows.speaks_until), last)
    for metric in _STATES:
        cells = rows.cells.get(metric.id)
        if cells is None:
            continue
        speaking = since[cells.rows] < until[cells.rows]
        row, state = cells.rows[speaking], cells.values[speaking].astype(np.int64) % _VALUES
        # What goes on without a gap is one piece: an hour of one state is one, not one a sample.
        goes_on = np.zeros(len(row), bool)
        goes_on[1:] = (
            (rows.teller[row[1:]] == rows.teller[row[:-1]])
            & (state[1:] == state[:-1])
            & (since[row[1:]] == until[row[:-1]])
        )
        starts = np.flatnonzero(~goes_on)
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


def _summed(rows: Rows, pieces: _Pieces, first: int, window_ns: int) -> Lasted:
    window = (pieces.since - first) // window_ns
    order = np.lexsort((window, pieces.state, pieces.metric, rows.teller[pieces.row]))
    row, metric, state = pieces.row[order], pieces.metric[order], pieces.state[order]
    window, lasted = window[order], (pieces.until - pieces.since)[order]
    keys = (rows.teller[row], metric, state, window)
    starts = _changes(keys)
    sums = np.add.reduceat(lasted, starts) if len(starts) else lasted
    return Lasted(row[starts], metric[starts], state[starts], first + window[starts] * window_ns, sums / NANOS)


def _changes(keys: tuple[Numbers, ...]) -> Numbers:
    """Return the places at which any of the keys is another than before, and the first."""
    changed = np.ones(len(keys[0]), bool)
    changed[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return np.flatnonzero(changed)


class Used(msgspec.Struct, frozen=True):
    """What is known of each teller's device within an hour: a row of the teller, and the columns of `usage_1h`."""

    row: Numbers
    sums: dict[str, Numbers]


def usage_of(rows: Rows, first: int, last: int) -> Used:
    """Return what each device did in [first, last), as each teller of it knows.

    A device is used while the newest word of its utilisation is at least `USED_RATIO`, idle while it is less. Energy is
    what its counter grew by, spread evenly between two readings no more than `APART_SECONDS` apart; between two that
    would take more than `DRAWS_AT_MOST_WATTS` it is unknown.
    """
    tellers, firsts, number, _ = numbered(rows.teller)
    count = len(tellers)
    codes, names = rows.texts["view"]
    of_device = np.array([name != "" for name in names], bool)[codes]
    lasted = np.minimum(np.minimum(rows.next_at, rows.speaks_until), last) - np.maximum(rows.at, first)
    seconds = np.where(of_device, np.maximum(lasted, 0), 0) / NANOS
    busy, watts = _dense(rows, *BUSY), _dense(rows, WATTS)
    joules, joined = _energy(rows, of_device, first, last)

    def by_teller(weights: Numbers) -> Numbers:
        return np.bincount(number, weights, count)

    sums = {
        "used_seconds": by_teller(np.where(busy >= USED_RATIO, seconds, 0)),
        "idle_seconds": by_teller(np.where(busy < USED_RATIO, seconds, 0)),
        "power_joules": by_teller(np.where(np.isnan(watts), 0, watts * seconds)),
        "power_seconds": by_teller(np.where(np.isnan(watts), 0, seconds)),
        "energy_joules": by_teller(joules),
        "energy_seconds": by_teller(joined),
    }
    known = sums["used_seconds"] + sums["idle_seconds"] + sums["power_seconds"] + sums["energy_seconds"] > 0
    return Used(firsts[known], {name: of[known] for name, of in sums.items()})


def _dense(rows: Rows, *metrics: Metric) -> Numbers:
    """Return row to what it says of the first of some metrics that it has; NaN where of none."""
    found = np.full(len(rows.at), np.nan)
    for metric in reversed(metrics):
        cells = rows.cells.get(metric.id)
        if cells is not None:
            found[cells.rows] = cells.values
    return found


def _energy(rows: Rows, of_device: Numbers, first: int, last: int) -> tuple[Numbers, Numbers]:
    """Return row to joules since the reading before it, as much of them as fell in the hour, and to those seconds."""
    joules, seconds = np.zeros(len(rows.at)), np.zeros(len(rows.at))
    cells = rows.cells.get(ENERGY.id)
    if cells is None or len(cells.rows) < 2:
        return joules, seconds
    at, lane = rows.at[cells.rows], rows.lane[cells.rows]
    before, after, row = at[:-1], at[1:], cells.rows[1:]
    within = np.minimum(after, last) - np.maximum(before, first)
    apart = after - before
    grown = growth(cells, rows, by_driver=True)[1:]
    told = (lane[1:] == lane[:-1]) & of_device[row] & (apart <= APART_SECONDS * NANOS) & (within > 0)
    told &= grown <= apart / NANOS * DRAWS_AT_MOST_WATTS
    joules[row[told]] = grown[told] * within[told] / apart[told]
    seconds[row[told]] = within[told] / NANOS
    return joules, seconds
