"""Late data: intervals of senders whose batches arrived late, and the findings that these intervals would have had."""

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.facts.past import (
    PAST_METRICS,
    PAST_RULES,
    STEP_SECONDS,
    PastInterval,
    Points,
    past_findings,
)
from gpufleet.fleet.facts.past_xids import PAST_EVENTS
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.hub.liveness.senders import SenderReport
from gpufleet.model.finding import Finding
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.findings import FindingQuery, FindingTransition
from gpufleet.model.stored.samples import EventQuery, EventSpan, StoredEvent
from gpufleet.model.time import NANOS
from gpufleet.ports.findings import FindingRegistry
from gpufleet.ports.store import HistoryStore

LATE_SECONDS = 300.0
"""Time from a batch to the sender's newest one from which it is late."""

QUIET_SECONDS = 120.0
"""Time without a late batch after which a late interval is complete."""

MAX_INTERVAL_SECONDS = 24 * 3600.0
"""Maximum length of a late interval; of a longer one the newest part counts."""

MAX_LATE_SENDERS = 10_000
"""Maximum number of senders with a late interval; those of further senders are not judged."""

MAX_PENDING = 10_000
"""Maximum number of machines that wait for a judgement; beyond it, the oldest are dropped."""

MACHINES_PER_TURN = 20
"""Maximum number of machines that are judged at a time."""

MAX_EVENTS = 200
"""Maximum number of events of a machine that are judged, the newest."""

MAX_KNOWN = 1000
"""Maximum number of findings of a machine that are compared."""

SenderKey = tuple[str, str]
"""Cluster and sender."""


class LateInterval(msgspec.Struct):
    """Interval of a sender.

    Attributes:
        start: earliest sending time of its late batches, nanoseconds since 1970.
        end: sending time of its newest batch. A condition that ended just before the backlog arrived closes by then.
        second: when it was first seen without a later change, in seconds; None if it changed since.
    """

    start: int
    end: int
    second: float | None = None


class LateReports:
    """Late intervals by sender. Written on the event loop, taken on another thread.

    They are lost if the hub ends before they are judged.
    """

    def __init__(self) -> None:
        self._newest: dict[SenderKey, int] = {}
        self._late: dict[SenderKey, LateInterval] = {}
        self._lock = threading.Lock()

    def note(self, report: SenderReport) -> None:
        """Record a batch."""
        batch = report.batch
        who = batch.cluster, batch.sender
        sent_at = min(batch.sent_at, report.received_at)  # the sender's clock can be ahead
        newest = self._newest[who] = max(self._newest.get(who, 0), sent_at)
        if newest - sent_at < LATE_SECONDS * NANOS:
            return
        with self._lock:
            known = self._late.get(who)
            if known is not None:
                known.start, known.second = min(known.start, sent_at), None
            elif len(self._late) < MAX_LATE_SENDERS:
                self._late[who] = LateInterval(sent_at, newest)

    def take(self, second: float) -> Mapping[SenderKey, LateInterval]:
        """Remove and return the complete intervals. Call it at each evaluation.

        Args:
            second: the hub's monotonic clock.
        """
        with self._lock:
            for one in self._late.values():
                one.second = second if one.second is None else one.second
            found = {who: one for who, one in self._late.items() if second - (one.second or 0.0) >= QUIET_SECONDS}
            for who, one in found.items():
                one.end = self._newest[who]
                del self._late[who]
        return found


def past_interval(cluster: str, machine: str, late: LateInterval) -> PastInterval:
    """Return the late interval of a machine, from whole minutes on."""
    step = STEP_SECONDS * NANOS
    start = max(late.start, late.end - int(MAX_INTERVAL_SECONDS * NANOS)) // step * step
    return PastInterval(cluster, machine, start, late.end // step * step + step)


class PastJudge:
    """Judges late intervals, some machines at a time. Use it from one thread."""

    def __init__(self, store: HistoryStore, registry: FindingRegistry, thresholds: Thresholds) -> None:
        self._store, self._registry, self._thresholds = store, registry, thresholds
        self._pending: deque[PastInterval] = deque(maxlen=MAX_PENDING)

    def add(self, intervals: Iterable[PastInterval]) -> None:
        """Add intervals, in order of their judgement."""
        self._pending.extend(intervals)

    def take_turn(self) -> Sequence[FindingTransition]:
        """Return the transitions of some intervals, without findings that overlap a known one of rule and subject.

        Raises:
            StoreError, RegistryError: if a query fails; the interval is judged again.
        """
        found: list[FindingTransition] = []
        for _ in range(min(MACHINES_PER_TURN, len(self._pending))):
            found += self._judge(self._pending[0])
            self._pending.popleft()
        return found

    def _judge(self, interval: PastInterval) -> Sequence[FindingTransition]:
        transitions = past_findings(interval, self._read(interval), self._thresholds, self._events(interval))
        if not transitions:
            return ()
        query = FindingQuery(
            rules=tuple(one.id for one in PAST_RULES),
            scope=f"{interval.cluster}/{interval.machine}",
            start=interval.start,
            end=interval.end,
            limit=MAX_KNOWN,
        )
        known = self._registry.findings(query)
        closed = {one.finding.id: one.finding for one in transitions}  # the last transition closes
        new = {id_ for id_, one in closed.items() if not any(_overlaps(one, other) for other in known)}
        return [one for one in transitions if one.finding.id in new]

    def _read(self, interval: PastInterval) -> Points:
        """Return the series of a node, or of a guest that is read from inside."""
        for provenance in (Provenance.HOST_LOCAL_PROBE, Provenance.SLICE_GUEST):
            points = self._store.series(
                interval.cluster,
                interval.machine,
                PAST_METRICS,
                interval.start,
                interval.end,
                STEP_SECONDS * NANOS,
                provenance,
            ).points
            if points:
                return points
        return {}

    def _events(self, interval: PastInterval) -> Sequence[StoredEvent]:
        span = EventSpan(cluster=interval.cluster, machine=interval.machine, start=interval.start, end=interval.end)
        return self._store.events(EventQuery(spans=(span,), kinds=tuple(sorted(PAST_EVENTS)), limit=MAX_EVENTS))


def _overlaps(one: Finding, other: Finding) -> bool:
    is_same = (one.rule, one.scope) == (other.rule, other.scope)
    ends = [finding.closed_at or 2**63 for finding in (one, other)]
    return is_same and one.opened_at < ends[1] and other.opened_at < ends[0]
