"""What the senders and machines of one cluster amount to, in one pass over each. Pure.

A hub may know 125,000 of each, and of nearly all of them only their silence is to be said. Those are counted by it;
the others are judged one by one, as they are where they are shown.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from gpufleet.hub.liveness.judging import BACK_NS, SKEW_SUSPECT_SECONDS, Instant, complete_up_to
from gpufleet.hub.liveness.limits import Limits, judge, limits_of
from gpufleet.hub.liveness.senders import Known, SenderLife, life_of
from gpufleet.model.answer import EpochConflict
from gpufleet.model.ledger import MachineMark
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.time import NANOS

_ORDER = {state: place for place, state in enumerate(State)}
"""Of senders that are equally silent, the one in the best state says how the cluster is."""


class Tally:
    """The counts, and what is to be said of those that are not merely live.

    Attributes:
        senders, machines: how many are in each state.
        nearest: the sender that was heard last and is not retired, or of retired ones where all are; None without any.
        complete_up_to: the earliest of its senders', nanoseconds since 1970; None where nobody can say.
        not_waited_for: senders that `complete_up_to` leaves out.
        dropped, queued: batches that senders gave up, and that wait at those that are not retired.
        ahead: seconds that the clock furthest off is ahead, of those that are not retired; None without any.
        aheads: seconds that each sender's clock is ahead.
        backlog: names of senders at which batches wait.
        suspect: name of a sender, and why it is suspect.
        clones: machines whose evidence contradicts another's, but retired ones.
    """

    def __init__(self) -> None:
        self.senders: Counter[State] = Counter()
        self.machines: Counter[State] = Counter()
        self.nearest: tuple[SenderLife, Liveness] | None = None
        self.complete_up_to: int | None = None
        self.not_waited_for = 0
        self.dropped = 0
        self.queued = 0
        self.ahead: float | None = None
        self.aheads: list[float] = []
        self.backlog: list[str] = []
        self.suspect: list[tuple[str, str]] = []
        self.clones = 0

    def add(self, life: SenderLife, judged: Liveness) -> None:
        """Count a sender."""
        self.senders[judged.state] += 1
        beat = life.heard.heartbeat
        is_active = judged.state is not State.RETIRED
        complete = complete_up_to(life) if is_active else None
        if complete is None:
            self.not_waited_for += 1
        else:
            self.complete_up_to = complete if self.complete_up_to is None else min(complete, self.complete_up_to)
        if is_active:
            self.queued += beat.queue_records if beat else 0
            self.ahead = max(self.ahead or 0.0, life.clock_ahead_seconds, key=abs)
        self.dropped += beat.dropped_total if beat else 0
        if self.nearest is None or _distance(life, judged) < _distance(*self.nearest):
            self.nearest = life, judged
        if judged.partial:
            self.backlog.append(life.sender)
        self.suspect += [(life.sender, why) for why in judged.suspect]

    def add_machine(self, judged: Liveness) -> None:
        """Count a machine."""
        self.machines[judged.state] += 1
        self.clones += bool(judged.suspect) and judged.state is not State.RETIRED


def tally(
    instant: Instant,
    cluster: str,
    marks: Sequence[MachineMark],
    retired: frozenset[str],
    conflicts: Mapping[str, EpochConflict],
) -> Tally:
    """Count a cluster.

    Args:
        instant: now.
        cluster: its id.
        marks: its machines.
        retired: senders that speak for retired machines only.
        conflicts: senders under whose epoch two machines count.
    """
    total = Tally()
    plain = _count_senders(total, instant, cluster, retired, conflicts)
    not_flushed = instant.not_flushed * NANOS
    for mark in marks:
        sender = plain.get(mark.sender)
        if sender is None or mark.conflict or mark.retired_at is not None or mark.named_only:
            total.add_machine(instant.machine(mark))
            continue
        heard_at, silent, limits, state = sender
        if -BACK_NS <= heard_at - mark.last_seen <= not_flushed:
            total.machines[state] += 1
            continue
        behind = instant.behind(mark.last_seen, heard_at) - instant.not_flushed
        total.machines[judge(silent + behind, limits) if behind > 0 else state] += 1
    total.backlog.sort()
    total.suspect.sort(key=lambda one: one[0])
    return total


_Plain = tuple[int, float, Limits, State]
"""When a sender was heard, for how long it is silent, what limits it has, and its state."""


def _count_senders(
    total: Tally, instant: Instant, cluster: str, retired: frozenset[str], conflicts: Mapping[str, EpochConflict]
) -> dict[str, _Plain]:
    """Count the senders; return those of which only their silence is to be said."""
    now, aheads = instant.second, total.aheads
    plain: dict[str, _Plain] = {}
    states = dict.fromkeys(State, 0)
    nearest: tuple[float, str, Known] | None = None
    nearest_place: tuple[float, int, bool] | None = None
    oldest, least, most = 2**63, 0.0, 0.0
    for name, known in instant.senders.of(cluster):
        heard, ahead = known.heard, known.ahead
        beat = heard.heartbeat
        aheads.append(ahead)
        if (
            beat is None
            or not (known.plain and heard.received_at > 0)
            or not -SKEW_SUSPECT_SECONDS <= ahead <= SKEW_SUSPECT_SECONDS
            or name in retired
            or name in conflicts
        ):
            life = life_of(cluster, name, known, now)
            total.add(life, instant.sender(life, retired=name in retired, conflict=conflicts.get(name)))
            continue
        limits = limits_of(beat.interval_seconds)
        # Whoever has not spoken since the start, and had no time to yet, is as it was then.
        silent = (now if known.since_start or now >= limits.late else 0.0) - known.spoke_at
        if silent < limits.late:
            state = State.LIVE
            silent = max(silent, 0.0)
        else:
            state = judge(silent, limits)
        states[state] += 1
        plain[name] = heard.received_at, silent, limits, state
        if state is not State.LOST and heard.sent_at < oldest:
            oldest = heard.sent_at
        if ahead < least:  # min() and max() would take half of all this
            least = ahead
        elif ahead > most:
            most = ahead
        if nearest is None or silent <= nearest[0]:
            place = silent, _ORDER[state], not known.since_start and now < limits.late
            if nearest_place is None or place < nearest_place:
                nearest, nearest_place = (silent, name, known), place
    if nearest is not None:
        life = life_of(cluster, nearest[1], nearest[2], now)
        judged = instant.sender(life)
        states[judged.state] -= 1
        total.add(life, judged)
        total.senders.update(states)
        total.not_waited_for += states[State.LOST]
        if oldest < 2**63 and total.complete_up_to is not None:
            total.complete_up_to = min(total.complete_up_to, oldest)
        total.ahead = max(total.ahead or 0.0, least, most, key=abs)
    return plain


def _distance(life: SenderLife, judged: Liveness) -> tuple[bool, bool, float, int, bool]:
    return judged.state is State.RETIRED, life.never, life.silent_seconds, _ORDER[judged.state], life.unverified
