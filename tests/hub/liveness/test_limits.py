"""The limits of `docs/freshness.md`, each at both of its sides. Pure."""

from collections.abc import Sequence

import msgspec
import pytest

from gpufleet.hub.liveness.limits import limits_of, state_after
from gpufleet.hub.liveness.senders import SenderFreshness, SenderReport, Senders
from gpufleet.hub.liveness.states import LivenessSnapshot, complete_up_to, view_liveness
from gpufleet.hub.liveness.uptime import IngestClock
from gpufleet.model.liveness import Liveness, State
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import WireBatch
from tests.fakes.clock import FakeClock
from tests.hub.liveness.test_tally import CLUSTER

LATE, STALE, LOST = State.LATE, State.STALE, State.LOST


@pytest.mark.parametrize(
    ("interval", "late", "stale"),
    [
        (None, 75, 300),  # one that never said its own counts as 30 s
        (30.0, 75, 300),
        (1.0, 17, 300),  # at least
        (67.5, 150, 300),
        (68.0, 151, 302),  # twice late
        (592.5, 1200, 2400),
        (3600.0, 1200, 2400),  # at most
        (1e9, 1200, 2400),
    ],
)
def test_a_sender_is_late_stale_and_lost_by_its_interval(interval: float | None, late: float, stale: float) -> None:
    limits = limits_of(interval)
    told = [state_after(second, limits) for second in (0, late - 0.01, late, stale - 0.01, stale, 3599.9, 3600, 1e9)]
    assert told == [State.LIVE, State.LIVE, LATE, LATE, STALE, STALE, LOST, LOST]


@pytest.mark.parametrize(
    ("machine", "behind", "interval", "state"),
    [
        (0.0, 0.0, 10.0, State.LIVE),
        (20.0, 14.9, 10.0, State.LIVE),  # of a lane of 10 s: late from 35 s
        (20.0, 15.0, 10.0, LATE),
        (20.0, 114.9, 60.0, State.LIVE),  # of 60 s: from 135 s
        (20.0, 115.0, 60.0, LATE),
        (20.0, 279.9, 10.0, LATE),
        (20.0, 280.0, 10.0, STALE),
        (0.0, 3600.0, 600.0, LOST),
        (50.0, -40.0, 10.0, LATE),  # never less silent than its machine
    ],
)
def test_view_age_adds_machine_age_and_sample_lag(machine: float, behind: float, interval: float, state: State) -> None:
    judged = view_liveness(Liveness(state=State.LIVE, unseen_seconds=machine, unverified=True), behind, interval)
    assert (judged.state, judged.unseen_seconds) == (state, machine + max(0.0, behind))
    assert judged.unverified


@pytest.mark.parametrize("state", [State.NEVER_SEEN, State.RETIRED, LOST])
def test_a_view_of_a_machine_that_never_spoke_is_as_that(state: State) -> None:
    assert view_liveness(Liveness(state=state, unseen_seconds=None), 5.0, 10.0).state is state


def test_a_view_of_a_retired_machine_is_retired() -> None:
    assert view_liveness(Liveness(state=State.RETIRED, unseen_seconds=9.0), 0.0, 10.0).state is State.RETIRED


class NewestReport:
    """One sender, and what is made of its words."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ingest_clock = IngestClock(self.clock)
        self.senders = Senders(self.ingest_clock)
        self.seq = 0

    def passes(self, seconds: float) -> None:
        while seconds > 0:
            step = min(seconds, 2.5)
            self.clock.advance(step)
            _ = self.ingest_clock.seconds
            seconds -= step

    def speaks(self, *, off: float = 0.0, way: float = 0.0, relayed: bool = False, **beat: object) -> None:
        """Let it say something that took so long to come, by a clock that is so far off."""
        self.seq += 1
        sent = self.clock.now_ns() + int((off - way) * NANOS)
        heartbeat = Heartbeat(interval_seconds=30.0, version="1", started_at=1, **beat)  # type: ignore[arg-type]
        batch = WireBatch(
            version=1, catalogue=1, cluster=CLUSTER, sender="s", epoch="e", seq=self.seq, sent_at=sent,
            heartbeat=heartbeat, machines=[], views=[], absences=[], samples=[], dims=[], parts=[],
        )  # fmt: skip
        word = SenderReport(batch=batch, received_at=self.clock.now_ns(), known_epoch=self.seq > 1, relayed=relayed)
        self.senders.note(word)

    @property
    def instant(self) -> LivenessSnapshot:
        return LivenessSnapshot(self.senders, now=self.clock.now_ns(), unflushed_since=None)

    @property
    def life(self) -> SenderFreshness:
        found = self.instant.life(CLUSTER, "s")
        assert found is not None
        return found

    def judged(self) -> Liveness:
        return self.instant.sender(self.life)


@pytest.mark.parametrize(("seconds", "words"), [(299.0, 0), (300.0, 1)])
def test_what_has_waited_for_five_minutes_is_missing(seconds: float, words: int) -> None:
    heard = NewestReport()
    heard.speaks(oldest_unsent=heard.clock.now_ns() - int(290 * NANOS), queue_records=7)
    heard.passes(seconds - 290)
    assert len(heard.judged().partial) == words


@pytest.mark.parametrize(("off", "words"), [(60.0, 0), (-60.0, 0), (60.1, 1), (-60.1, 1)])
def test_a_clock_that_is_more_than_a_minute_off_is_suspect(off: float, words: int) -> None:
    heard = NewestReport()
    heard.speaks(off=off)
    assert len(heard.judged().suspect) == words


def test_clock_offset_is_less_the_fastest_of_eight_delays() -> None:
    heard = NewestReport()
    ways = [0.5, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    told = []
    for way in ways:
        heard.speaks(off=10.0, way=way)
        told.append(round(heard.life.clock_ahead_seconds, 3))
        heard.passes(10)
    assert told == [9.5] * 8 + [7.0]


def test_relay_delay_is_relative_to_the_fastest_of_64() -> None:
    heard = NewestReport()
    heard.speaks(way=0.0, relayed=True)
    heard.passes(10)
    told = []
    for _ in range(64):
        heard.speaks(way=9.0, relayed=True)  # the relay became slow, and stays so
        told.append(heard.life.unseen_seconds)
        heard.passes(10)
    assert told == pytest.approx([9.0] * 63 + [0.0])


@pytest.mark.parametrize(("apart", "ahead"), [(0.1, -1.0), (0.6, -3.0), (5.0, -3.0)])
def test_words_that_come_within_five_seconds_count_as_one(apart: float, ahead: float) -> None:
    heard = NewestReport()
    heard.speaks(way=1.0)
    heard.passes(10)
    for _ in range(70):  # in 7, 42 and 350 s: two, eight and seventy that count
        heard.speaks(way=3.0)
        heard.passes(apart)
    assert heard.life.clock_ahead_seconds == pytest.approx(ahead)


def test_of_words_that_come_together_the_fastest_counts() -> None:
    heard = NewestReport()
    for way in (4.0, 3.0, 2.0, 2.5):
        heard.speaks(way=way)
        heard.passes(1)
    assert heard.life.clock_ahead_seconds == pytest.approx(-2.0)


def listened(steps: Sequence[tuple[str, float]]) -> tuple[float, float]:
    """Return the seconds that were heard and those that were not."""
    clock = FakeClock()
    ingest_clock = IngestClock(clock)
    for what, seconds in steps:
        if what == "passes":
            for _ in range(round(seconds / 0.5)):
                clock.advance(0.5)
                _ = ingest_clock.seconds
        elif what == "jumps":
            clock.advance(seconds)
            _ = ingest_clock.seconds
        else:
            getattr(ingest_clock, what)()
    return ingest_clock.seconds, ingest_clock.not_ingesting_seconds


@pytest.mark.parametrize(
    ("steps", "heard", "deaf"),
    [
        ([("passes", 100)], 100, 0),
        ([("passes", 10), ("jumps", 5.0), ("passes", 10)], 25, 0),
        ([("passes", 10), ("jumps", 5.1), ("passes", 10)], 20, 5.1),
        ([("passes", 10), ("note_rejected", 0), ("passes", 30), ("note_accepted", 0), ("passes", 10)], 20, 30),
        ([("note_rejected", 0), ("passes", 100)], 40, 60),  # 60 s at most
        ([("note_rejected", 0), ("passes", 40), ("note_rejected", 0), ("passes", 100)], 40, 100),
        ([("note_accepted", 0), ("passes", 10)], 10, 0),
        ([("note_rejected", 0), ("note_accepted", 0), ("passes", 10)], 10, 0),
    ],
)
def test_what_a_hub_could_hear(steps: list[tuple[str, float]], heard: float, deaf: float) -> None:
    assert listened(steps) == pytest.approx((heard, deaf))


def test_watermark_is_oldest_backlog_or_newest_heartbeat() -> None:
    heard = NewestReport()
    heard.speaks()
    made = heard.clock.now_ns()
    assert complete_up_to(heard.life) == made
    heard.speaks(oldest_unsent=made - 5 * NANOS, queue_records=1)
    assert complete_up_to(heard.life) == made - 5 * NANOS
    assert complete_up_to(msgspec.structs.replace(heard.life, unseen_seconds=3599.9)) == made - 5 * NANOS
    assert complete_up_to(msgspec.structs.replace(heard.life, unseen_seconds=3600.0)) is None
    heard.speaks(oldest_unsent=heard.clock.now_ns() + 7200 * NANOS, queue_records=1)  # its clock was set back since
    assert complete_up_to(heard.life) == heard.clock.now_ns()
    heard.speaks(oldest_unsent=None, queue_records=1)  # its disk does not say what waits
    assert complete_up_to(heard.life) is None


def test_heartbeat_lag_counts_only_ingesting_time() -> None:
    heard = NewestReport()
    heard.passes(100)
    word = heard.clock.now_ns()
    heard.clock.advance(3600)  # it stood still
    _ = heard.ingest_clock.seconds
    heard.passes(20)
    newest = heard.clock.now_ns()
    assert heard.instant.behind(word, newest) == pytest.approx(20, abs=1)
    assert heard.instant.behind(newest, word) == 0.0
    heard.clock.step(-86400)
    heard.passes(50)
    after = heard.clock.now_ns()
    assert heard.instant.behind(word, after) == pytest.approx(70, abs=2)  # of a later time, and heard before
    assert heard.instant.behind(after + 30 * NANOS, after) == 0.0  # two words of one flush
