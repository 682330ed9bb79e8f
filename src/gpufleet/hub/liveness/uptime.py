"""The time in which a hub could hear: silence at any other time is the hub's own fault.

When this hub and those before it could hear, by the wall clock: what silence a restart takes over. Pure.

A word that was received at some time of day is as old as the time since in which the hub could hear: not the time
between two processes, nor that in which one stood still, however many of them there were. Nor does a clock that was
set between them make anybody silent: what it showed then is kept with what was heard then.

A file that says when this hub could hear, so that the time it was down is nobody's silence.

The loop that keeps the hub's listening time and its mark.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Self

import msgspec

from gpufleet.hub.liveness.limits import LOST_SECONDS
from gpufleet.model.time import NANOS
from gpufleet.ports.clock import Clock
from gpufleet.runtime import keep

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


STANDSTILL_SECONDS = 5.0
"""A longer pause between two looks at the clock means that this process stood still."""

DEAF_SECONDS = 60.0
"""So long after a batch was turned away for the hub's own sake is no silence counted, unless another one is taken.

Whoever was turned away tries again within 15 s (`delivery/pacing.py`)."""


LOOK_SECONDS = 1.0
"""What is known of the past is as old as this, at most, where the clock is looked at all the time."""


class Listening:
    """Counts seconds on the monotonic clock, but those in which the hub stood still or turned batches away.

    Lives on one thread, and must be looked at more often than `STANDSTILL_SECONDS`: `watch` does that.
    """

    def __init__(self, clock: Clock, past: Past | None = None) -> None:
        """Take the clock, and when earlier processes could hear."""
        past = past or Past()
        self._clock = clock
        self._before = past.seconds
        self._past = past.begun(clock.now_ns())
        self._kept = clock.monotonic()
        self._looked = clock.monotonic()
        self._deaf_until = self._looked
        self._heard = 0.0
        self._deaf = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the start in which it could hear."""
        now = self._clock.monotonic()
        passed = now - self._looked
        could = 0.0 if passed > STANDSTILL_SECONDS else max(0.0, now - max(self._looked, self._deaf_until))
        self._heard += could
        self._deaf += passed - could
        self._looked = now
        if now - self._kept >= LOOK_SECONDS:  # of looks that follow each other closely none would show it was deaf
            self._past, self._kept = self._until_now(), now
        return self._heard

    @property
    def past(self) -> Past:
        """When this process and those before it could hear, until now."""
        _ = self.seconds
        return self._until_now()

    def _until_now(self) -> Past:
        return self._past.looked(self._clock.now_ns(), self._before + self._heard)

    @property
    def deaf_seconds(self) -> float:
        """Seconds since the start in which it could not."""
        _ = self.seconds
        return self._deaf

    @property
    def is_deaf(self) -> bool:
        """Whether it turned batches away just now, and took none since."""
        return self._clock.monotonic() < self._deaf_until

    def turned_away(self) -> None:
        """Note that a batch was turned away for the hub's own sake."""
        _ = self.seconds
        self._deaf_until = self._looked + DEAF_SECONDS

    def took(self) -> None:
        """Note that a batch was taken."""
        _ = self.seconds
        self._deaf_until = min(self._deaf_until, self._looked)


LOG = logging.getLogger(__name__)

MAX_BYTES = 16384


class Mark:
    """The file. Blocking; one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = ""

    def load(self) -> Past | None:
        """Return when hubs could hear; None where nothing says so that can be read."""
        try:
            with self._path.open("rb") as file:
                past = msgspec.json.decode(file.read(MAX_BYTES), type=Past)
            return past if past.spans else Past.until(past.alive_at)  # as older hubs wrote it
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            LOG.warning("%s cannot be read, its hub may seem to have been up for longer: %s", self._path, error)
            return None

    def save(self, past: Past) -> None:
        """Write it. A disk that refuses is told once: a restart then takes more silence for the senders'."""
        half = self._path.with_suffix(".new")
        try:
            half.write_bytes(msgspec.json.encode(past))
            half.replace(self._path)
            self._told = ""
        except OSError as error:
            with contextlib.suppress(OSError):
                half.unlink(missing_ok=True)
            if str(error) != self._told:
                LOG.warning("%s cannot be written: %s", self._path, error)
            self._told = str(error)


MARK_EVERY = 5
"""Looks between marks: a hub that is killed loses at most so many seconds of its life."""


@contextlib.asynccontextmanager
async def watching(listening: Listening, mark: Mark | None, ended: Callable[[str], None]) -> AsyncIterator[None]:
    """Keep them while the context is open, and mark the end of this life when it closes; `ended` as of `keep`."""
    run = keep(lambda: _watch(listening, mark), "watching the clock", ended=ended)
    task = asyncio.create_task(run, name="watch")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if mark is not None:
            await asyncio.to_thread(mark.save, listening.past)


async def _watch(listening: Listening, mark: Mark | None) -> None:
    """Look at the clock, and mark that the hub lives, until cancelled."""
    looks = 0
    while True:
        _ = listening.seconds
        if mark is not None and looks % MARK_EVERY == 0:
            await asyncio.to_thread(mark.save, listening.past)
        looks += 1
        await asyncio.sleep(LOOK_SECONDS)
