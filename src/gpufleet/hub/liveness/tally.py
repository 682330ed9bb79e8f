"""Liveness of a cluster: its senders and machines counted by state. Pure.

A hub may have 125,000 of each. For most of them only the time without heartbeat matters: those are counted in numpy.
The others are judged individually, with the functions that also judge them where they are shown.
"""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from gpufleet.hub.liveness.limits import LOST_SECONDS, LivenessLimits, state_after
from gpufleet.hub.liveness.senders import Column, SenderFreshness, Senders, answered_at
from gpufleet.hub.liveness.states import CLOCK_STEP_NS, SKEW_SUSPECT_SECONDS, LivenessSnapshot, complete_up_to
from gpufleet.model.api.answer import Coverage
from gpufleet.model.api.senders import EpochConflict
from gpufleet.model.liveness import ClusterFreshness, Liveness, State
from gpufleet.model.stored.ledger import MachineFreshnessColumns
from gpufleet.model.time import NANOS, to_datetime

_STATES = (State.LIVE, State.LATE, State.STALE, State.LOST)
_LOST = _STATES.index(State.LOST)

_ORDER = {state: place for place, state in enumerate(State)}
"""Rank of each state: of senders with equal time without heartbeat, the best state counts for the cluster."""


NO_MACHINES = MachineFreshnessColumns(ids=[], senders=[], last_seen=array("q"))


class SenderPlaces:
    """Rows of the senders of machines. Those of a cluster are found again when its machines or their senders change."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, Column]] = {}

    def of(self, senders: Senders, cluster: str, machines: MachineFreshnessColumns) -> Column:
        """Return the row of the sender of each machine, -1 for one that never reported."""
        version, places = self._found.get(cluster, (machines.version, np.empty(0, np.int64)))
        if version != machines.version or len(places) != len(machines.senders):
            places = np.array(senders.places(cluster, machines.senders), np.int64)
        elif (missing := np.flatnonzero(places < 0)).size:
            places = places.copy()  # another thread may read it
            places[missing] = senders.places(cluster, [machines.senders[number] for number in missing])
        self._found[cluster] = machines.version, places
        return places


class ClusterTally:
    """Counts by state of a cluster, and details of the senders and machines that are not simply live.

    Attributes:
        senders, machines: number in each state.
        nearest: the most recently seen sender, of the retired ones only if all are; None if there is none.
        complete_up_to: the earliest of its senders', nanoseconds since 1970; None if unknown.
        not_waited_for: number of senders that `complete_up_to` leaves out.
        dropped, queued: batches that senders dropped; batches queued at senders that are not retired. None without a
            sender that reports them: a writer, a polled target or an agent that cannot open its spool does not.
        ahead: clock offset in seconds with the largest absolute value, retired senders excluded; None if unknown.
        aheads: clock offset in seconds of each sender, NaN if unknown.
        backlog: names of senders with a backlog.
        suspect: (sender, why it is suspect).
        clones: machines whose evidence contradicts another's, except retired ones.
    """

    def __init__(self) -> None:
        self.senders: Counter[State] = Counter()
        self.machines: Counter[State] = Counter()
        self.nearest: tuple[SenderFreshness, Liveness] | None = None
        self.complete_up_to: int | None = None
        self.not_waited_for = 0
        self.dropped: int | None = None
        self.queued: int | None = None
        self.ahead: float | None = None
        self.aheads: Column = np.empty(0)
        self.backlog: list[str] = []
        self.suspect: list[tuple[str, str]] = []
        self.clones = 0

    def add(self, freshness: SenderFreshness, judged: Liveness) -> None:
        """Count a sender."""
        self.senders[judged.state] += 1
        heartbeat = freshness.newest.own_heartbeat
        is_active = judged.state is not State.RETIRED
        complete = complete_up_to(freshness) if is_active else None
        if complete is None:
            self.not_waited_for += 1
        else:
            self.complete_up_to = complete if self.complete_up_to is None else min(complete, self.complete_up_to)
        if is_active and freshness.clock_ahead_seconds is not None:
            self.ahead = max(self.ahead or 0.0, freshness.clock_ahead_seconds, key=abs)
        if heartbeat is not None and heartbeat.dropped_total is not None:
            self.dropped = (self.dropped or 0) + heartbeat.dropped_total
        if heartbeat is not None and heartbeat.queue_records is not None:
            self.queued = (self.queued or 0) + is_active * heartbeat.queue_records
        if self.nearest is None or _distance(freshness, judged) < _distance(*self.nearest):
            self.nearest = freshness, judged
        if judged.partial:
            self.backlog.append(freshness.sender)
        self.suspect += [(freshness.sender, why) for why in judged.suspect]

    def add_machine(self, judged: Liveness) -> None:
        """Count a machine."""
        self.machines[judged.state] += 1
        self.clones += bool(judged.suspect) and judged.state is not State.RETIRED


def tally(
    instant: LivenessSnapshot,
    cluster: str,
    machines: MachineFreshnessColumns,
    retired: frozenset[str],
    conflicts: Mapping[str, EpochConflict],
    places: SenderPlaces | None = None,
) -> ClusterTally:
    """Count the senders and machines of a cluster.

    Args:
        instant: liveness now.
        cluster: its id.
        machines: its machines.
        retired: senders whose machines are all retired.
        conflicts: senders whose epoch is used by two machines.
        places: rows of the senders of machines, if they are kept.
    """
    total = ClusterTally()
    plain = _count_senders(total, instant, cluster, retired, conflicts)
    found = (places or SenderPlaces()).of(instant.senders, cluster, machines)
    _count_machines(total, instant, cluster, machines, plain, found)
    for machine in machines.others:
        total.add_machine(instant.machine(machine))
    total.backlog.sort()
    total.suspect.sort(key=lambda one: one[0])
    return total


class _PlainSenders(msgspec.Struct, frozen=True):
    """Senders whose state follows from the time without heartbeat alone, with a row for every sender.

    Attributes:
        are: whether the sender belongs to them.
        received_at: receipt of the newest report, nanoseconds since 1970.
        unseen: seconds without heartbeat.
        late, stale: limits in seconds.
        states: index of the state in `_STATES`.
    """

    are: Column
    received_at: Column
    unseen: Column
    late: Column
    stale: Column
    states: Column


def _count_senders(
    total: ClusterTally,
    instant: LivenessSnapshot,
    cluster: str,
    retired: frozenset[str],
    conflicts: Mapping[str, EpochConflict],
) -> _PlainSenders:
    """Count the senders; return those of `_PlainSenders`."""
    now = instant.second
    rows = instant.senders.report_rows(cluster)
    names = instant.senders.names(cluster)
    ahead = np.ascontiguousarray(rows["ahead"])
    total.aheads = ahead
    are = rows["is_plain"] & (ahead >= -SKEW_SUSPECT_SECONDS) & (ahead <= SKEW_SUSPECT_SECONDS)
    special = instant.senders.places(cluster, (*retired, *conflicts))
    are[[place for place in special if 0 <= place < len(are)]] = False
    for place in np.flatnonzero(~are):
        name = names[place]
        freshness = instant.find_freshness(cluster, name)
        assert freshness is not None, "senders are never removed"
        total.add(freshness, instant.sender(freshness, retired=name in retired, conflict=conflicts.get(name)))
    late, stale = np.ascontiguousarray(rows["late"]), np.ascontiguousarray(rows["stale"])
    # A sender without a report since the start, and not yet late, keeps the state that it had at the start.
    is_live = rows["since_start"] | (now >= late)
    unseen = np.maximum(np.where(is_live, now, 0.0) - rows["reported_at"], 0.0)
    states = _states(unseen, late, stale)
    plain = _PlainSenders(are, np.ascontiguousarray(rows["received_at"]), unseen, late, stale, states)
    mine = np.flatnonzero(are)
    if len(mine):
        least = mine[unseen[mine] == unseen[mine].min()]
        nearest = least[np.argmin(2 * states[least] + ~is_live[least])]
        freshness = instant.find_freshness(cluster, names[nearest])
        assert freshness is not None, "senders are never removed"
        total.add(freshness, instant.sender(freshness))
        others = states[mine[mine != nearest]]
        total.senders.update(_counted(others))
        total.not_waited_for += int((others == _LOST).sum())
        waited_for = rows["sent_at"][mine[states[mine] != _LOST]]
        if len(waited_for) and total.complete_up_to is not None:
            total.complete_up_to = min(total.complete_up_to, int(waited_for.min()))
        total.ahead = max(total.ahead or 0.0, float(ahead[mine].min()), float(ahead[mine].max()), key=abs)
    return plain


def _count_machines(
    total: ClusterTally,
    instant: LivenessSnapshot,
    cluster: str,
    machines: MachineFreshnessColumns,
    plain: _PlainSenders,
    places: Column,
) -> None:
    """Count the machines; only those of senders that are not plain, or with a lag, are judged individually."""
    is_plain = (places >= 0) & (places < len(plain.are))
    is_plain[is_plain] = plain.are[places[is_plain]]
    last_seen = np.array(machines.last_seen, np.int64)
    lag = np.full(len(places), -1, np.int64)
    lag[is_plain] = plain.received_at[places[is_plain]] - last_seen[is_plain]
    is_near = is_plain & (lag >= -CLOCK_STEP_NS) & (lag <= instant.not_flushed * NANOS)
    total.machines.update(_counted(plain.states[places[is_near]]))
    for number in np.flatnonzero(~is_near):
        place = places[number]
        if not is_plain[number]:
            total.add_machine(instant.machine(machines.at(cluster, int(number))))
            continue
        behind = instant.behind(int(last_seen[number]), int(plain.received_at[place])) - instant.not_flushed
        limits = LivenessLimits(late=float(plain.late[place]), stale=float(plain.stale[place]))
        state = state_after(float(plain.unseen[place]) + behind, limits) if behind > 0 else _STATES[plain.states[place]]
        total.machines[state] += 1


def _states(unseen: Column, late: Column, stale: Column) -> Column:
    """Return the index of each state in `_STATES`, by the rules of `state_after`."""
    return np.where(unseen >= LOST_SECONDS, 3, np.where(unseen >= stale, 2, np.where(unseen >= late, 1, 0)))


def _counted(states: Column) -> dict[State, int]:
    counts = np.bincount(states, minlength=len(_STATES))
    return {state: int(count) for state, count in zip(_STATES, counts, strict=True) if count}


def _distance(freshness: SenderFreshness, judged: Liveness) -> tuple[bool, bool, float, int, bool]:
    return (
        judged.state is State.RETIRED,
        freshness.never_answered,
        freshness.unseen_seconds,
        _ORDER[judged.state],
        freshness.unverified,
    )


MAX_NAMED = 5
"""Maximum number of senders named in a message; the rest is counted."""


def roll_up(total: ClusterTally, coverage: Coverage | None, *, closed: bool, missing: int) -> ClusterFreshness:
    """Return the freshness of a cluster.

    Args:
        total: its senders and machines.
        coverage: its GPUs, as far as known.
        closed: the cluster was closed: nothing is expected of it.
        missing: batches of it that are lost or still on the way.
    """
    freshness, judged = total.nearest or (None, None)
    return ClusterFreshness(
        liveness=Liveness(
            state=State.RETIRED if closed else judged.state if judged else State.NEVER_SEEN,
            unseen_seconds=judged.unseen_seconds if judged else None,
            unverified=judged is not None and judged.unverified,
            partial=() if closed else tuple(_partial(total, coverage)),
            suspect=tuple(_suspect(total)),
        ),
        last_seen_at=to_datetime(answered_at(freshness.newest)) if freshness and not freshness.never_answered else None,
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
    """Return the number in each state that occurs, best state first."""
    return {state: counted[state] for state in State if counted[state]}


def _partial(total: ClusterTally, coverage: Coverage | None) -> list[str]:
    details = []
    for what, found in (("senders", total.senders), ("machines", total.machines)):
        expected = found.total() - found[State.RETIRED]
        not_live = expected - found[State.LIVE]
        if not_live:
            details.append(f"{not_live} of {expected} {what} are not live")
    if total.backlog:
        details.append(f"batches are queued at {_named(total.backlog)}")
    if coverage is not None and coverage.expected is not None and coverage.reporting < coverage.expected:
        details.append(f"GPUs reporting: {coverage.summary}")
    return details


def _suspect(total: ClusterTally) -> list[str]:
    details = [f"{sender}: {why}" for sender, why in total.suspect]
    shown = details[:MAX_NAMED] + ([f"and {len(details) - MAX_NAMED} more"] if len(details) > MAX_NAMED else [])
    clones = total.clones
    return [*shown, *([f"evidence of {clones} machines contradicts another machine's"] if clones else [])]


def _named(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
