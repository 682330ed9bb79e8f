"""What silence a restart takes over: against a hub that counts what it could hear on a watch of its own."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hub.liveness.uptime import KEPT_SECONDS, SPANS_KEPT, HistoryFile, IngestClock, IngestHistory
from tests.fakes.clock import FakeClock

HOUR = 3600.0


class Lives:
    """Hubs, one after another, on one clock; `heard` is what they could hear, counted apart."""

    def __init__(self) -> None:
        self.clock, self.heard, self.past = FakeClock(), 0.0, IngestHistory()
        self.begins()

    def begins(self) -> None:
        self.base, self.own = self.past.seconds, 0.0
        self.past = self.past.start_process(self.clock.now_ns())

    def hears(self, seconds: float, *, looks: float = 1.0) -> None:
        while seconds > 0:
            step = min(looks, seconds)
            self.clock.advance(step)
            seconds, self.heard, self.own = seconds - step, self.heard + step, self.own + step
            self.looks()

    def is_not_ingesting(self, seconds: float) -> None:
        """Let it turn batches away, or stand still."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.looks()

    def is_down(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.begins()

    def looks(self) -> None:
        self.past = self.past.extend(self.clock.now_ns(), self.base + self.own)


DOINGS = st.lists(
    st.tuples(st.sampled_from(["hears", "is_not_ingesting", "is_down", "steps", "speaks"]), st.integers(1, 90)),
    max_size=40,
)


@given(DOINGS)
def test_heartbeat_age_counts_only_time_the_hub_ingested(
    doings: list[tuple[str, int]],
) -> None:
    lives, words = Lives(), []
    for number, (what, seconds) in enumerate(doings):
        if what == "speaks":
            lives.hears(1)
            words.append((lives.clock.now_ns(), lives.heard))
            lives.hears(1)
        elif what == "steps":
            lives.clock.step(seconds * 1000.0 + number * 100_000)  # to where it never was
            lives.looks()
        else:
            getattr(lives, what)(float(seconds))
    for at, heard in words:
        assert lives.past.unseen_since(at) == pytest.approx(lives.heard - heard, abs=0.01)


def test_corrected_hub_clock_makes_no_sender_stale() -> None:
    lives = Lives()
    lives.clock.step(86400)
    lives.hears(60)
    then = lives.clock.now_ns()
    lives.hears(60)
    lives.clock.step(-86400)
    lives.hears(600)
    now = lives.clock.now_ns()
    lives.is_down(HOUR)
    assert lives.past.unseen_since(then) == pytest.approx(660, abs=1)
    assert lives.past.unseen_since(now) == 0


@pytest.mark.parametrize("looks_a_second", [1, 4])
def test_time_without_ingestion_ages_no_sender(looks_a_second: int) -> None:
    clock = FakeClock()
    ingest_clock = IngestClock(clock)

    def passes(seconds: int) -> None:
        for _ in range(seconds * looks_a_second):
            clock.advance(1 / looks_a_second)
            assert ingest_clock.past.alive_at == clock.now_ns()

    passes(600)
    spoke = clock.now_ns()
    for _ in range(20):
        ingest_clock.note_rejected()
        passes(30)
    assert ingest_clock.past.unseen_since(spoke) == pytest.approx(0, abs=1)
    passes(300)  # it hears from the sixtieth second after the last one
    assert ingest_clock.past.unseen_since(spoke) == pytest.approx(270, abs=1)


def test_many_short_hub_runs_are_merged() -> None:
    lives = Lives()
    lives.hears(100)
    spoke = lives.clock.now_ns()
    for _ in range(200):
        lives.is_down(15)
        lives.hears(1)
    assert len(lives.past.spans) <= SPANS_KEPT
    assert 200 <= lives.past.unseen_since(spoke) < 2400  # those that are kept as one cost 15 s each


def test_merged_hub_runs_over_a_clock_step_add_little_age() -> None:
    lives, words = Lives(), []
    for step in (-2000.0, *[100_000.0] * (SPANS_KEPT + 6)):
        lives.hears(30)
        words.append((lives.clock.now_ns(), lives.heard))
        lives.hears(30)
        lives.clock.step(step)
        lives.looks()
    lives.hears(60)
    assert len(lives.past.spans) <= SPANS_KEPT
    for at, heard in words:
        assert lives.past.unseen_since(at) == pytest.approx(lives.heard - heard, abs=120)  # what two of them heard


def test_long_ago_is_forgotten_and_whoever_spoke_then_is_lost() -> None:
    lives = Lives()
    spoke = lives.clock.now_ns()
    for _ in range(30):
        lives.hears(600, looks=5.0)
        lives.is_down(60)
    assert len(lives.past.spans) <= KEPT_SECONDS / 600 + 2
    assert lives.past.unseen_since(spoke) >= HOUR


def test_what_was_heard_after_the_last_mark_is_no_silence() -> None:
    lives = Lives()
    lives.hears(100)
    before = lives.clock.now_ns() - 10 * 10**9
    lives.clock.advance(4)
    assert lives.past.unseen_since(lives.clock.now_ns()) == 0
    assert lives.past.unseen_since(before) == pytest.approx(10)


def test_a_mark_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    lives, mark = Lives(), HistoryFile(tmp_path / "alive.json")
    for _ in range(2 * SPANS_KEPT):
        lives.hears(7.123456)
        lives.is_down(20)
        mark.save(lives.past)
        assert mark.load() == lives.past


def test_a_mark_of_an_older_hub_says_when_that_lived_last(tmp_path: Path) -> None:
    path, at = tmp_path / "alive.json", FakeClock().now_ns()
    path.write_text(f'{{"alive_at":{at}}}')
    past = HistoryFile(path).load()
    assert past is not None
    later = past.start_process(at + 10**13)
    assert later.unseen_since(at - 80 * 10**9) == pytest.approx(80)


@pytest.mark.parametrize("content", ["", "{", '{"alive_at":"x"}', '{"alive_at":1,"spans":[[1]]}', "[" * 99_999])
def test_a_mark_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "alive.json"
    path.write_text(content)
    assert HistoryFile(path).load() is None
