"""Ingest time of a hub, and its history across restarts.

Time in which the hub did not ingest is never counted as a sender's time without heartbeat. The age of a report is the
ingest time since its receipt. That excludes the time between two hub processes, and any time in which a process was
suspended or rejected batches. A clock that was set between two processes does not change it: the history stores which
wall-clock interval belongs to which ingest seconds.
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
from gpufleet.runtime import supervise

SLACK_SECONDS = 0.5
"""Tolerated difference between the wall clock and the ingest clock from one update to the next."""

SPANS_KEPT = 64
"""Maximum number of spans. Beyond it, the two spans with the shortest pause between them are merged.

The ingest time since a report in a merged span is then off by at most the length of both spans and the pause.
"""

KEPT_SECONDS = 2 * LOST_SECONDS
"""Ingest time after which a span expires: every sender whose last report is in it is lost."""


class IngestSpan(msgspec.Struct, frozen=True, array_like=True):
    """Interval in which a hub ingested without interruption.

    Attributes:
        first, last: by the wall clock, nanoseconds since 1970.
        from_second, to_second: ingest seconds, over all processes.
    """

    first: int
    last: int
    from_second: float
    to_second: float

    def pause_until(self, after: "IngestSpan") -> float:
        """Return the seconds between this span and the next in which the hub did not ingest."""
        return abs((after.first - self.last) / NANOS - (after.from_second - self.to_second))


class IngestHistory(msgspec.Struct, frozen=True):
    """Newest ingest spans, oldest first.

    Attributes:
        alive_at: when a hub process was last running, nanoseconds since 1970; 0 if unknown.
        spans: the spans.
    """

    alive_at: int = 0
    spans: tuple[IngestSpan, ...] = ()

    @classmethod
    def until(cls, alive_at: int) -> Self:
        """Return a history with a known end only: the hub is assumed to have ingested all the time before."""
        if not alive_at:
            return cls()
        return cls(alive_at, (IngestSpan(alive_at - int(KEPT_SECONDS * NANOS), alive_at, 0.0, KEPT_SECONDS),))

    @property
    def seconds(self) -> float:
        """Ingest seconds so far."""
        return self.spans[-1].to_second if self.spans else 0.0

    def start_process(self, now: int) -> Self:
        """Return the history at the start of a process: nothing was ingested since the previous one ended."""
        return self._with((*self.spans, IngestSpan(now, now, self.seconds, self.seconds)), now)

    def extend(self, now: int, second: float) -> Self:
        """Return the history at a later instant of the same process; `second` is the ingest second."""
        newest = self.spans[-1]
        grown = msgspec.structs.replace(newest, last=now, to_second=second)
        if abs((now - newest.last) / NANOS - (second - newest.to_second)) <= SLACK_SECONDS:
            return self._with((*self.spans[:-1], grown), now)
        ended = self.spans if newest.to_second > newest.from_second else self.spans[:-1]  # an empty span
        return self._with((*ended, IngestSpan(now, now, second, second)), now)

    def unseen_since(self, at: int) -> float:
        """Return the ingest seconds since a wall-clock time, nanoseconds since 1970."""
        for span in reversed(self.spans):
            if span.first <= at <= span.last:
                part = (at - span.first) / max(1, span.last - span.first)
                return self.seconds - span.from_second - part * (span.to_second - span.from_second)
        before = [span for span in self.spans if span.last < at]
        if before:  # the process was killed before it saved the span of that time
            return self.seconds - max(before, key=lambda span: span.last).to_second
        if not self.spans:
            return 0.0
        oldest = min(self.spans, key=lambda span: span.first)
        return self.seconds - oldest.from_second + (oldest.first - at) / NANOS

    def _with(self, spans: tuple[IngestSpan, ...], now: int) -> Self:
        newest = spans[-1].to_second
        kept = [span for span in spans if newest - span.to_second < KEPT_SECONDS]
        while len(kept) > SPANS_KEPT:
            gaps = [one.pause_until(after) for one, after in itertools.pairwise(kept)]
            place = gaps.index(min(gaps))
            one, after = kept[place : place + 2]
            # Cover both intervals: the clock may have been set back between them.
            first, last = min(one.first, after.first), max(one.last, after.last)
            kept[place : place + 2] = [IngestSpan(first, last, one.from_second, after.to_second)]
        return type(self)(now, tuple(kept))


SUSPENDED_SECONDS = 5.0
"""Pause between two updates from which on the process counts as suspended."""

NOT_INGESTING_SECONDS = 60.0
"""Time after a rejected batch that does not count as ingest time, unless a batch is accepted sooner.

A rejected sender retries within 15 s (`delivery/pacing.py`)."""


UPDATE_SECONDS = 1.0
"""Interval of updates, and maximum age of the ingest history."""


class IngestClock:
    """Clock of ingest seconds: monotonic seconds except those in which the hub was suspended or rejected batches.

    Lives on one thread. Must be updated more often than `SUSPENDED_SECONDS`; `run_ingest_clock` does that.

    Attributes:
        down_seconds: seconds from the end of the previous process to the start of this one; None if it is unknown.
    """

    def __init__(self, clock: Clock, past: IngestHistory | None = None) -> None:
        """Take the clock and the ingest history of earlier processes."""
        past = past or IngestHistory()
        self._clock = clock
        self._before = past.seconds
        self.down_seconds = max(0.0, (clock.now_ns() - past.alive_at) / NANOS) if past.alive_at else None
        self._past = past.start_process(clock.now_ns())
        self._extended = clock.monotonic()
        self._updated = clock.monotonic()
        self._not_ingesting_until = self._updated
        self._ingesting = 0.0
        self._not_ingesting = 0.0

    @property
    def seconds(self) -> float:
        """Ingest seconds since the start of the process."""
        now = self._clock.monotonic()
        passed = now - self._updated
        ingested = 0.0 if passed > SUSPENDED_SECONDS else max(0.0, now - max(self._updated, self._not_ingesting_until))
        self._ingesting += ingested
        self._not_ingesting += passed - ingested
        self._updated = now
        if now - self._extended >= UPDATE_SECONDS:  # more frequent updates would hide a pause in `SLACK_SECONDS`
            self._past, self._extended = self._until_now(), now
        return self._ingesting

    @property
    def past(self) -> IngestHistory:
        """Ingest history of this process and its predecessors, until now."""
        _ = self.seconds
        return self._until_now()

    def _until_now(self) -> IngestHistory:
        return self._past.extend(self._clock.now_ns(), self._before + self._ingesting)

    @property
    def not_ingesting_seconds(self) -> float:
        """Seconds since the start of the process in which the hub did not ingest."""
        _ = self.seconds
        return self._not_ingesting

    @property
    def is_not_ingesting(self) -> bool:
        """Return whether the last batches were rejected and none was accepted since."""
        return self._clock.monotonic() < self._not_ingesting_until

    def note_rejected(self) -> None:
        """Record that a batch was rejected because of the hub's own state."""
        _ = self.seconds
        self._not_ingesting_until = self._updated + NOT_INGESTING_SECONDS

    def note_accepted(self) -> None:
        """Record that a batch was accepted."""
        _ = self.seconds
        self._not_ingesting_until = min(self._not_ingesting_until, self._updated)


LOG = logging.getLogger(__name__)

MAX_FILE_BYTES = 16384


class HistoryFile:
    """File with the ingest history. Blocking; for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logged = ""

    def load(self) -> IngestHistory | None:
        """Return the history; None if the file is missing or unreadable."""
        try:
            with self._path.open("rb") as file:
                past = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=IngestHistory)
            return past if past.spans else IngestHistory.until(past.alive_at)  # format of older hubs
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            LOG.warning("%s: cannot read the ingest history, downtime counts as ingest time: %s", self._path, error)
            return None

    def save(self, past: IngestHistory) -> None:
        """Write the file. Log an error once; after a restart, more downtime then counts as ingest time."""
        half = self._path.with_suffix(".new")
        try:
            half.write_bytes(msgspec.json.encode(past))
            half.replace(self._path)
            self._logged = ""
        except OSError as error:
            with contextlib.suppress(OSError):
                half.unlink(missing_ok=True)
            if str(error) != self._logged:
                LOG.warning("%s: cannot write the ingest history: %s", self._path, error)
            self._logged = str(error)


UPDATES_PER_SAVE = 5
"""Updates between two saves: a hub that is killed loses at most this many seconds of its history."""


@contextlib.asynccontextmanager
async def run_ingest_clock(
    clock: IngestClock, file: HistoryFile | None, on_end: Callable[[str], None]
) -> AsyncIterator[None]:
    """Update clock and file while the context is open; save the history when it closes.

    `on_end` is as in `supervise`.
    """
    run = supervise(lambda: _update(clock, file), "watching the clock", on_end=on_end)
    task = asyncio.create_task(run, name="watch")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if file is not None:
            await asyncio.to_thread(file.save, clock.past)


async def _update(clock: IngestClock, file: HistoryFile | None) -> None:
    """Update the clock and save the history at intervals, until cancelled."""
    updates = 0
    while True:
        _ = clock.seconds
        if file is not None and updates % UPDATES_PER_SAVE == 0:
            await asyncio.to_thread(file.save, clock.past)
        updates += 1
        await asyncio.sleep(UPDATE_SECONDS)
