"""States of senders, machines and views at an instant. Pure over the recorded reports."""

from gpufleet.hub.liveness.limits import LOST_SECONDS, LivenessLimits, limits_of, state_after
from gpufleet.hub.liveness.senders import SenderFreshness, Senders, answered_at
from gpufleet.model.api.senders import EpochConflict
from gpufleet.model.declarations import DECLARATION_TTL_NS
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.stored.ledger import MachineFreshness
from gpufleet.model.time import NANOS, to_datetime

FLUSH_SLACK_SECONDS = 5.0
"""Longest expected delay between the acknowledgement of a batch and the flush that updates its machines."""

SKEW_SUSPECT_SECONDS = 60.0
"""Clock offset beyond which the times of a sender's measurements are suspect."""

CLOCK_STEP_NS = 60 * NANOS
"""Receipt time this much after a newer report's: the hub's clock was set back in between."""

BACKLOG_SECONDS = 300.0
"""Age of the oldest queued batch from which on a sender's backlog makes its data partial."""


class LivenessSnapshot:
    """Liveness of everything at an instant. Created on the event loop, queried from any thread.

    Attributes:
        now: nanoseconds since 1970 by the hub's clock.
        second: seconds of the ingest clock.
        senders: all known senders.
        not_flushed: seconds by which the state of machines may lag behind the state of senders.
    """

    def __init__(self, senders: Senders, *, now: int, unflushed_since: int | None) -> None:
        """Take the hub's clock and the receipt time of the oldest unflushed batch; nanoseconds since 1970."""
        self.now = now
        self.senders = senders
        self.second = senders.now
        self._past = senders.past
        lag = 0.0 if unflushed_since is None else self._past.unseen_since(unflushed_since)
        self.not_flushed = lag + FLUSH_SLACK_SECONDS

    def unseen_since(self, at: int) -> float:
        """Return the ingest seconds since a time by the hub's clock, nanoseconds since 1970."""
        return self._past.unseen_since(at)

    def list_freshness(self, cluster: str | None = None) -> list[SenderFreshness]:
        """Return the freshness of every sender."""
        return list(self.senders.list_freshness(self.second, cluster))

    def find_freshness(self, cluster: str, sender: str) -> SenderFreshness | None:
        """Return the freshness of a sender, or None if it never reported."""
        return self.senders.find_freshness(self.second, cluster, sender)

    def sender(
        self, freshness: SenderFreshness, *, retired: bool = False, conflict: EpochConflict | None = None
    ) -> Liveness:
        """Return the liveness of a sender; it is retired if all its machines are."""
        if freshness.never_answered:
            return Liveness(state=State.RETIRED if retired else State.NEVER_SEEN, unseen_seconds=None)
        state = State.RETIRED if retired else state_after(freshness.unseen_seconds, _limits(freshness))
        suspect = [f"two machines number their batches under its epoch: {conflict.detail}"] if conflict else []
        ahead = freshness.clock_ahead_seconds
        if ahead is not None and abs(ahead) > SKEW_SUSPECT_SECONDS:
            suspect.append(f"its clock is {_off(ahead)} the hub's")
        return Liveness(
            state=state,
            unseen_seconds=freshness.unseen_seconds,
            unverified=freshness.unverified,
            partial=tuple(_backlog(freshness)),
            suspect=tuple(suspect),
        )

    def behind(self, report: int, newest: int) -> float:
        """Return the ingest seconds between a report and a newer one; 0 if it is not newer.

        Both are nanoseconds since 1970 by the hub's clock. A report with a later time than its successor was received
        before that clock was set back.
        """
        if 0 <= report - newest <= CLOCK_STEP_NS:
            return 0.0
        return max(0.0, self._past.unseen_since(report) - self._past.unseen_since(newest))

    def machine(self, machine: MachineFreshness) -> Liveness:
        """Return the liveness of a machine: its sender's, plus the lag of its last report behind the sender's newest.

        The lag counts only time in which the hub ingested. Therefore no outage of the hub, step of its clock, or
        unavailable store makes a machine look stale. A machine that only Kubernetes lists was never seen. It is
        retired once its reporter no longer lists it.
        """
        freshness = self.senders.find_freshness(self.second, machine.cluster, machine.sender)
        if machine.named_only:
            if freshness is None or freshness.never_answered:
                last_seen_at = machine.last_seen
            else:
                last_seen_at = answered_at(freshness.newest)
            unlisted = self.behind(machine.last_seen, last_seen_at) - self.not_flushed
            gone = machine.is_retired or unlisted > DECLARATION_TTL_NS / NANOS
            return Liveness(state=State.RETIRED if gone else State.NEVER_SEEN, unseen_seconds=None)
        if freshness is None:
            return Liveness(state=State.RETIRED if machine.is_retired else State.LOST, unseen_seconds=None)
        if freshness.never_answered:
            return Liveness(state=State.RETIRED if machine.is_retired else State.NEVER_SEEN, unseen_seconds=None)
        behind = self.behind(machine.last_seen, answered_at(freshness.newest)) - self.not_flushed
        unseen = freshness.unseen_seconds + max(0.0, behind)
        return Liveness(
            state=State.RETIRED if machine.is_retired else state_after(unseen, _limits(freshness)),
            unseen_seconds=unseen,
            unverified=freshness.unverified,
            suspect=("its evidence contradicts another machine's",) if machine.conflict else (),
        )


def view_liveness(machine: Liveness, behind_seconds: float, interval_seconds: float) -> Liveness:
    """Return the liveness of a view: its machine's, plus the lag of its newest sample behind the machine's last report.

    Args:
        machine: liveness of its machine.
        behind_seconds: between the receipt of the view's newest sample and of the machine's newest report.
        interval_seconds: of the lane of that sample.
    """
    if machine.unseen_seconds is None:
        return Liveness(state=machine.state, unseen_seconds=None)
    unseen = machine.unseen_seconds + max(0.0, behind_seconds)
    state = machine.state if machine.state is State.RETIRED else state_after(unseen, limits_of(interval_seconds))
    return Liveness(state=state, unseen_seconds=unseen, unverified=machine.unverified)


def complete_up_to(freshness: SenderFreshness) -> int | None:
    """Return the time up to which everything that a sender measured was received, except gaps.

    In nanoseconds since 1970 by the sender's clock. None if the sender is lost, or never reported its backlog or the
    age of it: totals do not wait for such a sender.
    """
    heartbeat = freshness.newest.heartbeat
    if heartbeat is None or freshness.never_answered or freshness.unseen_seconds >= LOST_SECONDS:
        return None
    if heartbeat.queue_records != 0 and heartbeat.oldest_unsent is None:
        return None  # it could not read its queue
    newest = freshness.newest.sent_at if heartbeat.answered_at is None else heartbeat.answered_at
    return min(heartbeat.oldest_unsent or newest, newest)  # a queued batch is newer if its clock was set back since


def _limits(freshness: SenderFreshness) -> LivenessLimits:
    return limits_of(freshness.newest.heartbeat.interval_seconds if freshness.newest.heartbeat else None)


def _backlog(freshness: SenderFreshness) -> list[str]:
    heartbeat = freshness.newest.heartbeat
    if heartbeat is None or not heartbeat.oldest_unsent or heartbeat.queue_records is None:
        return []
    # Age of the queue at the sender's last report, by its own clock, plus the time since that report.
    waits = (freshness.newest.sent_at - heartbeat.oldest_unsent) / NANOS + freshness.unseen_seconds
    if waits < BACKLOG_SECONDS:
        return []
    since = to_datetime(heartbeat.oldest_unsent)
    return [f"{heartbeat.queue_records} batches are queued at it, the oldest since {since:%Y-%m-%d %H:%M:%S}Z"]


def _off(ahead: float) -> str:
    return f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
