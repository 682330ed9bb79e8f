"""Ingest history over restarts, compared with a separate count of the ingesting seconds."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hub.liveness.uptime import KEPT_SECONDS, SPANS_KEPT, HistoryFile, IngestClock, IngestHistory
from tests.fakes.clock import FakeClock

HOUR = 3600.0


class HubRuns:
    """Hubs, one after another, on one clock; `ingested` counts their ingesting seconds separately."""

    def __init__(self) -> None:
        self.clock, self.ingested, self.past = FakeClock(), 0.0, IngestHistory()
        self.start()

    def start(self) -> None:
        self.base, self.own = self.past.seconds, 0.0
        self.past = self.past.start_process(self.clock.now_ns())

    def ingest(self, seconds: float, *, every: float = 1.0) -> None:
        while seconds > 0:
            step = min(every, seconds)
            self.clock.advance(step)
            seconds, self.ingested, self.own = seconds - step, self.ingested + step, self.own + step
            self.observe()

    def is_not_ingesting(self, seconds: float) -> None:
        """Advance time without ingesting, as a rejecting or suspended hub does."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.observe()

    def is_down(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.start()

    def observe(self) -> None:
        self.past = self.past.extend(self.clock.now_ns(), self.base + self.own)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["ingest", "is_not_ingesting", "is_down", "step", "report"]), st.integers(1, 90)),
    max_size=40,
)


@given(ACTIONS)
def test_heartbeat_age_counts_only_time_the_hub_ingested(actions: list[tuple[str, int]]) -> None:
    runs, reports = HubRuns(), []
    for number, (action, seconds) in enumerate(actions):
        if action == "report":
            runs.ingest(1)
            reports.append((runs.clock.now_ns(), runs.ingested))
            runs.ingest(1)
        elif action == "step":
            runs.clock.step(seconds * 1000.0 + number * 100_000)  # to a time not seen before
            runs.observe()
        else:
            getattr(runs, action)(float(seconds))
    for at, ingested in reports:
        assert runs.past.unseen_since(at) == pytest.approx(runs.ingested - ingested, abs=0.01)


def test_corrected_hub_clock_makes_no_sender_stale() -> None:
    runs = HubRuns()
    runs.clock.step(86400)
    runs.ingest(60)
    then = runs.clock.now_ns()
    runs.ingest(60)
    runs.clock.step(-86400)
    runs.ingest(600)
    now = runs.clock.now_ns()
    runs.is_down(HOUR)
    assert runs.past.unseen_since(then) == pytest.approx(660, abs=1)
    assert runs.past.unseen_since(now) == 0


@pytest.mark.parametrize("observations_per_second", [1, 4])
def test_time_without_ingestion_ages_no_sender(observations_per_second: int) -> None:
    clock = FakeClock()
    ingest_clock = IngestClock(clock)

    def advance(seconds: int) -> None:
        for _ in range(seconds * observations_per_second):
            clock.advance(1 / observations_per_second)
            assert ingest_clock.past.alive_at == clock.now_ns()

    advance(600)
    reported_at = clock.now_ns()
    for _ in range(20):
        ingest_clock.note_rejected()
        advance(30)
    assert ingest_clock.past.unseen_since(reported_at) == pytest.approx(0, abs=1)
    advance(300)  # ingesting again 60 s after the last rejection
    assert ingest_clock.past.unseen_since(reported_at) == pytest.approx(270, abs=1)


def test_many_short_hub_runs_are_merged() -> None:
    runs = HubRuns()
    runs.ingest(100)
    reported_at = runs.clock.now_ns()
    for _ in range(200):
        runs.is_down(15)
        runs.ingest(1)
    assert len(runs.past.spans) <= SPANS_KEPT
    assert 200 <= runs.past.unseen_since(reported_at) < 2400  # each merged run adds 15 s


def test_merged_hub_runs_over_a_clock_step_add_little_age() -> None:
    runs, reports = HubRuns(), []
    for step in (-2000.0, *[100_000.0] * (SPANS_KEPT + 6)):
        runs.ingest(30)
        reports.append((runs.clock.now_ns(), runs.ingested))
        runs.ingest(30)
        runs.clock.step(step)
        runs.observe()
    runs.ingest(60)
    assert len(runs.past.spans) <= SPANS_KEPT
    for at, ingested in reports:
        assert runs.past.unseen_since(at) == pytest.approx(runs.ingested - ingested, abs=120)  # the length of two runs


def test_senders_of_expired_runs_are_lost() -> None:
    runs = HubRuns()
    reported_at = runs.clock.now_ns()
    for _ in range(30):
        runs.ingest(600, every=5.0)
        runs.is_down(60)
    assert len(runs.past.spans) <= KEPT_SECONDS / 600 + 2
    assert runs.past.unseen_since(reported_at) >= HOUR


def test_time_after_the_last_mark_ages_no_sender() -> None:
    runs = HubRuns()
    runs.ingest(100)
    before = runs.clock.now_ns() - 10 * 10**9
    runs.clock.advance(4)
    assert runs.past.unseen_since(runs.clock.now_ns()) == 0
    assert runs.past.unseen_since(before) == pytest.approx(10)


def test_history_file_round_trip(tmp_path: Path) -> None:
    runs, history_file = HubRuns(), HistoryFile(tmp_path / "alive.json")
    for _ in range(2 * SPANS_KEPT):
        runs.ingest(7.123456)
        runs.is_down(20)
        history_file.save(runs.past)
        assert history_file.load() == runs.past


def test_history_file_without_spans_is_read(tmp_path: Path) -> None:
    path, at = tmp_path / "alive.json", FakeClock().now_ns()
    path.write_text(f'{{"alive_at":{at}}}')
    past = HistoryFile(path).load()
    assert past is not None
    later = past.start_process(at + 10**13)
    assert later.unseen_since(at - 80 * 10**9) == pytest.approx(80)


@pytest.mark.parametrize("content", ["", "{", '{"alive_at":"x"}', '{"alive_at":1,"spans":[[1]]}', "[" * 99_999])
def test_unreadable_history_file_is_ignored(tmp_path: Path, content: str) -> None:
    path = tmp_path / "alive.json"
    path.write_text(content)
    assert HistoryFile(path).load() is None
