"""State of hours: marks of new rows, completed rollups, and the choice between rollups and samples for a query."""

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gpufleet.model.stored.retention import MAX_COUNTER_GAP_SECONDS, Resolution, Retention
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import DimBlock, SampleBlock
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS, MINUTE_NS, ROLLED_HOURS, TOUCHED_HOURS
from gpufleet.stores.clickhouse.schema.arrow import arrow_table
from gpufleet.stores.clickhouse.schema.columns import Columns

CONTEXT_NS = MAX_COUNTER_GAP_SECONDS * NANOS
"""Samples this long before and after an hour affect its rollup."""

MARK_SECONDS = 60.0
"""Interval between marks of an hour; a mark per flush would add a part per second."""

QUIET_SECONDS = 180
"""An hour is due if it was not marked for this long: longer than a mark interval plus a write."""

_STATES = """
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


class HourState(msgspec.Struct, frozen=True):
    """Rollup state of an hour.

    Attributes:
        hour: start, in seconds since 1970.
        marked: newest mark.
        seen: newest mark before the rollup started, or 0.
        version: version of the rollup, or 0.
        without_minutes: whether there are no minute rows, or they have expired.
    """

    hour: int
    marked: int
    seen: int
    version: int
    without_minutes: bool = False

    @property
    def is_clean(self) -> bool:
        """Return whether the rollup includes all samples."""
        return self.version > 0 and self.seen >= self.marked

    def is_usable(self, complete: int) -> bool:
        """Return whether queries use the rollup: it is clean, or older than `complete` and final."""
        return self.version > 0 and (self.is_clean or self.hour * NANOS < complete)


def complete_since(now: int, retention: Retention) -> int:
    """Return the instant after which no sample has expired. Rollups of earlier hours are final.

    Samples expire by the server's date, so one more day is subtracted.
    """
    return now - (retention.raw_days - 1) * 86_400 * NANOS if retention.raw_days else 0


def hours_touched(accepted: Sequence[AcceptedBatch]) -> set[int]:
    """Return the hours, in seconds since 1970, with rollups that the batches affect."""
    hours: set[int] = set()
    for one in accepted:
        # samples with only dimensioned values have a row in `samples` too
        blocks: list[SampleBlock | DimBlock] = [*one.batch.samples, *one.batch.dims]
        for block in blocks:
            if block.measured_at:
                first, last = min(block.measured_at) - CONTEXT_NS, max(block.measured_at) + CONTEXT_NS
                if last - first <= 3 * HOUR_NS:
                    hours.update(range(first // HOUR_NS, last // HOUR_NS + 1))
                else:  # an old backlog in a single block
                    for at in block.measured_at:
                        hours.update(range((at - CONTEXT_NS) // HOUR_NS, (at + CONTEXT_NS) // HOUR_NS + 1))
    return {hour * 3600 for hour in hours if 0 <= hour * 3600 < 2**32}


class HourMarks:
    """Marks of hours before writes, for one writer; marks of other writers do not matter."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Take a monotonic clock of seconds."""
        self._monotonic = monotonic
        self._begun = monotonic()
        self._marked: dict[int, float] = {}
        self._newest: int | None = None

    def mark(self, handle: Handle, hours: Iterable[int]) -> None:
        """Mark the hours that have no recent mark."""
        now = self._monotonic()
        due = [hour for hour in sorted(hours) if now - self._marked.get(hour, -1e9) > MARK_SECONDS]
        if not due:
            return
        if self._newest is None:
            self._newest = int(handle.query(_NEWEST).result_rows[0][0])
        self._newest = max(time.time_ns(), self._newest + 1)  # marks increase even if the clock moves back
        rows: Columns = {"hour": due, "marked_at": [self._newest] * len(due)}
        handle.insert_arrow(TOUCHED_HOURS.name, arrow_table(TOUCHED_HOURS, rows))
        self._marked = {hour: at for hour, at in self._marked.items() if now - at <= QUIET_SECONDS}
        self._marked.update(dict.fromkeys(due, now))

    def is_quiet(self, hour: int) -> bool:
        """Return whether this process did not mark an hour for `QUIET_SECONDS`, by the monotonic clock."""
        return self._monotonic() - self._marked.get(hour, self._begun) >= QUIET_SECONDS

    def expire(self, hour: int) -> None:
        """Make the next write mark the hour again."""
        self._marked.pop(hour, None)


def fetch_hour_states(handle: Handle, first: int, last: int) -> list[HourState]:
    """Return the states of the hours from `first` up to but not including `last`, in seconds since 1970."""
    parameters = {"first": max(0, first), "last": min(last, 2**32 - 1)}
    found = handle.query(_STATES, parameters=parameters).result_rows
    return [HourState(hour, marked, seen, version, bool(without)) for hour, marked, seen, version, without in found]


def record_rollup(handle: Handle, state: HourState, version: int, *, minutes: bool) -> None:
    """Record a completed rollup with the newest mark of its hour."""
    rows: Columns = {
        "hour": [state.hour],
        "version": [version],
        "seen": [state.marked],
        "without_minutes": [int(not minutes)],
    }
    handle.insert_arrow(ROLLED_HOURS.name, arrow_table(ROLLED_HOURS, rows))


RAW_ONLY_NS = 6 * HOUR_NS
"""Intervals up to this length are answered from samples only: rollups gain little."""

DAY_NS = 86_400 * NANOS

Span = tuple[int, int]
"""Start and end in nanoseconds since 1970, end excluded."""

_WINDOWS = {Resolution.HOUR: HOUR_NS, Resolution.MINUTE: MINUTE_NS}


class SourceChoice(msgspec.Struct, frozen=True):
    """Partition of a query interval into spans answered from rollups and spans answered from samples.

    Attributes:
        resolution: coarsest resolution in the answer.
        rolled, raw: spans in order, without overlap.
    """

    resolution: Resolution
    rolled: tuple[Span, ...]
    raw: tuple[Span, ...]


def choose_sources(
    start: int, end: int, step: int, hours: Sequence[HourState], retention: Retention, now: int
) -> SourceChoice:
    """Choose the sources for an interval and step, all in nanoseconds.

    A long interval is answered from hours or minutes if they divide its steps exactly, which gives the same values as
    samples. Where samples have expired, the available rollups are used. Hours with new samples since their rollup are
    answered from samples, unless these have begun to expire.
    """
    usable = [one for one in hours if one.is_usable(complete_since(now, retention))]
    resolution = _resolution(start, end, step, usable, retention, now)
    if resolution is Resolution.RAW:
        return SourceChoice(resolution, (), ((start, end),))
    window = _WINDOWS[resolution]
    first, last = -(-start // window) * window, end - end % window
    starts = [one.hour * NANOS for one in usable if resolution is Resolution.HOUR or not one.without_minutes]
    spans = [(max(first, hour), min(last, hour + HOUR_NS)) for hour in starts]
    rolled = _merge_adjacent([span for span in spans if span[0] < span[1]])
    return SourceChoice(resolution if rolled else Resolution.RAW, rolled, _remaining(start, end, rolled))


def needs_samples_only(start: int, end: int, step: int, retention: Retention, now: int) -> bool:
    """Return whether an interval is answered from samples, whatever the states of its hours."""
    is_short = end - start <= RAW_ONLY_NS or not _fitting(start, step, retention)
    return is_short and _is_retained(start, retention.raw_days, now)


def _fitting(start: int, step: int, retention: Retention) -> list[Resolution]:
    """Return the resolutions of rollups that divide the steps exactly, the coarsest first."""
    return [
        one
        for one, window in _WINDOWS.items()
        if step % window == 0 and start % window == 0 and (one is not Resolution.MINUTE or retention.keeps_minutes)
    ]


def _resolution(
    start: int, end: int, step: int, usable: Sequence[HourState], retention: Retention, now: int
) -> Resolution:
    if needs_samples_only(start, end, step, retention, now):
        return Resolution.RAW
    fits = _fitting(start, step, retention)
    if not _is_retained(start, retention.raw_days, now):
        whole = retention.keeps_minutes and not any(one.without_minutes for one in usable)
        if not whole or not _is_retained(start, retention.rollup_1m_days, now):
            return Resolution.HOUR
        return fits[0] if fits else Resolution.MINUTE
    return fits[0]


def _is_retained(start: int, days: int, now: int) -> bool:
    return days == 0 or start >= now - days * DAY_NS


def _merge_adjacent(spans: Sequence[Span]) -> tuple[Span, ...]:
    joined: list[Span] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def _remaining(start: int, end: int, rolled: Sequence[Span]) -> tuple[Span, ...]:
    edges = [start, *(edge for span in rolled for edge in span), end]
    return tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)
