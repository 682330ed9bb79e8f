"""Which hours something was written to, and which were made of all of it.

What a question over time is answered from. Pure.
"""

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gpufleet.model.stored.retention import APART_SECONDS, Resolution, Retention
from gpufleet.model.stored.samples import Accepted
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import DimBlock, SampleBlock
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS, MINUTE_NS, ROLLED_HOURS, TOUCHED_HOURS
from gpufleet.stores.clickhouse.schema.arrow import arrow_table
from gpufleet.stores.clickhouse.schema.columns import Columns

AROUND_NS = APART_SECONDS * NANOS
"""What is measured so long before or after an hour has a say in it."""

MARKED_FOR_SECONDS = 60.0
"""An hour is marked again after so long; every second would be a part a second."""

QUIET_SECONDS = 180
"""An hour is made when it has not been marked for so long: longer than a mark stands and a write takes."""

_STANDING = """
SELECT toUnixTimestamp(hour), max(marked_at) AS marked, max(seen) AS known, max(version), max(without_minutes)
FROM (
    SELECT hour, marked_at, toUInt64(0) AS seen, toUInt64(0) AS version, toUInt8(0) AS without_minutes
    FROM touched_hours
    UNION ALL
    SELECT hour, toUInt64(0), argMax(seen, version), max(version), argMax(without_minutes, (version, without_minutes))
    FROM rolled_hours GROUP BY hour
)
WHERE hour >= toDateTime({first:UInt32}, 'UTC') AND hour < toDateTime({last:UInt32}, 'UTC')
GROUP BY hour ORDER BY hour
"""

_NEWEST = "SELECT max(marked_at) FROM touched_hours"


class Standing(msgspec.Struct, frozen=True):
    """How it stands with an hour.

    Attributes:
        hour: its start in seconds since 1970.
        marked: its newest mark.
        seen: the newest mark that there was before it was made, or 0.
        version: of what was made of it, or 0.
        without_minutes: nothing was made of its minutes, or that is gone.
    """

    hour: int
    marked: int
    seen: int
    version: int
    without_minutes: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether it was made of everything."""
        return self.version > 0 and self.seen >= self.marked

    def stands(self, kept: int) -> bool:
        """Tell whether what was made of it is the answer: it is clean, or of before `kept`, and not made again."""
        return self.version > 0 and (self.is_clean or self.hour * NANOS < kept)


def kept_since(now: int, retention: Retention) -> int:
    """Return the instant from which on all samples are there; of hours that began before, what was made stands.

    The day that samples go by is the server's: a day more, so that none is made of a part of its samples.
    """
    return now - (retention.raw_days - 1) * 86_400 * NANOS if retention.raw_days else 0


def touched(accepted: Sequence[Accepted]) -> set[int]:
    """Return the hours, in seconds since 1970, that what is to be written has a say in."""
    hours: set[int] = set()
    for one in accepted:
        # what has dimensions alone has a row in `samples` too
        blocks: list[SampleBlock | DimBlock] = [*one.batch.samples, *one.batch.dims]
        for block in blocks:
            if block.measured_at:
                first, last = min(block.measured_at) - AROUND_NS, max(block.measured_at) + AROUND_NS
                if last - first <= 3 * HOUR_NS:
                    hours.update(range(first // HOUR_NS, last // HOUR_NS + 1))
                else:  # an old backlog in one block
                    for at in block.measured_at:
                        hours.update(range((at - AROUND_NS) // HOUR_NS, (at + AROUND_NS) // HOUR_NS + 1))
    return {hour * 3600 for hour in hours if 0 <= hour * 3600 < 2**32}


class Marks:
    """Marks hours before they are written to. One writer's; it need not know what others mark."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Take a clock of seconds that nobody sets."""
        self._monotonic = monotonic
        self._begun = monotonic()
        self._marked: dict[int, float] = {}
        self._newest: int | None = None

    def mark(self, handle: Handle, hours: Iterable[int]) -> None:
        """Write marks of hours that have none that stands."""
        now = self._monotonic()
        due = [hour for hour in sorted(hours) if now - self._marked.get(hour, -1e9) > MARKED_FOR_SECONDS]
        if not due:
            return
        if self._newest is None:
            self._newest = int(handle.query(_NEWEST).result_rows[0][0])
        self._newest = max(time.time_ns(), self._newest + 1)  # whatever the clock does, a later mark is greater
        rows: Columns = {"hour": due, "marked_at": [self._newest] * len(due)}
        handle.insert_arrow(TOUCHED_HOURS.name, arrow_table(TOUCHED_HOURS, rows))
        self._marked = {hour: at for hour, at in self._marked.items() if now - at <= QUIET_SECONDS}
        self._marked.update(dict.fromkeys(due, now))

    def is_quiet(self, hour: int) -> bool:
        """Tell by the clock that nobody sets whether nothing marked an hour for `QUIET_SECONDS` of this process."""
        return self._monotonic() - self._marked.get(hour, self._begun) >= QUIET_SECONDS

    def forget(self, hour: int) -> None:
        """Have an hour marked again by whatever is written to it next."""
        self._marked.pop(hour, None)


def fetch_standings(handle: Handle, first: int, last: int) -> list[Standing]:
    """Return how it stands with the hours from `first` on and before `last`, seconds since 1970."""
    parameters = {"first": max(0, first), "last": min(last, 2**32 - 1)}
    found = handle.query(_STANDING, parameters=parameters).result_rows
    return [Standing(hour, marked, seen, version, bool(without)) for hour, marked, seen, version, without in found]


def write_rolled(handle: Handle, standing: Standing, version: int, *, minutes: bool) -> None:
    """Write down that an hour was made of all that its marks told of."""
    rows: Columns = {
        "hour": [standing.hour],
        "version": [version],
        "seen": [standing.marked],
        "without_minutes": [int(not minutes)],
    }
    handle.insert_arrow(ROLLED_HOURS.name, arrow_table(ROLLED_HOURS, rows))


SHORT_NS = 6 * HOUR_NS
"""So much is answered from the samples alone: there is little to gain."""

DAY_NS = 86_400 * NANOS

Span = tuple[int, int]
"""Nanoseconds since 1970, the end excluded."""

_WINDOWS = {Resolution.HOUR: HOUR_NS, Resolution.MINUTE: MINUTE_NS}


class Choice(msgspec.Struct, frozen=True):
    """Spans that minutes or hours are taken from, and those that samples are taken from; together all that is asked.

    Attributes:
        resolution: of the coarsest that may be in the answer.
        rolled, raw: in order, without overlap.
    """

    resolution: Resolution
    rolled: tuple[Span, ...]
    raw: tuple[Span, ...]


def choose(start: int, end: int, step: int, standings: Sequence[Standing], retention: Retention, now: int) -> Choice:
    """Choose for a span in steps, all in nanoseconds.

    Long spans are answered from hours or minutes where steps are made of those exactly: the values are the same as from
    samples. Where samples are gone by now, from what there is. Hours that were written to since they were made are
    answered from samples, but where retention has begun to take those.
    """
    standing = [one for one in standings if one.stands(kept_since(now, retention))]
    resolution = _resolution(start, end, step, standing, retention, now)
    if resolution is Resolution.RAW:
        return Choice(resolution, (), ((start, end),))
    window = _WINDOWS[resolution]
    first, last = -(-start // window) * window, end - end % window
    made = [one.hour * NANOS for one in standing if resolution is Resolution.HOUR or not one.without_minutes]
    spans = [(max(first, hour), min(last, hour + HOUR_NS)) for hour in made]
    rolled = _joined([span for span in spans if span[0] < span[1]])
    return Choice(resolution if rolled else Resolution.RAW, rolled, _rest(start, end, rolled))


def _resolution(
    start: int, end: int, step: int, made: Sequence[Standing], retention: Retention, now: int
) -> Resolution:
    fits = [one for one, window in _WINDOWS.items() if step % window == 0 and start % window == 0]
    if not retention.keeps_minutes:
        fits = [one for one in fits if one is not Resolution.MINUTE]
    if not _kept(start, retention.raw_days, now):
        whole = retention.keeps_minutes and not any(one.without_minutes for one in made)
        if not whole or not _kept(start, retention.minute_days, now):
            return Resolution.HOUR
        return fits[0] if fits else Resolution.MINUTE
    if end - start <= SHORT_NS or not fits:
        return Resolution.RAW
    return fits[0]


def _kept(start: int, days: int, now: int) -> bool:
    return days == 0 or start >= now - days * DAY_NS


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    joined: list[Span] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def _rest(start: int, end: int, rolled: Sequence[Span]) -> tuple[Span, ...]:
    edges = [start, *(edge for span in rolled for edge in span), end]
    return tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)
