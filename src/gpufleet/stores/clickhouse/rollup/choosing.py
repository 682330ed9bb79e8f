"""What a question over time is answered from. Pure."""

from collections.abc import Sequence

import msgspec

from gpufleet.model.retention import Resolution, Retention
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.hours import Standing, kept_since
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS, MINUTE_NS

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
