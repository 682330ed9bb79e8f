"""Schedule of the notices of one receiver: order, retries and their end. Pure: times are arguments.

- The notices of a finding are delivered in order, those of different findings independently.
- A failure delays every notice, because a receiver that is down fails them all, and its own notice for longer.
- A notice is given up after `ALONE_SECONDS` of failures while the receiver accepted other notices, and after
  `OUTAGE_SECONDS` of failures in any case.
"""

from collections import deque

import msgspec

from gpufleet.delivery.pacing import retry_delay
from gpufleet.hub.notify.notices import Notice

MAX_PENDING = 1000
"""Maximum number of notices in memory. Later transitions stay in the registry."""

ALONE_SECONDS = 900.0
OUTAGE_SECONDS = 86_400.0

_LONGEST_STEP = 60.0
"""Longest time between two attempts that counts as failing alone. In an outage an attempt can be hours ago."""


class Pending(msgspec.Struct, kw_only=True, eq=False):
    """Notice that the receiver does not have yet.

    Attributes:
        notice: the notice.
        number: number of its transition; None for a notice without one.
        due_at: earliest time of the next attempt, in monotonic seconds.
        attempts: failed attempts.
        failed_at, last_failed_at: times of the first and the newest failed attempt, or None.
        alone_seconds: time between failed attempts in which the receiver accepted other notices.
    """

    notice: Notice
    number: int | None
    due_at: float
    attempts: int = 0
    failed_at: float | None = None
    last_failed_at: float | None = None
    alone_seconds: float = 0.0


class NoticeSchedule:
    """Pending notices of one receiver. All times are monotonic seconds.

    Attributes:
        failures: failed attempts since the last accepted notice.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._lanes: dict[str, deque[Pending]] = {}
        self._count = 0
        self._unnumbered = 0
        self._due_at = 0.0
        self._accepted_at: float | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """Number of notices that may be added."""
        return MAX_PENDING - self._count

    @property
    def has_unnumbered(self) -> bool:
        """Return whether a notice without a number is pending."""
        return self._unnumbered > 0

    @property
    def has_failing(self) -> bool:
        """Return whether a notice that failed before is pending."""
        return any(lane[0].attempts for lane in self._lanes.values())

    def add(self, notice: Notice, number: int | None, now: float) -> None:
        """Add a notice after the others of its finding; it is due at once."""
        self._lanes.setdefault(notice.finding.id, deque()).append(Pending(notice=notice, number=number, due_at=now))
        self._count += 1
        self._unnumbered += number is None

    def position(self, last_read: int) -> int:
        """Return the highest number up to which every notice is settled; `last_read` is the newest number read."""
        numbers = (one.number for lane in self._lanes.values() for one in lane if one.number is not None)
        return min(numbers, default=last_read + 1) - 1

    def due(self, now: float, limit: int) -> list[Pending]:
        """Return up to `limit` notices of different findings that may be attempted now, longest due first."""
        if now < self._due_at:
            return []
        heads = [lane[0] for lane in self._lanes.values() if lane[0].due_at <= now]
        return sorted(heads, key=lambda one: one.due_at)[:limit]

    def delay(self, now: float) -> float | None:
        """Return the seconds until a notice is due; None if none is pending."""
        if not self._lanes:
            return None
        return max(0.0, self._due_at - now, min(lane[0].due_at for lane in self._lanes.values()) - now)

    def accept(self, pending: Pending, now: float) -> None:
        """Remove a notice that the receiver accepted."""
        self._remove(pending)
        self.failures, self._accepted_at = 0, now

    def drop(self, pending: Pending) -> None:
        """Remove a notice that is not attempted again."""
        self._remove(pending)

    def fail(self, pending: Pending, now: float, retry_after: float | None, jitter: float) -> bool:
        """Record a failed attempt; return False if the notice was given up and removed.

        Args:
            pending: the notice.
            now: time of the failure.
            retry_after: seconds from the receiver, or None; they delay every notice.
            jitter: 0 to 1, as in `retry_delay`.
        """
        self.failures += 1
        self._due_at = now + retry_delay(self.failures, retry_after, jitter)
        pending.attempts += 1
        pending.due_at = now + retry_delay(pending.attempts, None, jitter)
        if pending.failed_at is None or pending.last_failed_at is None:
            pending.failed_at = pending.last_failed_at = now
            return True
        if self._accepted_at is not None and self._accepted_at > pending.last_failed_at:
            pending.alone_seconds += min(now - pending.last_failed_at, _LONGEST_STEP)
        pending.last_failed_at = now
        if pending.alone_seconds < ALONE_SECONDS and now - pending.failed_at < OUTAGE_SECONDS:
            return True
        self._remove(pending)
        return False

    def _remove(self, pending: Pending) -> None:
        lane = self._lanes[pending.notice.finding.id]
        assert lane[0] is pending
        lane.popleft()
        if not lane:
            del self._lanes[pending.notice.finding.id]
        self._count -= 1
        self._unnumbered -= pending.number is None
