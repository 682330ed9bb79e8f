"""The states of senders, machines and views at one instant. Pure over what is remembered."""

from gpufleet.hub.liveness.limits import LOST_SECONDS, Limits, judge, limits_of
from gpufleet.hub.liveness.senders import SenderLife, Senders, answered_at
from gpufleet.model.api.answer import EpochConflict
from gpufleet.model.declared import BELIEVED_NS
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.stored.ledger import MachineMark
from gpufleet.model.time import NANOS, to_datetime

FLUSH_SLACK_SECONDS = 5.0
"""What was taken is with the machines after the next flush, which may be so far away."""

SKEW_SUSPECT_SECONDS = 60.0
"""A clock that is further off makes the times of all that its sender measured doubtful."""

BACK_NS = 60 * NANOS
"""Words that are of so much later a time than newer ones show that the hub's clock was set back."""

BACKLOG_SECONDS = 300.0
"""What waits at a sender for longer is missing here."""


class Instant:
    """One instant, at which everything is judged. Made on the event loop, asked on any thread.

    Attributes:
        now: nanoseconds since 1970 by the hub's clock.
        second: of listening.
        senders: everybody who was heard of.
        not_flushed: seconds by which what is known of machines may be behind what is known of senders.
    """

    def __init__(self, senders: Senders, *, now: int, unflushed_since: int | None) -> None:
        """Take the hub's clock, and when the oldest batch came that is not flushed yet; nanoseconds since 1970."""
        self.now = now
        self.senders = senders
        self.second = senders.now
        self._past = senders.past
        lag = 0.0 if unflushed_since is None else self._past.silence_since(unflushed_since)
        self.not_flushed = lag + FLUSH_SLACK_SECONDS

    def lives(self, cluster: str | None = None) -> list[SenderLife]:
        """Return how recently every sender was heard of."""
        return list(self.senders.lives(self.second, cluster))

    def life(self, cluster: str, sender: str) -> SenderLife | None:
        """Return how recently one was heard of, or None if it never was."""
        return self.senders.life(self.second, cluster, sender)

    def sender(self, life: SenderLife, *, retired: bool = False, conflict: EpochConflict | None = None) -> Liveness:
        """Judge a sender; it is retired where all its machines are."""
        if life.never:
            return Liveness(state=State.RETIRED if retired else State.NEVER_SEEN, silent_seconds=None)
        state = State.RETIRED if retired else judge(life.silent_seconds, _limits(life))
        suspect = [f"two machines count under its epoch: {conflict.detail}"] if conflict else []
        if abs(life.clock_ahead_seconds) > SKEW_SUSPECT_SECONDS:
            suspect.append(f"its clock is {_off(life.clock_ahead_seconds)} the hub's")
        return Liveness(
            state=state,
            silent_seconds=life.silent_seconds,
            unverified=life.unverified,
            partial=tuple(_backlog(life)),
            suspect=tuple(suspect),
        )

    def behind(self, word: int, newest: int) -> float:
        """Return the seconds in which the hub could hear from one word to a newer one; 0 if it is not newer.

        Both by the hub's clock, nanoseconds since 1970: a word that is of a later time than a newer one was received
        before that clock was set back.
        """
        if 0 <= word - newest <= BACK_NS:
            return 0.0
        return max(0.0, self._past.silence_since(word) - self._past.silence_since(newest))

    def machine(self, mark: MachineMark) -> Liveness:
        """Judge a machine: as its sender, and by how far what was said of it last is behind its sender's newest word.

        How far that is counts the time in which the hub could hear, so neither an outage nor a step of its clock, nor
        a store that does not take anything, makes a machine look silent. One that only Kubernetes names was never seen;
        once who named it no longer does, nobody expects it.
        """
        life = self.senders.life(self.second, mark.cluster, mark.sender)
        if mark.named_only:
            heard_at = mark.last_seen if life is None or life.never else answered_at(life.heard)
            unnamed = self.behind(mark.last_seen, heard_at) - self.not_flushed
            gone = mark.is_retired or unnamed > BELIEVED_NS / NANOS
            return Liveness(state=State.RETIRED if gone else State.NEVER_SEEN, silent_seconds=None)
        if life is None:
            return Liveness(state=State.RETIRED if mark.is_retired else State.LOST, silent_seconds=None)
        if life.never:
            return Liveness(state=State.RETIRED if mark.is_retired else State.NEVER_SEEN, silent_seconds=None)
        behind = self.behind(mark.last_seen, answered_at(life.heard)) - self.not_flushed
        silent = life.silent_seconds + max(0.0, behind)
        return Liveness(
            state=State.RETIRED if mark.is_retired else judge(silent, _limits(life)),
            silent_seconds=silent,
            unverified=life.unverified,
            suspect=("its evidence contradicts another machine's",) if mark.conflict else (),
        )


def judge_view(machine: Liveness, behind_seconds: float, interval_seconds: float) -> Liveness:
    """Judge a view: as its machine, and by how far its newest sample is behind what was said of that last.

    Args:
        machine: its machine's.
        behind_seconds: between the receipt of the view's newest sample and of the machine's newest word.
        interval_seconds: of the lane that the sample is of.
    """
    if machine.silent_seconds is None:
        return Liveness(state=machine.state, silent_seconds=None)
    silent = machine.silent_seconds + max(0.0, behind_seconds)
    state = machine.state if machine.state is State.RETIRED else judge(silent, limits_of(interval_seconds))
    return Liveness(state=state, silent_seconds=silent, unverified=machine.unverified)


def complete_up_to(life: SenderLife) -> int | None:
    """Return up to when everything that a sender measured is here, but for gaps, in nanoseconds since 1970.

    By its own clock. None where it never said what waits at it, or since when, or is lost: totals do not wait for it.
    """
    heartbeat = life.heard.heartbeat
    if heartbeat is None or life.never or life.silent_seconds >= LOST_SECONDS:
        return None
    if heartbeat.queue_records and heartbeat.oldest_unsent is None:
        return None  # it could not read what waits
    newest = life.heard.sent_at if heartbeat.answered_at is None else heartbeat.answered_at
    return min(heartbeat.oldest_unsent or newest, newest)  # what waits is later where its clock was set back since


def _limits(life: SenderLife) -> Limits:
    return limits_of(life.heard.heartbeat.interval_seconds if life.heard.heartbeat else None)


def _backlog(life: SenderLife) -> list[str]:
    heartbeat = life.heard.heartbeat
    if heartbeat is None or not heartbeat.oldest_unsent:
        return []
    # By its own clock: how long ago it was when the sender said so, and how long ago that is.
    waits = (life.heard.sent_at - heartbeat.oldest_unsent) / NANOS + life.silent_seconds
    if waits < BACKLOG_SECONDS:
        return []
    since = to_datetime(heartbeat.oldest_unsent)
    return [f"{heartbeat.queue_records} batches wait at it, the oldest since {since:%Y-%m-%d %H:%M:%S}Z"]


def _off(ahead: float) -> str:
    return f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
