"""Late data: intervals of senders whose batches arrived late, and the findings that these intervals would have had.

The registry has the start of each interval before its batches are acknowledged in the log, until the findings are
saved. After a crash an interval is judged again. This changes nothing: a finding that overlaps a known one is left out.
"""

import threading
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import msgspec

from gpufleet.fleet.facts.metrics import XID_EVENTS
from gpufleet.fleet.facts.past import (
    PAST_METRICS,
    PAST_RULES,
    STEP_SECONDS,
    PastInterval,
    Points,
    past_findings,
)
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.model.finding import Finding
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.findings import FindingQuery, FindingTransition, LateStart
from gpufleet.model.stored.ledger import NewestReport, SenderState
from gpufleet.model.stored.samples import AcceptedBatch, EventQuery, EventSpan, StoredEvent
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


class _SenderPosition(NamedTuple):
    """Epoch, number and sending time of a batch."""

    epoch: str
    seq: int
    sent_at: int

    @classmethod
    def of(cls, newest: NewestReport) -> Self:
        """Return that of the newest batch of a sender."""
        return cls(newest.epoch, newest.seq, min(newest.sent_at, newest.received_at))

    def is_backlog(self, newest: "_SenderPosition") -> bool:
        """Return whether the batch is older than the newest one. Within an epoch its number decides, not the clock."""
        return self.seq < newest.seq if self.epoch == newest.epoch else self.sent_at < newest.sent_at


class LateReports:
    """Late intervals by sender. Written on the thread that flushes batches, taken on another one."""

    def __init__(self, registry: FindingRegistry, senders: Iterable[SenderState]) -> None:
        """Take the registry, with the intervals of an earlier process, and the flushed state of all senders.

        Raises:
            RegistryError: if the intervals cannot be read.
        """
        self._registry = registry
        self._newest = {(one.cluster, one.sender): _SenderPosition.of(one.newest_report) for one in senders}
        self._late: dict[SenderKey, LateInterval] = {}
        self._judging: dict[SenderKey, LateInterval] = {}
        self._unsaved: set[SenderKey] = set()
        self._lock = threading.Lock()
        for one in registry.late_starts():
            who = one.cluster, one.sender
            self._late[who] = LateInterval(one.start, max(one.start, self._sent_at(who)))

    def note(self, batches: Sequence[AcceptedBatch]) -> None:
        """Record batches that are in the store, and save their intervals. A batch can be recorded again.

        Raises:
            RegistryError: if they cannot be saved.
        """
        for one in batches:
            who = one.batch.cluster, one.batch.sender
            sent_at = min(one.batch.sent_at, one.received_at)  # the sender's clock can be ahead
            position, newest = _SenderPosition(one.batch.epoch, one.batch.seq, sent_at), self._newest.get(who)
            if newest is None or not position.is_backlog(newest):
                self._newest[who] = position
            elif newest.sent_at - sent_at >= LATE_SECONDS * NANOS and self._extend(who, sent_at, newest.sent_at):
                self._unsaved.add(who)
        if self._unsaved:
            with self._lock:
                self._registry.save_late_starts([self._start(who) for who in sorted(self._unsaved)])
            self._unsaved.clear()

    def _extend(self, who: SenderKey, sent_at: int, newest: int) -> bool:
        """Add a late batch to the interval of its sender; return whether its start changed."""
        with self._lock:
            known = self._late.get(who)
            if known is not None:
                before, known.start, known.second = known.start, min(known.start, sent_at), None
                return known.start < before
            if len(self._late) >= MAX_LATE_SENDERS:
                return False
            self._late[who] = LateInterval(sent_at, newest)
            return True

    def seconds(self) -> dict[SenderKey, float]:
        """Return the length of the intervals that are not judged, by sender."""
        with self._lock:
            found = dict.fromkeys((*self._late, *self._judging), 0.0)
            for known in (self._late, self._judging):
                for who, one in known.items():
                    found[who] = max(found[who], (max(one.end, self._sent_at(who)) - one.start) / NANOS)
            return found

    def _sent_at(self, who: SenderKey) -> int:
        """Return the sending time of the newest batch of a sender, 0 if it is unknown."""
        newest = self._newest.get(who)
        return 0 if newest is None else newest.sent_at

    def _start(self, who: SenderKey) -> LateStart:
        """Return the start of a sender's intervals that are not judged."""
        own = [known[who].start for known in (self._late, self._judging) if who in known]
        return LateStart(cluster=who[0], sender=who[1], start=min(own))

    def take(self, second: float) -> Mapping[SenderKey, LateInterval]:
        """Return the complete intervals, to be judged. Call it at each evaluation.

        Args:
            second: the hub's monotonic clock.
        """
        with self._lock:
            for one in self._late.values():
                one.second = second if one.second is None else one.second
            found = {who: one for who, one in self._late.items() if second - (one.second or 0.0) >= QUIET_SECONDS}
            for who, one in found.items():
                one.end = max(one.end, self._sent_at(who))
                del self._late[who]
                before = self._judging.get(who)
                self._judging[who] = one if before is None else LateInterval(min(before.start, one.start), one.end)
        return found

    def finish(self, unfinished: Container[SenderKey]) -> None:
        """Record that the findings of all intervals are saved, except those of `unfinished` senders.

        Raises:
            RegistryError: if that cannot be saved; the intervals are judged again after a restart.
        """
        with self._lock:
            judged = [who for who in self._judging if who not in unfinished]
            if judged:
                late = {who: self._late[who].start for who in judged if who in self._late}
                starts = [LateStart(cluster=who[0], sender=who[1], start=start) for who, start in late.items()]
                self._registry.save_late_starts(starts, set(judged) - late.keys())
            for who in judged:
                del self._judging[who]


def past_interval(cluster: str, machine: str, sender: str, late: LateInterval) -> PastInterval:
    """Return the late interval of a machine of a sender, from whole minutes on."""
    step = STEP_SECONDS * NANOS
    start = max(late.start, late.end - int(MAX_INTERVAL_SECONDS * NANOS)) // step * step
    return PastInterval(cluster, machine, start, late.end // step * step + step, sender)


class PastJudge:
    """Judges late intervals, some machines at a time. Use it from one thread."""

    def __init__(self, store: HistoryStore, registry: FindingRegistry, thresholds: Thresholds) -> None:
        self._store, self._registry, self._thresholds = store, registry, thresholds
        self._pending: deque[PastInterval] = deque(maxlen=MAX_PENDING)

    def add(self, intervals: Iterable[PastInterval]) -> None:
        """Add intervals, in order of their judgement."""
        self._pending.extend(intervals)

    @property
    def senders(self) -> frozenset[SenderKey]:
        """Senders whose intervals are not all judged."""
        return frozenset([(one.cluster, one.sender) for one in self._pending])

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
        return self._store.events(EventQuery(spans=(span,), kinds=tuple(sorted(XID_EVENTS)), limit=MAX_EVENTS))


def _overlaps(one: Finding, other: Finding) -> bool:
    is_same = (one.rule, one.scope) == (other.rule, other.scope)
    ends = [finding.closed_at or 2**63 for finding in (one, other)]
    return is_same and one.opened_at < ends[1] and other.opened_at < ends[0]
