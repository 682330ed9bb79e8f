"""Cluster tally: the vectorised totals equal the judgement of each sender and machine."""

import datetime as dt
from array import array
from collections import Counter

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.hub.liveness.senders import SenderReport, Senders, answered_at
from gpufleet.hub.liveness.states import LivenessSnapshot, complete_up_to
from gpufleet.hub.liveness.tally import NO_MACHINES, SenderPlaces, in_order, roll_up, tally
from gpufleet.hub.liveness.uptime import SUSPENDED_SECONDS, IngestClock, IngestHistory
from gpufleet.model.api.senders import EpochConflict
from gpufleet.model.liveness import ClusterFreshness, State
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.ledger import MachineFreshness, MachineFreshnessColumns, NewestReport, SenderState
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import WireBatch
from tests.fakes.clock import FakeClock
from tests.support.profiles import examples

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
CONFLICT = EpochConflict(epoch="e", batches=1, first_at=AT, last_at=AT, detail="two of them")
CLUSTER = "local"


class SenderCase(msgspec.Struct, frozen=True, kw_only=True):
    """Sender with the age and content of its newest report and the state of its machine."""

    ago: int
    since_start: bool
    ahead: float
    interval: float | None
    unsent_ago: int | None
    queued: int | None
    dropped: int | None
    answered_ago: int | None
    conflict: bool
    machine_behind: int
    retired: bool
    cloned: bool


SENDER_CASES = st.builds(
    SenderCase,
    ago=st.sampled_from([0, 1, 30, 74, 75, 76, 400, 3601]),
    since_start=st.booleans(),
    ahead=st.sampled_from([0.0, 0.0, 3.5, -59.0, 61.0, -300.0]),
    interval=st.sampled_from([30.0, 30.0, 10.0, None]),
    unsent_ago=st.sampled_from([None, None, 10, 400]),
    queued=st.sampled_from([0, 0, 3, None]),
    dropped=st.sampled_from([0, 0, 7, None]),
    answered_ago=st.sampled_from([None, None, 0, 500]),
    conflict=st.sampled_from([False, False, True]),
    machine_behind=st.sampled_from([0, 2, 5, 6, 200, 4000]),
    retired=st.sampled_from([False, False, True]),
    cloned=st.sampled_from([False, False, True]),
)


def beat_of(one: SenderCase, sent_at: int) -> Heartbeat | None:
    if one.interval is None:
        return None
    return Heartbeat(
        interval_seconds=one.interval,
        version="1",
        started_at=1,
        queue_records=one.queued,
        oldest_unsent=None if one.unsent_ago is None else sent_at - one.unsent_ago * NANOS,
        dropped_total=one.dropped,
        answered_at=None if one.answered_ago is None else sent_at - one.answered_ago * NANOS,
    )


def batch_of(name: str, one: SenderCase, sent_at: int) -> WireBatch:
    return WireBatch(
        version=1,
        catalogue=1,
        cluster=CLUSTER,
        sender=name,
        epoch="e",
        seq=1,
        sent_at=sent_at,
        heartbeat=beat_of(one, sent_at),
        machines=[],
        views=[],
        absences=[],
        samples=[],
        dims=[],
        parts=[],
    )


def fleet_of(cases: list[SenderCase]) -> tuple[LivenessSnapshot, list[MachineFreshness]]:
    """Send each sender's report at its time; return the snapshot and one machine per sender."""
    clock = FakeClock()
    start = clock.now_ns()
    before = [
        SenderState(
            cluster=CLUSTER,
            sender=f"s{number:02d}",
            newest_report=NewestReport(
                epoch="e",
                seq=1,
                sent_at=start - int((100 - one.ahead) * NANOS),
                received_at=start - 100 * NANOS,
                heartbeat=beat_of(one, start - int((100 - one.ahead) * NANOS)),
            ),
        )
        for number, one in enumerate(cases)
        if not one.since_start
    ]
    ingest_clock = IngestClock(clock, IngestHistory.until(start))
    senders = Senders(ingest_clock, before)
    reports = sorted((one.ago, number) for number, one in enumerate(cases) if one.since_start)
    left = max((ago for ago, _ in reports), default=10)
    while True:
        while reports and reports[-1][0] >= left:
            number = reports.pop()[1]
            now = clock.now_ns()
            batch = batch_of(f"s{number:02d}", cases[number], now + int(cases[number].ahead * NANOS))
            senders.note(SenderReport(batch=batch, received_at=now, known_epoch=False))
        if left <= 0:
            break
        step = min(left - max((ago for ago, _ in reports), default=0), SUSPENDED_SECONDS)
        clock.advance(step)
        _ = ingest_clock.seconds
        left -= int(step)
    instant = LivenessSnapshot(senders, now=clock.now_ns(), unflushed_since=None)
    marks = []
    for number, one in enumerate(cases):
        freshness = instant.find_freshness(CLUSTER, f"s{number:02d}")
        assert freshness is not None
        seen = max(1, freshness.newest.received_at - one.machine_behind * NANOS)
        gone = seen if one.retired else None
        name = f"s{number:02d}"
        marks.append(
            MachineFreshness(
                id=f"m{number}", cluster=CLUSTER, sender=name, last_seen=seen, retired_at=gone, conflict=one.cloned
            )
        )
    return instant, marks


def freshness_columns(marks: list[MachineFreshness], version: int = 0) -> MachineFreshnessColumns:
    plain = [one for one in marks if not one.conflict and one.retired_at is None and not one.named_only]
    return MachineFreshnessColumns(
        ids=[one.id for one in plain],
        senders=[one.sender for one in plain],
        last_seen=array("q", [one.last_seen for one in plain]),
        others=tuple(one for one in marks if one not in plain),
        version=version,
    )


def individually(
    instant: LivenessSnapshot, marks: list[MachineFreshness], conflicts: dict[str, EpochConflict]
) -> ClusterFreshness:
    """Return the same freshness from individual judgements."""
    gone = {one.sender for one in marks if one.is_retired}
    senders = [
        (one, instant.sender(one, retired=one.sender in gone, conflict=conflicts.get(one.sender)))
        for one in instant.list_freshness()
    ]
    machines = [instant.machine(one) for one in marks]
    active = [(freshness, one) for freshness, one in senders if one.state is not State.RETIRED]
    order = (State.LIVE, State.LATE, State.STALE, State.LOST, State.NEVER_SEEN, State.RETIRED)
    best = min(
        active or senders,
        key=lambda one: (one[0].never_answered, one[0].unseen_seconds, order.index(one[1].state), one[1].unverified),
        default=None,
    )
    upper = [None if one.state is State.RETIRED else complete_up_to(freshness) for freshness, one in senders]
    known = [at for at in upper if at is not None]
    sent = [(one.state, freshness.newest.heartbeat) for freshness, one in senders]
    beats = [(state, beat) for state, beat in sent if beat is not None and beat.answered_at is None]
    dropped = [beat.dropped_total for _, beat in beats if beat.dropped_total is not None]
    queued = [
        0 if state is State.RETIRED else beat.queue_records for state, beat in beats if beat.queue_records is not None
    ]
    partial = []
    for what, found in (("senders", [one for _, one in senders]), ("machines", machines)):
        expected = [one for one in found if one.state is not State.RETIRED]
        not_live = [one for one in expected if one.state is not State.LIVE]
        partial += [f"{len(not_live)} of {len(expected)} {what} are not live"] if not_live else []
    backlog = [freshness.sender for freshness, one in senders if one.partial]
    more = f" and {len(backlog) - 5} more" if len(backlog) > 5 else ""
    partial += [f"batches are queued at {', '.join(backlog[:5])}{more}"] if backlog else []
    details = [f"{freshness.sender}: {why}" for freshness, one in senders for why in one.suspect]
    clones = sum(bool(one.suspect) for one in machines if one.state is not State.RETIRED)
    suspect = [*details[:5], *([f"and {len(details) - 5} more"] if len(details) > 5 else [])]
    suspect += [f"evidence of {clones} machines contradicts another machine's"] if clones else []
    empty = roll_up(tally(instant, "no-cluster", NO_MACHINES, frozenset(), {}), None, closed=False, missing=0)
    if best is None:
        return empty
    return ClusterFreshness(
        liveness=msgspec.structs.replace(
            empty.liveness,
            state=best[1].state,
            unseen_seconds=best[1].unseen_seconds,
            unverified=best[1].unverified,
            partial=tuple(partial),
            suspect=tuple(suspect),
        ),
        last_seen_at=to_datetime(answered_at(best[0].newest)) if not best[0].never_answered else None,
        senders=in_order(Counter(one.state for _, one in senders)),
        machines=in_order(Counter(one.state for one in machines)),
        complete_up_to=to_datetime(min(known)) if known else None,
        not_waited_for=len(upper) - len(known),
        missing_batches=0,
        dropped_batches=sum(dropped) if dropped else None,
        queued_batches=sum(queued) if queued else None,
        clock_ahead_seconds=max(
            (one.clock_ahead_seconds for one, _ in active if one.clock_ahead_seconds is not None),
            key=abs,
            default=None,
        ),
    )


@settings(max_examples=examples(100, 1000), deadline=None)
@given(st.lists(SENDER_CASES, max_size=14))
def test_tally_equals_individual_judgements(cases: list[SenderCase]) -> None:
    instant, marks = fleet_of(cases)
    conflicts = {f"s{number:02d}": CONFLICT for number, one in enumerate(cases) if one.conflict}
    retired = frozenset(one.sender for one in marks if one.is_retired)
    places = SenderPlaces()
    for version, some in enumerate([marks[::2], marks, marks]):  # the rows of senders change, and are kept
        total = tally(instant, CLUSTER, freshness_columns(some, (version + 1) // 2), retired, conflicts, places)
    found = roll_up(total, None, closed=False, missing=0)
    expected_freshness = individually(instant, marks, conflicts)
    for field in ("last_seen_at", "clock_ahead_seconds"):  # ties may resolve either way
        mine, theirs = getattr(found, field), getattr(expected_freshness, field)
        if field == "clock_ahead_seconds":
            assert (mine and abs(mine)) == (theirs and abs(theirs))
        expected_freshness = msgspec.structs.replace(expected_freshness, **{field: mine})
    assert found == expected_freshness
    known = [one.clock_ahead_seconds for one in instant.list_freshness() if one.clock_ahead_seconds is not None]
    assert sorted(total.aheads[~np.isnan(total.aheads)]) == sorted(known)
    assert (found.last_seen_at is None) == all(freshness.never_answered for freshness in instant.list_freshness())


def test_equally_stale_senders_prefer_the_one_not_late() -> None:
    plain = {
        "ago": 40, "since_start": True, "ahead": 0.0, "unsent_ago": None, "queued": 0, "answered_ago": None,
        "conflict": False, "machine_behind": 0, "retired": False, "cloned": False,
    }  # fmt: skip
    for dropped in (0, 7):  # the vectorised and the individual count
        often, seldom = (
            msgspec.convert({**plain, "interval": i, "dropped": dropped}, SenderCase) for i in (10.0, 30.0)
        )
        for cases in ([often, seldom], [seldom, often]):
            instant, marks = fleet_of(cases)
            total = tally(instant, CLUSTER, freshness_columns(marks), frozenset(), {})
            assert roll_up(total, None, closed=False, missing=0).liveness.state is State.LIVE


def test_senders_after_a_place_are_by_cluster_and_name() -> None:
    clock = FakeClock()
    senders = Senders(IngestClock(clock))
    one = SenderCase(
        ago=0, since_start=True, ahead=0.0, interval=30.0, unsent_ago=None, queued=0, dropped=0, answered_ago=None,
        conflict=False, machine_behind=0, retired=False, cloned=False,
    )  # fmt: skip
    for cluster, name in (("b", "y"), ("a", "z"), ("b", "x"), ("a", "a"), ("c", "a")):
        batch = msgspec.structs.replace(batch_of(name, one, clock.now_ns()), cluster=cluster)
        senders.note(SenderReport(batch=batch, received_at=clock.now_ns(), known_epoch=False))
    every = [("a", "a"), ("a", "z"), ("b", "x"), ("b", "y"), ("c", "a")]
    assert senders.after(None, 9) == every
    assert senders.after(None, 3) == every[:3]
    for place, who in enumerate(every):
        assert senders.after(who, 2) == every[place + 1 : place + 3]
    assert senders.after(("b", "w"), 9) == every[2:]
    assert senders.after(("ab", ""), 9) == every[2:]
