"""When this hub and those before it could hear, by the wall clock: what silence a restart takes over. Pure.

A word that was received at some time of day is as old as the time since in which the hub could hear: not the time
between two processes, nor that in which one stood still, however many of them there were. Nor does a clock that was
set between them make anybody silent: what it showed then is kept with what was heard then.
"""

import itertools
from typing import Self

import msgspec

from gpufleet.hub.liveness.limits import LOST_SECONDS
from gpufleet.model.time import NANOS

SLACK_SECONDS = 0.5
"""By so much may the wall clock and the time of listening differ from one look to the next."""

SPANS_KEPT = 64
"""Spans that are kept; of more, the two with the least between them count as one.

What was heard in one of them is then out by no more than both of them heard, and by what was between them.
"""

KEPT_SECONDS = 2 * LOST_SECONDS
"""Spans that ended so much listening ago are forgotten: whoever spoke last in them is lost."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A time in which a hub could hear.

    Attributes:
        first, last: by the wall clock, nanoseconds since 1970.
        from_second, to_second: of listening, all processes together.
    """

    first: int
    last: int
    from_second: float
    to_second: float

    def silence_between(self, after: "Span") -> float:
        """Return the seconds between this and the one after it in which nobody could be heard."""
        return abs((after.first - self.last) / NANOS - (after.from_second - self.to_second))


class Past(msgspec.Struct, frozen=True):
    """The newest spans, oldest first.

    Attributes:
        alive_at: when a hub last lived, nanoseconds since 1970; 0 where nobody knows.
        spans: when it could hear.
    """

    alive_at: int = 0
    spans: tuple[Span, ...] = ()

    @classmethod
    def until(cls, alive_at: int) -> Self:
        """Return the past of which only its end is known: a hub that could hear all the time before."""
        if not alive_at:
            return cls()
        return cls(alive_at, (Span(alive_at - int(KEPT_SECONDS * NANOS), alive_at, 0.0, KEPT_SECONDS),))

    @property
    def seconds(self) -> float:
        """Seconds of listening so far."""
        return self.spans[-1].to_second if self.spans else 0.0

    def begun(self, now: int) -> Self:
        """Return the past at the start of a process: nothing was heard since the last one ended."""
        return self._with((*self.spans, Span(now, now, self.seconds, self.seconds)), now)

    def looked(self, now: int, second: float) -> Self:
        """Return the past at another look of the same process, at a second of listening."""
        newest = self.spans[-1]
        grown = msgspec.structs.replace(newest, last=now, to_second=second)
        if abs((now - newest.last) / NANOS - (second - newest.to_second)) <= SLACK_SECONDS:
            return self._with((*self.spans[:-1], grown), now)
        ended = self.spans if newest.to_second > newest.from_second else self.spans[:-1]  # nothing was heard in it
        return self._with((*ended, Span(now, now, second, second)), now)

    def silence_since(self, at: int) -> float:
        """Return the seconds in which the hub could hear since a time of day, nanoseconds since 1970."""
        for span in reversed(self.spans):
            if span.first <= at <= span.last:
                part = (at - span.first) / max(1, span.last - span.first)
                return self.seconds - span.from_second - part * (span.to_second - span.from_second)
        before = [span for span in self.spans if span.last < at]
        if before:  # it was killed before it could keep when it heard that
            return self.seconds - max(before, key=lambda span: span.last).to_second
        if not self.spans:
            return 0.0
        oldest = min(self.spans, key=lambda span: span.first)
        return self.seconds - oldest.from_second + (oldest.first - at) / NANOS

    def _with(self, spans: tuple[Span, ...], now: int) -> Self:
        newest = spans[-1].to_second
        kept = [span for span in spans if newest - span.to_second < KEPT_SECONDS]
        while len(kept) > SPANS_KEPT:
            gaps = [one.silence_between(after) for one, after in itertools.pairwise(kept)]
            place = gaps.index(min(gaps))
            one, after = kept[place : place + 2]
            # Both of what a clock showed that was set back between them, or their words would be taken for others'.
            first, last = min(one.first, after.first), max(one.last, after.last)
            kept[place : place + 2] = [Span(first, last, one.from_second, after.to_second)]
        return type(self)(now, tuple(kept))
