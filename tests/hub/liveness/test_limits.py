"""Limits of `docs/freshness.md`, each tested on both sides."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from gpufleet.hub.liveness.limits import limits_of, state_after
from gpufleet.hub.liveness.senders import SenderFreshness, SenderReport, Senders
from gpufleet.hub.liveness.states import LivenessSnapshot, complete_up_to, view_liveness
from gpufleet.hub.liveness.tally import NO_MACHINES, roll_up, tally
from gpufleet.hub.liveness.uptime import IngestClock
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.ledger import SenderState
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import WireBatch
from tests.fakes.clock import FakeClock
from tests.hub.liveness.test_tally import CLUSTER

LATE, STALE, LOST = State.LATE, State.STALE, State.LOST


@pytest.mark.parametrize(
    ("interval", "late", "stale"),
    [
        (None, 75, 300),  # a sender without a reported interval counts as 30 s
        (30.0, 75, 300),
        (1.0, 17, 300),  # minimum
        (67.5, 150, 300),
        (68.0, 151, 302),  # stale is twice late
        (592.5, 1200, 2400),
        (3600.0, 1200, 2400),  # maximum
        (1e9, 1200, 2400),
    ],
)
def test_sender_is_late_stale_and_lost_by_its_interval(interval: float | None, late: float, stale: float) -> None:
    limits = limits_of(interval)
    states = [state_after(second, limits) for second in (0, late - 0.01, late, stale - 0.01, stale, 3599.9, 3600, 1e9)]
    assert states == [State.LIVE, State.LIVE, LATE, LATE, STALE, STALE, LOST, LOST]


@pytest.mark.parametrize(
    ("machine", "behind", "interval", "state"),
    [
        (0.0, 0.0, 10.0, State.LIVE),
        (20.0, 14.9, 10.0, State.LIVE),  # a lane of 10 s is late from 35 s
        (20.0, 15.0, 10.0, LATE),
        (20.0, 114.9, 60.0, State.LIVE),  # a lane of 60 s is late from 135 s
        (20.0, 115.0, 60.0, LATE),
        (20.0, 279.9, 10.0, LATE),
        (20.0, 280.0, 10.0, STALE),
        (0.0, 3600.0, 600.0, LOST),
        (50.0, -40.0, 10.0, LATE),  # at least the age of its machine
    ],
)
def test_view_age_adds_machine_age_and_sample_lag(machine: float, behind: float, interval: float, state: State) -> None:
    judged = view_liveness(Liveness(state=State.LIVE, unseen_seconds=machine, unverified=True), behind, interval)
    assert (judged.state, judged.unseen_seconds) == (state, machine + max(0.0, behind))
    assert judged.unverified


@pytest.mark.parametrize("state", [State.NEVER_SEEN, State.RETIRED, LOST])
def test_view_of_a_machine_without_reports_has_its_state(state: State) -> None:
    assert view_liveness(Liveness(state=state, unseen_seconds=None), 5.0, 10.0).state is state


def test_view_of_a_retired_machine_is_retired() -> None:
    assert view_liveness(Liveness(state=State.RETIRED, unseen_seconds=9.0), 0.0, 10.0).state is State.RETIRED


class OneSender:
    """A tracked sender."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ingest_clock = IngestClock(self.clock)
        self.senders = Senders(self.ingest_clock)
        self.seq = 0

    def advance(self, seconds: float) -> None:
        while seconds > 0:
            step = min(seconds, 2.5)
            self.clock.advance(step)
            _ = self.ingest_clock.seconds
            seconds -= step

    def report(
        self,
        *,
        offset: float = 0.0,
        delay: float = 0.0,
        relayed: bool = False,
        has_heartbeat: bool = True,
        **beat: object,
    ) -> None:
        """Report with this transfer delay, by a clock with this offset."""
        self.seq += 1
        sent = self.clock.now_ns() + int((offset - delay) * NANOS)
        heartbeat = Heartbeat(interval_seconds=30.0, version="1", started_at=1, **beat)  # type: ignore[arg-type]
        batch = WireBatch(
            version=1, catalogue=1, cluster=CLUSTER, sender="s", epoch="e", seq=self.seq, sent_at=sent,
            heartbeat=heartbeat if has_heartbeat else None, machines=[], views=[], absences=[], samples=[], dims=[],
            parts=[],
        )  # fmt: skip
        report = SenderReport(batch=batch, received_at=self.clock.now_ns(), known_epoch=self.seq > 1, relayed=relayed)
        self.senders.note(report)

    @property
    def instant(self) -> LivenessSnapshot:
        return LivenessSnapshot(self.senders, now=self.clock.now_ns(), unflushed_since=None)

    @property
    def freshness(self) -> SenderFreshness:
        found = self.instant.find_freshness(CLUSTER, "s")
        assert found is not None
        return found

    def judged(self) -> Liveness:
        return self.instant.sender(self.freshness)


@pytest.mark.parametrize(("seconds", "details"), [(299.0, 0), (300.0, 1)])
def test_backlog_of_five_minutes_makes_a_sender_partial(seconds: float, details: int) -> None:
    sender = OneSender()
    sender.report(oldest_unsent=sender.clock.now_ns() - int(290 * NANOS), queue_records=7)
    sender.advance(seconds - 290)
    assert len(sender.judged().partial) == details


@pytest.mark.parametrize(("offset", "details"), [(60.0, 0), (-60.0, 0), (60.1, 1), (-60.1, 1)])
def test_clock_offset_above_one_minute_is_suspect(offset: float, details: int) -> None:
    sender = OneSender()
    sender.report(offset=offset)
    assert len(sender.judged().suspect) == details


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("has_heartbeat", [False, True])
def test_batch_of_the_hub_shows_no_clock_offset(has_heartbeat: bool, is_restarted: bool) -> None:
    sender = OneSender()
    sender.report(has_heartbeat=has_heartbeat, answered_at=1)
    if is_restarted:
        state = SenderState(cluster=CLUSTER, sender="s", newest_report=sender.freshness.newest)
        sender.senders = Senders(sender.ingest_clock, [state])
    assert sender.freshness.clock_ahead_seconds is None
    assert np.isnan(sender.senders.report_rows(CLUSTER)["ahead"]).all()
    assert not sender.judged().suspect
    total = tally(sender.instant, CLUSTER, NO_MACHINES, frozenset(), {})
    assert roll_up(total, None, closed=False, missing=0).clock_ahead_seconds is None


def test_clock_offset_uses_the_fastest_of_eight_delays() -> None:
    sender = OneSender()
    delays = [0.5, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    offsets = []
    for delay in delays:
        sender.report(offset=10.0, delay=delay)
        ahead = sender.freshness.clock_ahead_seconds
        offsets.append(ahead and round(ahead, 3))
        sender.advance(10)
    assert offsets == [9.5] * 8 + [7.0]


def test_relay_delay_is_relative_to_the_fastest_of_64() -> None:
    sender = OneSender()
    sender.report(delay=0.0, relayed=True)
    sender.advance(10)
    ages = []
    for _ in range(64):
        sender.report(delay=9.0, relayed=True)  # the relay stays slow
        ages.append(sender.freshness.unseen_seconds)
        sender.advance(10)
    assert ages == pytest.approx([9.0] * 63 + [0.0])


@pytest.mark.parametrize(("apart", "ahead"), [(0.1, -1.0), (0.6, -3.0), (5.0, -3.0)])
def test_reports_within_five_seconds_count_as_one(apart: float, ahead: float) -> None:
    sender = OneSender()
    sender.report(delay=1.0)
    sender.advance(10)
    for _ in range(70):  # 7 s, 42 s and 350 s: two, eight and seventy reports count
        sender.report(delay=3.0)
        sender.advance(apart)
    assert sender.freshness.clock_ahead_seconds == pytest.approx(ahead)


def test_fastest_report_of_a_burst_counts() -> None:
    sender = OneSender()
    for delay in (4.0, 3.0, 2.0, 2.5):
        sender.report(delay=delay)
        sender.advance(1)
    assert sender.freshness.clock_ahead_seconds == pytest.approx(-2.0)


def ingest_times(steps: Sequence[tuple[str, float]]) -> tuple[float, float]:
    """Return the seconds of ingesting and of not ingesting."""
    clock = FakeClock()
    ingest_clock = IngestClock(clock)
    for action, seconds in steps:
        if action == "advance":
            for _ in range(round(seconds / 0.5)):
                clock.advance(0.5)
                _ = ingest_clock.seconds
        elif action == "jumps":
            clock.advance(seconds)
            _ = ingest_clock.seconds
        else:
            getattr(ingest_clock, action)()
    return ingest_clock.seconds, ingest_clock.not_ingesting_seconds


@pytest.mark.parametrize(
    ("steps", "ingesting", "not_ingesting"),
    [
        ([("advance", 100)], 100, 0),
        ([("advance", 10), ("jumps", 5.0), ("advance", 10)], 25, 0),
        ([("advance", 10), ("jumps", 5.1), ("advance", 10)], 20, 5.1),
        ([("advance", 10), ("note_rejected", 0), ("advance", 30), ("note_accepted", 0), ("advance", 10)], 20, 30),
        ([("note_rejected", 0), ("advance", 100)], 40, 60),  # counts for at most 60 s
        ([("note_rejected", 0), ("advance", 40), ("note_rejected", 0), ("advance", 100)], 40, 100),
        ([("note_accepted", 0), ("advance", 10)], 10, 0),
        ([("note_rejected", 0), ("note_accepted", 0), ("advance", 10)], 10, 0),
    ],
)
def test_ingest_clock_counts_ingesting_time(
    steps: list[tuple[str, float]], ingesting: float, not_ingesting: float
) -> None:
    assert ingest_times(steps) == pytest.approx((ingesting, not_ingesting))


def test_watermark_is_oldest_backlog_or_newest_heartbeat() -> None:
    sender = OneSender()
    sender.report()
    made = sender.clock.now_ns()
    assert complete_up_to(sender.freshness) == made
    sender.report(oldest_unsent=made - 5 * NANOS, queue_records=1)
    assert complete_up_to(sender.freshness) == made - 5 * NANOS
    assert complete_up_to(msgspec.structs.replace(sender.freshness, unseen_seconds=3599.9)) == made - 5 * NANOS
    assert complete_up_to(msgspec.structs.replace(sender.freshness, unseen_seconds=3600.0)) is None
    sender.report(oldest_unsent=sender.clock.now_ns() + 7200 * NANOS, queue_records=1)  # its clock moved back since
    assert complete_up_to(sender.freshness) == sender.clock.now_ns()
    for unknown in (1, None):  # a disk that does not report its backlog, a spool that cannot be opened
        sender.report(oldest_unsent=None, queue_records=unknown)
        assert complete_up_to(sender.freshness) is None


def test_heartbeat_lag_counts_only_ingesting_time() -> None:
    sender = OneSender()
    sender.advance(100)
    reported = sender.clock.now_ns()
    sender.clock.advance(3600)  # the hub was suspended
    _ = sender.ingest_clock.seconds
    sender.advance(20)
    newest = sender.clock.now_ns()
    assert sender.instant.behind(reported, newest) == pytest.approx(20, abs=1)
    assert sender.instant.behind(newest, reported) == 0.0
    sender.clock.step(-86400)
    sender.advance(50)
    after = sender.clock.now_ns()
    assert sender.instant.behind(reported, after) == pytest.approx(70, abs=2)  # a later timestamp, but received before
    assert sender.instant.behind(after + 30 * NANOS, after) == 0.0  # two reports of one flush
