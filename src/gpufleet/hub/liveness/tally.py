"""What the senders and machines of one cluster amount to, in one pass over each. Pure.

A hub may know 125,000 of each, and of nearly all of them only their silence is to be said. Those are counted by it;
the others are judged one by one, as they are where they are shown.

A cluster's freshness out of what its senders and machines amount to. Pure.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from gpufleet.hub.liveness.limits import LOST_SECONDS, Limits, judge
from gpufleet.hub.liveness.senders import Column, SenderLife, answered_at
from gpufleet.hub.liveness.states import BACK_NS, SKEW_SUSPECT_SECONDS, Instant, complete_up_to
from gpufleet.model.api.answer import Coverage, EpochConflict
from gpufleet.model.liveness import Freshness, Liveness, State
from gpufleet.model.stored.ledger import MachinesHeard
from gpufleet.model.time import NANOS, to_datetime

_STATES = (State.LIVE, State.LATE, State.STALE, State.LOST)
_LOST = _STATES.index(State.LOST)

_ORDER = {state: place for place, state in enumerate(State)}
"""Of senders that are equally silent, the one in the best state says how the cluster is."""


NO_MACHINES = MachinesHeard(ids=[], senders=[], last_seen=[])


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
        self.aheads: Column = np.empty(0)
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
    machines: MachinesHeard,
    retired: frozenset[str],
    conflicts: Mapping[str, EpochConflict],
) -> Tally:
    """Count a cluster.

    Args:
        instant: now.
        cluster: its id.
        machines: its machines.
        retired: senders that speak for retired machines only.
        conflicts: senders under whose epoch two machines count.
    """
    total = Tally()
    plain = _count_senders(total, instant, cluster, retired, conflicts)
    _count_machines(total, instant, cluster, machines, plain)
    for mark in machines.others:
        total.add_machine(instant.machine(mark))
    total.backlog.sort()
    total.suspect.sort(key=lambda one: one[0])
    return total


class _Plain(msgspec.Struct, frozen=True):
    """Those of whom only their silence is to be said, by the rows of all senders.

    Attributes:
        are: which they are.
        received_at: when they were heard, nanoseconds since 1970.
        silent: for how many seconds they are silent.
        late, stale: after how many they are so.
        states: the place of each one's state among the states.
    """

    are: Column
    received_at: Column
    silent: Column
    late: Column
    stale: Column
    states: Column


def _count_senders(
    total: Tally, instant: Instant, cluster: str, retired: frozenset[str], conflicts: Mapping[str, EpochConflict]
) -> _Plain:
    """Count the senders; return those of which only their silence is to be said."""
    now = instant.second
    rows = instant.senders.words(cluster)
    names = instant.senders.names(cluster)
    ahead = np.ascontiguousarray(rows["ahead"])
    total.aheads = ahead
    are = rows["is_plain"] & (ahead >= -SKEW_SUSPECT_SECONDS) & (ahead <= SKEW_SUSPECT_SECONDS)
    special = instant.senders.places(cluster, (*retired, *conflicts))
    are[[place for place in special if 0 <= place < len(are)]] = False
    for place in np.flatnonzero(~are):
        name = names[place]
        life = instant.life(cluster, name)
        assert life is not None, "nobody who was heard of is forgotten"
        total.add(life, instant.sender(life, retired=name in retired, conflict=conflicts.get(name)))
    late, stale = np.ascontiguousarray(rows["late"]), np.ascontiguousarray(rows["stale"])
    # Whoever has not spoken since the start, and had no time to yet, is as it was then.
    is_heard = rows["since_start"] | (now >= late)
    silent = np.maximum(np.where(is_heard, now, 0.0) - rows["spoke_at"], 0.0)
    states = _judged(silent, late, stale)
    plain = _Plain(are, np.ascontiguousarray(rows["received_at"]), silent, late, stale, states)
    mine = np.flatnonzero(are)
    if len(mine):
        least = mine[silent[mine] == silent[mine].min()]
        nearest = least[np.argmin(2 * states[least] + ~is_heard[least])]
        life = instant.life(cluster, names[nearest])
        assert life is not None, "as above"
        total.add(life, instant.sender(life))
        others = states[mine[mine != nearest]]
        total.senders.update(_counted(others))
        total.not_waited_for += int((others == _LOST).sum())
        waited_for = rows["sent_at"][mine[states[mine] != _LOST]]
        if len(waited_for) and total.complete_up_to is not None:
            total.complete_up_to = min(total.complete_up_to, int(waited_for.min()))
        total.ahead = max(total.ahead or 0.0, float(ahead[mine].min()), float(ahead[mine].max()), key=abs)
    return plain


def _count_machines(total: Tally, instant: Instant, cluster: str, machines: MachinesHeard, plain: _Plain) -> None:
    """Count the machines of which nothing is to be said but when they were heard of."""
    places = np.array(instant.senders.places(cluster, machines.senders), np.int64)
    is_plain = (places >= 0) & (places < len(plain.are))
    is_plain[is_plain] = plain.are[places[is_plain]]
    last_seen = np.array(machines.last_seen, np.int64)
    lag = np.full(len(places), -1, np.int64)
    lag[is_plain] = plain.received_at[places[is_plain]] - last_seen[is_plain]
    is_near = is_plain & (lag >= -BACK_NS) & (lag <= instant.not_flushed * NANOS)
    total.machines.update(_counted(plain.states[places[is_near]]))
    for number in np.flatnonzero(~is_near):
        place = places[number]
        if not is_plain[number]:
            total.add_machine(instant.machine(machines.mark(cluster, int(number))))
            continue
        behind = instant.behind(int(last_seen[number]), int(plain.received_at[place])) - instant.not_flushed
        limits = Limits(late=float(plain.late[place]), stale=float(plain.stale[place]))
        judged = judge(float(plain.silent[place]) + behind, limits) if behind > 0 else _STATES[plain.states[place]]
        total.machines[judged] += 1


def _judged(silent: Column, late: Column, stale: Column) -> Column:
    """Return the place of the state of each after so much silence, as `judge` has it."""
    return np.where(silent >= LOST_SECONDS, 3, np.where(silent >= stale, 2, np.where(silent >= late, 1, 0)))


def _counted(states: Column) -> dict[State, int]:
    counts = np.bincount(states, minlength=len(_STATES))
    return {state: int(count) for state, count in zip(_STATES, counts, strict=True) if count}


def _distance(life: SenderLife, judged: Liveness) -> tuple[bool, bool, float, int, bool]:
    return judged.state is State.RETIRED, life.never, life.silent_seconds, _ORDER[judged.state], life.unverified


NAMED = 5
"""Senders and machines that are named where something is wrong with them; the rest is counted."""


def roll_up(total: Tally, coverage: Coverage | None, *, closed: bool, missing: int) -> Freshness:
    """Return how fresh a cluster is.

    Args:
        total: its senders and machines.
        coverage: its GPUs, as far as they are known.
        closed: it was closed: nothing is expected of it.
        missing: batches of it lost or on the way.
    """
    life, judged = total.nearest or (None, None)
    return Freshness(
        liveness=Liveness(
            state=State.RETIRED if closed else judged.state if judged else State.NEVER_SEEN,
            silent_seconds=judged.silent_seconds if judged else None,
            unverified=judged is not None and judged.unverified,
            partial=() if closed else tuple(_partial(total, coverage)),
            suspect=tuple(_suspect(total)),
        ),
        heard_at=to_datetime(answered_at(life.heard)) if life and not life.never else None,
        senders=in_order(total.senders),
        machines=in_order(total.machines),
        complete_up_to=to_datetime(total.complete_up_to) if total.complete_up_to is not None else None,
        not_waited_for=total.not_waited_for,
        missing_batches=missing,
        dropped_batches=total.dropped,
        queued_batches=total.queued,
        clock_ahead_seconds=total.ahead,
    )


def in_order(counted: Counter[State]) -> dict[State, int]:
    """Return the states that anybody is in, the best first, with how many are."""
    return {state: counted[state] for state in State if counted[state]}


def _partial(total: Tally, coverage: Coverage | None) -> list[str]:
    words = []
    for what, found in (("senders", total.senders), ("machines", total.machines)):
        expected = found.total() - found[State.RETIRED]
        silent = expected - found[State.LIVE]
        if silent:
            words.append(f"{silent} of {expected} {what} are not live")
    if total.backlog:
        words.append(f"batches wait at {_named(total.backlog)}")
    if coverage is not None and coverage.expected is not None and coverage.reporting < coverage.expected:
        words.append(f"GPUs reporting: {coverage.words}")
    return words


def _suspect(total: Tally) -> list[str]:
    words = [f"{sender}: {why}" for sender, why in total.suspect]
    shown = words[:NAMED] + ([f"and {len(words) - NAMED} more"] if len(words) > NAMED else [])
    clones = total.clones
    return [*shown, *([f"evidence of {clones} machines contradicts another machine's"] if clones else [])]


def _named(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
