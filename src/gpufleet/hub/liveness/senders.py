"""Newest report of every sender and the time since, in memory, so that queries do not wait for a disk.

The reports of a cluster's senders are also kept as rows of numbers: 125,000 of them are counted in numpy at once.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gpufleet.hub.liveness.limits import limits_of
from gpufleet.hub.liveness.uptime import IngestClock, IngestHistory
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.ledger import NewestReport, SenderState
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import WireBatch

MAX_CLOCK_AHEAD_NS = 60 * NANOS
"""Send time this far after receipt: the sender's clock is ahead, and later reports cannot be compared with it."""


def is_newer(before: NewestReport | None, batch: WireBatch, *, known_epoch: bool) -> bool:
    """Return whether a batch is newer than the newest report of its sender. An older batch is backlog.

    Within an epoch the sequence number decides, not the clock, which may be set back. An unknown epoch is the newest.
    A sender may have two epochs (its disk refuses writes for a while): between those its send time decides. If the
    newest report came from a clock that was ahead, its receipt time is compared instead, since otherwise no batch would
    be newer until the corrected clock catches up. A batch that claims a time long before that receipt is backlog.
    """
    if before is None or not known_epoch:
        return True
    if before.epoch == batch.epoch:
        return batch.seq > before.seq
    was_ahead = before.sent_at - before.received_at > MAX_CLOCK_AHEAD_NS
    return batch.sent_at >= (before.received_at - MAX_CLOCK_AHEAD_NS if was_ahead else before.sent_at)


def next_report(
    before: NewestReport | None, batch: WireBatch, *, received_at: int, reported_at: int = 0
) -> NewestReport:
    """Return the newest report after a newer batch; a heartbeat stays until the next one."""
    return NewestReport(
        epoch=batch.epoch,
        seq=batch.seq,
        sent_at=batch.sent_at,
        received_at=received_at,
        reported_at=reported_at,
        heartbeat=batch.heartbeat or (before.heartbeat if before else None),
    )


class MinimumEntry(NamedTuple):
    """Number of a sliding minimum, and its position in the sequence."""

    place: int
    number: int


SlidingMinimum = tuple[MinimumEntry, ...]
"""Candidates for the minimum of the newest numbers, in order; the last is the newest number.

Only numbers smaller than all later ones are kept: about five of 64 numbers in random order.
"""


def start_minimum(number: int) -> SlidingMinimum:
    """Return the sliding minimum of a single number."""
    return (MinimumEntry(0, number),)


def push_minimum(row: SlidingMinimum, number: int, keep: int) -> SlidingMinimum:
    """Append a number; the window is the newest `keep` numbers."""
    place = row[-1].place + 1
    return (*(one for one in row if one.number < number and one.place > place - keep), MinimumEntry(place, number))


def lower_newest(row: SlidingMinimum, number: int) -> SlidingMinimum:
    """Lower the newest number to this one, if this one is smaller."""
    newest = row[-1]
    if number >= newest.number:
        return row
    return (*(one for one in row[:-1] if one.number < number), MinimumEntry(newest.place, number))


def minimum_of(row: SlidingMinimum, of: int) -> int:
    """Return the minimum of the newest `of` numbers, at most of the window."""
    first = row[-1].place - of
    return next(one.number for one in row if one.place > first)


Column = np.ndarray[Any, np.dtype[Any]]

_ROW = struct.Struct("<ddddqq??6x")

_TYPE = np.dtype(
    [
        ("reported_at", "<f8"),  # ingest second of the newest report
        ("late", "<f8"),  # limits in seconds without heartbeat
        ("stale", "<f8"),
        ("ahead", "<f8"),  # seconds that the sender's clock is ahead; NaN if unknown
        ("received_at", "<i8"),  # nanoseconds since 1970
        ("sent_at", "<i8"),
        ("is_plain", "?"),  # only its time without heartbeat and its clock offset describe it
        ("since_start", "?"),  # whether it reported since the hub started
        ("", "V6"),
    ]
)


class ReportRows:
    """A row per sender, in the order of arrival. Written on the event loop, read from any thread."""

    def __init__(self) -> None:
        self._rows = bytearray()

    def put(
        self,
        place: int,
        *,
        reported_at: float,
        late: float,
        stale: float,
        ahead: float,
        received_at: int,
        sent_at: int,
        is_plain: bool,
        since_start: bool,
    ) -> None:
        """Write a sender's row; a new sender's row is appended."""
        if place * _ROW.size == len(self._rows):
            self._rows.extend(bytes(_ROW.size))
        _ROW.pack_into(
            self._rows, place * _ROW.size, reported_at, late, stale, ahead, received_at, sent_at, is_plain, since_start
        )

    def rows(self) -> Column:
        """Return a copy of the rows, with the field names of `_TYPE`."""
        # The interpreter lock is held while a row is packed and while all are copied: no row is read half written.
        return np.frombuffer(bytes(self._rows), _TYPE)


REPORTS_COMPARED = 64
"""Number of newest reports whose fastest is the reference for the transit time of a relayed report."""

CLOCK_REPORTS = 8
"""Number of newest reports whose fastest gives the clock offset of the sender."""

BURST_SECONDS = 5.0
"""Reports within this time count as a single report, the fastest: a backlog arrives in slow bursts."""

SenderKey = tuple[str, str]
"""Cluster and sender."""

_NO_SENDERS: Mapping[str, "TrackedSender"] = {}


class SenderReport(msgspec.Struct, frozen=True, kw_only=True):
    """Batch that was just made durable.

    Attributes:
        batch: its content.
        received_at: nanoseconds since 1970 by the hub's clock, at the first relay or else at the hub.
        known_epoch: whether an earlier batch of its epoch was received.
        relayed: whether it came through a relay, where it may have waited for longer than reported.
        waited_ns: reported waiting time at relays.
    """

    batch: WireBatch
    received_at: int
    known_epoch: bool
    relayed: bool = False
    waited_ns: int = 0


class SenderFreshness(msgspec.Struct, frozen=True, kw_only=True):
    """Freshness of a sender.

    Attributes:
        cluster, sender: identity.
        newest: its newest report.
        unseen_seconds: ingest time since that was sent.
        unverified: it has not reported since the hub started, but is not late yet.
        clock_ahead_seconds: how far its clock is ahead of the hub's, less the transit time of the fastest of its newest
            reports; negative if behind. None if the hub creates its batches.
        never_answered: it is a scrape target that never answered; the time counts from the first scrape.
    """

    cluster: str
    sender: str
    newest: NewestReport
    unseen_seconds: float
    unverified: bool
    clock_ahead_seconds: float | None
    never_answered: bool = False


class TrackedSender(msgspec.Struct, frozen=True):
    """Record of a sender; replaced as a whole, so that threads may read while the event loop writes.

    Attributes:
        newest: its newest report.
        reported_at: ingest second at which that was sent; negative if before the start.
        since_start: whether it reported since the hub started.
        differences: receipt minus send time of the newest reports, nanoseconds; the sliding minimum, one per burst.
        burst_at: ingest second at which the newest burst began.
        ahead: seconds that its clock is ahead of the hub's; None if the hub creates its batches.
        heartbeat_seq: sequence number of the batch with its heartbeat, in the newest report's epoch; 0 if in another.
        place: its row among the report rows of its cluster.
        plain: it pushes, has no backlog, and dropped nothing: only its time without heartbeat and its clock matter.
    """

    newest: NewestReport
    reported_at: float
    since_start: bool
    differences: SlidingMinimum
    burst_at: float
    ahead: float | None
    heartbeat_seq: int
    place: int
    plain: bool


class Senders:
    """All senders. Written on the event loop, read from any thread."""

    def __init__(self, clock: IngestClock, states: Iterable[SenderState] = ()) -> None:
        """Take the ingest clock and the persistent state of earlier processes."""
        self._clock = clock
        now, past = clock.seconds, clock.past
        self._known: dict[str, dict[str, TrackedSender]] = {}
        self._rows: dict[str, ReportRows] = {}
        for one in states:
            newest = one.newest_report
            reported_at = now - past.unseen_since(answered_at(newest) or newest.received_at)
            difference = newest.received_at - newest.sent_at
            place = len(self._known.get(one.cluster, _NO_SENDERS))
            known = _track(newest, reported_at, False, start_minimum(difference), now - BURST_SECONDS, 0, place)
            self._keep(one.cluster, one.sender, known)

    @property
    def now(self) -> float:
        """Current ingest second; read on the event loop."""
        return self._clock.seconds

    def note(self, report: SenderReport) -> None:
        """Record a batch."""
        batch = report.batch
        cluster = self._known.get(batch.cluster, _NO_SENDERS)
        known = cluster.get(batch.sender)
        before = known.newest if known else None
        if not is_newer(before, batch, known_epoch=report.known_epoch):
            if known is not None and _was_queued(known, report):
                self._keep(batch.cluster, batch.sender, _dequeue(known))
            return
        now, difference = self.now, report.received_at - batch.sent_at
        if known is None or batch.sent_at < known.newest.sent_at:  # sent later: its clock was set back
            differences, burst_at = start_minimum(difference), now
        elif now - known.burst_at < BURST_SECONDS:
            differences, burst_at = lower_newest(known.differences, difference), known.burst_at
        else:
            differences, burst_at = push_minimum(known.differences, difference, REPORTS_COMPARED), now
        late = difference - minimum_of(differences, REPORTS_COMPARED) if report.relayed else 0
        waited = (report.waited_ns + late) / NANOS
        newest = next_report(before, batch, received_at=report.received_at)
        # A scrape target that did not answer again: the report shows that its scraper is alive, not the target.
        unanswered = known if known is not None and _is_same_answer(known.newest, newest) else None
        now_known = _track(
            newest,
            unanswered.reported_at if unanswered is not None else now - waited,
            unanswered is None or unanswered.since_start,
            differences,
            burst_at,
            _heartbeat_seq(known, batch),
            len(cluster) if known is None else known.place,
        )
        self._keep(batch.cluster, batch.sender, now_known)

    def _keep(self, cluster: str, sender: str, known: TrackedSender) -> None:
        self._known.setdefault(cluster, {})[sender] = known
        heartbeat = known.newest.heartbeat
        limits = limits_of(heartbeat.interval_seconds if heartbeat else None)
        self._rows.setdefault(cluster, ReportRows()).put(
            known.place,
            reported_at=known.reported_at,
            late=limits.late,
            stale=limits.stale,
            ahead=np.nan if known.ahead is None else known.ahead,
            received_at=known.newest.received_at,
            sent_at=known.newest.sent_at,
            is_plain=known.plain and known.newest.received_at > 0,
            since_start=known.since_start,
        )

    @property
    def past(self) -> IngestHistory:
        """Ingest history of this process and its predecessors; read on the event loop."""
        return self._clock.past

    @property
    def clusters(self) -> list[str]:
        """Ids of the clusters with a sender, sorted."""
        return sorted(list(self._known))  # noqa: C414 - a list is made at once; a thread may not go through a dict

    def of(self, cluster: str) -> list[tuple[str, TrackedSender]]:
        """Return (name, record) of every sender of a cluster, in any order."""
        return list(self._known.get(cluster, _NO_SENDERS).items())

    def report_rows(self, cluster: str) -> Column:
        """Return a snapshot of the newest reports of a cluster's senders; see `ReportRows`."""
        rows = self._rows.get(cluster)
        return ReportRows().rows() if rows is None else rows.rows()

    def names(self, cluster: str) -> list[str]:
        """Return the names of a cluster's senders in the order of their rows."""
        return list(self._known.get(cluster, _NO_SENDERS))

    def places(self, cluster: str, senders: Iterable[str]) -> list[int]:
        """Return the row of each of these senders of a cluster, -1 for one that never reported."""
        known = self._known.get(cluster, _NO_SENDERS)
        return [-1 if (one := known.get(sender)) is None else one.place for sender in senders]

    def find(self, cluster: str, sender: str) -> TrackedSender | None:
        """Return the record of a sender, or None if it never reported."""
        return self._known.get(cluster, _NO_SENDERS).get(sender)

    def after(self, place: SenderKey | None, limit: int) -> list[SenderKey]:
        """Return at most `limit` senders that follow a place, by cluster and name."""
        found: list[SenderKey] = []
        for cluster in self.clusters:
            if len(found) >= limit or (place is not None and cluster < place[0]):
                continue
            floor = place[1] if place is not None and place[0] == cluster else None
            names = (name for name, _ in self.of(cluster) if floor is None or name > floor)
            found += [(cluster, name) for name in sorted(names)[: limit - len(found)]]
        return found

    def list_freshness(self, now: float, cluster: str | None = None) -> Iterator[SenderFreshness]:
        """Iterate over the senders, or those of a cluster, by cluster and name, as they were at that second."""
        for id_ in self.clusters if cluster is None else (cluster,):
            for name, known in sorted(self.of(id_), key=lambda one: one[0]):
                yield sender_freshness(id_, name, known, now)

    def find_freshness(self, now: float, cluster: str, sender: str) -> SenderFreshness | None:
        """Return the freshness of a sender, or None if it never reported."""
        known = self.find(cluster, sender)
        return None if known is None else sender_freshness(cluster, sender, known, now)


def answered_at(report: NewestReport) -> int:
    """Return when data of the sender itself was last received, in nanoseconds since 1970; 0 for never.

    For a sender that pushes, that is its newest report; for a scrape target, its last answer.
    """
    at = report.heartbeat.answered_at if report.heartbeat is not None else None
    return report.received_at if at is None else min(at, report.received_at)


def _is_same_answer(before: NewestReport, newest: NewestReport) -> bool:
    """Return whether a scrape target did not answer since the previous report.

    Any other time is another answer, even an earlier one: the scraper's clock can be set back.
    """
    if newest.heartbeat is None or newest.heartbeat.answered_at is None:
        return False
    at = before.heartbeat.answered_at if before.heartbeat is not None else None
    return newest.heartbeat.answered_at == (before.received_at if at is None else at)


def _heartbeat_seq(known: TrackedSender | None, batch: WireBatch) -> int:
    if batch.heartbeat is not None:
        return batch.seq
    return known.heartbeat_seq if known is not None and known.newest.epoch == batch.epoch else 0


def _was_queued(known: TrackedSender, report: SenderReport) -> bool:
    """Return whether a batch was in the sender's queue when the sender last reported its length.

    A relayed batch may have waited at the relay instead.
    """
    batch, heartbeat = report.batch, known.newest.heartbeat
    is_older = batch.epoch == known.newest.epoch and batch.seq < known.heartbeat_seq
    return is_older and not report.relayed and heartbeat is not None and bool(heartbeat.queue_records)


def _dequeue(known: TrackedSender) -> TrackedSender:
    """Return the record of a sender after the receipt of a batch from its queue."""
    heartbeat = known.newest.heartbeat
    assert heartbeat is not None
    assert heartbeat.queue_records is not None
    left = heartbeat.queue_records - 1
    oldest = heartbeat.oldest_unsent if left else None
    heartbeat = msgspec.structs.replace(heartbeat, queue_records=left, oldest_unsent=oldest)
    newest = msgspec.structs.replace(known.newest, heartbeat=heartbeat)
    return msgspec.structs.replace(known, newest=newest, plain=_is_plain(heartbeat))


def _track(
    newest: NewestReport,
    reported_at: float,
    since_start: bool,
    differences: SlidingMinimum,
    burst_at: float,
    heartbeat_seq: int,
    place: int,
) -> TrackedSender:
    heartbeat = newest.heartbeat
    return TrackedSender(
        newest=newest,
        reported_at=reported_at,
        since_start=since_start,
        differences=differences,
        burst_at=burst_at,
        ahead=-minimum_of(differences, CLOCK_REPORTS) / NANOS if not newest.is_created_by_hub else None,
        heartbeat_seq=heartbeat_seq,
        place=place,
        plain=heartbeat is not None and _is_plain(heartbeat),
    )


def _is_plain(heartbeat: Heartbeat) -> bool:
    has_losses = heartbeat.oldest_unsent or heartbeat.queue_records != 0 or heartbeat.dropped_total != 0
    return heartbeat.answered_at is None and not has_losses


def sender_freshness(cluster: str, sender: str, known: TrackedSender, now: float) -> SenderFreshness:
    """Return the freshness of a sender at an ingest second."""
    interval = known.newest.heartbeat.interval_seconds if known.newest.heartbeat else None
    unverified = not known.since_start and now < limits_of(interval).late
    return SenderFreshness(
        cluster=cluster,
        sender=sender,
        newest=known.newest,
        unseen_seconds=max(0.0, (0.0 if unverified else now) - known.reported_at),
        unverified=unverified,
        clock_ahead_seconds=known.ahead,
        never_answered=answered_at(known.newest) == 0,
    )
