"""Guests that stand for an allocated virtual machine over time, for series, events and usage. Blocks."""

from collections.abc import Sequence

from gpufleet.fleet.attribution.guests import MachineSamples, ReportedGuest, reported_guests
from gpufleet.fleet.usage.residence import (
    MAX_CLOCK_SKEW_NS,
    UNBOUNDED,
    Interval,
    Succession,
    joined_runs,
    succession,
)
from gpufleet.model.allocation import Allocation
from gpufleet.model.machine import REMOVED
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.time import NANOS, to_ns
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import HistoryStore

STEP_NS = 60 * NANOS
"""Precision of the reports of a guest that overlap those of another one."""

_HOUR_NS = 3600 * NANOS
"""Coarsest precision of reports. Queries begin at a full hour, an hour at least before the first overlap of guests, and
end an hour after the last one: whether a guest was reported without a pause does not depend on the other guests."""

CHUNK_STEPS = 10_000
"""Steps per query of the store."""

MAX_CHUNKS = 160
"""Maximum number of queries per guest: about 1100 days. Earlier overlaps are ambiguous as a whole."""

MAX_QUERIES = 16 * MAX_CHUNKS
"""Maximum number of queries per allocation. The overlaps of guests that were first reported later are ambiguous."""

MAX_RUNS = 200
"""Maximum number of intervals of a guest. Its overlaps from the last of them on are ambiguous as a whole."""

_WIDTHS = {Resolution.RAW: STEP_NS, Resolution.MINUTE: STEP_NS, Resolution.HOUR: _HOUR_NS}

AMBIGUOUS = "several virtual machines with this UUID were reported at once: that time has no values"
"""Detail of answers with ambiguous time."""


class GuestTurns:
    """Decides which guest stands for an allocated virtual machine, from the times of their reports."""

    def __init__(self, *, store: HistoryStore, clock: Clock, stale_after_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._stale_after = stale_after_seconds

    def of(self, allocation: Allocation, guests: Sequence[MachineSamples]) -> Succession:
        """Return the succession of guests for an allocation.

        The first and the last report of each guest decide. Only where these overlap, the store is queried for the
        reports between them. Limits leave out what is newest, so that a later host does not change the past.

        Args:
            allocation: of a virtual machine.
            guests: every guest of its cluster with the target's UUID.
        """
        now = self._clock.now_ns()
        found = reported_guests(allocation, guests, now, stale_after_seconds=self._stale_after)
        if len(found) < 2:
            return succession({one.machine.id: [(0, one.last + 1)] for one in found})
        bounds = self._bounds(found)
        overlap = _overlap(list(bounds.values()))
        if overlap is None:
            return succession({id_: [interval] for id_, interval in bounds.items()})
        start, end = _full_hour(overlap[0] - _HOUR_NS), min(overlap[1] + _HOUR_NS, now)
        start = max(start, end - MAX_CHUNKS * CHUNK_STEPS * STEP_NS)
        reported: dict[str, Sequence[Interval]] = {}
        widest, queries = STEP_NS, 0
        for one in sorted(found, key=lambda one: (bounds[one.machine.id], one.machine.id)):
            own = bounds[one.machine.id]
            chunks = _chunks(max(start, _full_hour(own[0])), min(end, own[1]))
            queries += len(chunks)
            spans: Sequence[Interval] = (own,)
            width = STEP_NS
            if chunks and queries <= MAX_QUERIES:
                spans, width = self._spans(one, own, chunks)
            widest = max(widest, width)
            reported[one.machine.id] = spans
        return succession(reported, MAX_CLOCK_SKEW_NS + widest)

    def _bounds(self, found: Sequence[ReportedGuest]) -> dict[str, Interval]:
        """Return the first and the last report of guests: by their own clock, if known, else by the hub's."""
        machines = sorted(one.machine.id for one in found)
        first = {one.machine.id: min(to_ns(one.machine.first_seen), one.last) for one in found}
        for slot in self._store.slots(found[0].machine.cluster, machines):
            first[slot.machine] = min(first[slot.machine], slot.first)
        return {one.machine.id: (first[one.machine.id], UNBOUNDED if one.is_live else one.last + 1) for one in found}

    def _spans(self, one: ReportedGuest, own: Interval, chunks: Sequence[Interval]) -> tuple[Sequence[Interval], int]:
        """Return the intervals of a guest's reports, and the precision with which those within the chunks are known.

        Before and after the chunks, no other guest was reported.
        """
        spans, widest = [(own[0], min(own[1], chunks[0][0])), (max(own[0], chunks[-1][1]), own[1])], STEP_NS
        if one.is_live:
            spans.append((one.last, UNBOUNDED))
        for chunk, until in chunks:
            stored = self._store.series(one.machine.cluster, one.machine.id, ["guest_state"], chunk, until, STEP_NS)
            width = _WIDTHS[stored.resolution]
            widest = max(widest, width)
            for at, state in stored.points.get((None, "guest_state"), ()):
                if state != REMOVED:
                    spans.append((max(own[0], at), min(own[1], at + width)))
        runs = joined_runs(spans)
        if len(runs) > MAX_RUNS:
            runs = (*runs[: MAX_RUNS - 1], (runs[MAX_RUNS - 1][0], runs[-1][1]))
        return runs, widest


def _full_hour(at: int) -> int:
    return at - at % _HOUR_NS


def _chunks(start: int, end: int) -> list[Interval]:
    """Return an interval in parts of `CHUNK_STEPS` steps at most."""
    width = CHUNK_STEPS * STEP_NS
    return [(at, min(at + width, end)) for at in range(start, end, width)]


def _overlap(bounds: Sequence[Interval]) -> Interval | None:
    """Return the smallest interval with all overlaps of the intervals, or None if there is none."""
    ordered = sorted(bounds)
    starts, ends = [], []
    latest = ordered[0][1]
    for start, end in ordered[1:]:
        if start < latest:
            starts.append(start)
            ends.append(min(end, latest))
        latest = max(latest, end)
    return (min(starts), max(ends)) if starts else None
