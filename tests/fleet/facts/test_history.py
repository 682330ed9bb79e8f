"""History of GPUs and machines: windows, sessions, restarts, clocks, and GPUs that vanish."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.facts.history import FactMemory, GpuMemory, GpuObservation, MachineMemory
from gpufleet.fleet.facts.memory import LATE_SECONDS, CounterReading, HourSums
from gpufleet.fleet.facts.metrics import ENERGY, RESET_COUNTERS, UNCORRECTED
from gpufleet.model.time import NANOS
from tests.support.core_observations import core
from tests.support.profiles import examples

START = 1_800_000_000
NO = float("nan")
HOUR, DAY = 3600, 86400


class History:
    """History of one GPU, judged at seconds since a start."""

    def __init__(self) -> None:
        self.gpus = GpuMemory()
        self.second = 0

    def judge(
        self,
        seconds: int = 60,
        *,
        key: int = 1,
        sample: int | None = None,
        noisy: float = 6,
        signature: int = 0,
        counters: Mapping[str, float] | None = None,
        reader: int = 1,
        session: int = 7,
        reset_second: int = 0,
        slow: float = 0,
        nvlinks: float = NO,
        held: float = NO,
        held_since: int = 0,
    ) -> dict[str, float]:
        """Advance the clock and judge; return the inputs."""
        self.second += seconds
        at = (START + (self.second if sample is None else sample)) * NANOS
        values = {ENERGY: float(self.second), **(counters or {})}
        found = self.gpus.judge(
            GpuObservation(
                keys=np.array([key]),
                noisy=np.array([noisy]),
                signature=np.array([signature], np.uint64),
                sampled_at=np.array([at]),
                counters={
                    metric: CounterReading(
                        value=np.array([values.get(metric, NO)]),
                        reader=np.array([reader], np.int16),
                        session=np.array([session], np.uint64),
                        at=np.array([at]),
                    )
                    for metric in RESET_COUNTERS
                },
                restarted_at=np.array([(START + reset_second) * NANOS if reset_second else 0]),
                slow=np.array([slow]),
                slow_at=np.array([at]),
                nvlinks=np.array([nvlinks]),
                nvlinks_before=np.array([NO]),
                core=core(),
                held=np.array([held]),
                held_since=np.array([(START + held_since) * NANOS if held_since else 0]),
                now=(START + self.second) * NANOS,
            ),
            self.second,
        )
        return {name: float(column[0]) for name, column in found.items()}


def same(found: Sequence[float], expected: Sequence[float]) -> bool:
    return np.array_equal(found, expected, equal_nan=True)


def test_identical_samples_are_counted_after_a_change() -> None:
    history = History()
    found = [history.judge(signature=number)["identical_cycles"] for number in (1, 2, 2, 2, 3, 3)]
    assert same(found, [NO, 0, 1, 2, 0, 1])


def test_repeated_sample_is_not_another_one() -> None:
    history = History()
    history.judge(signature=1)
    history.judge(signature=2, sample=100)
    assert [history.judge(signature=2, sample=100)["identical_cycles"] for _ in range(3)] == [0, 0, 0]


def test_identical_samples_since_the_start_are_unknown_until_certain() -> None:
    history = History()
    found = [history.judge(signature=1)["identical_cycles"] for _ in range(32)]
    assert same(found, [*[NO] * 30, 30, 31])


def test_missing_readings_keep_the_count_and_are_unknown() -> None:
    history = History()
    found = [
        history.judge(signature=number, noisy=count)["identical_cycles"]
        for number, count in ((1, 6), (2, 6), (2, 6), (0, 0), (2, 6))
    ]
    assert same(found, [NO, 0, 1, NO, 2])


def test_clock_of_the_machine_that_moves_back_restarts_the_count() -> None:
    history = History()
    for number in (1, 2, 2):
        found = history.judge(signature=number)
    assert found["identical_cycles"] == 1
    assert history.judge(signature=2, sample=-DAY)["identical_cycles"] == 1, "possibly late"
    assert history.judge(LATE_SECONDS, signature=2, sample=-DAY + 60)["identical_cycles"] == 0
    assert history.judge(signature=2, sample=-DAY + 120)["identical_cycles"] == 1


def test_late_sample_does_not_replace_a_newer_one() -> None:
    history = History()
    for number in (1, 2):
        history.judge(signature=number)
    found = []
    for _ in range(4):
        found.append(history.judge(signature=2)["identical_cycles"])
        found.append(history.judge(signature=1, sample=history.second - 180)["identical_cycles"])
    assert found == [1, 1, 2, 2, 3, 3, 4, 4]


def test_late_value_of_a_counter_is_no_reset() -> None:
    history = History()
    found = []
    for number in range(1, 9):
        found.append(history.judge(counters={UNCORRECTED: number}, session=0))
        late = {UNCORRECTED: number - 0.5, ENERGY: history.second - 180}
        found.append(history.judge(counters=late, sample=history.second - 180, session=0))
    assert found[-1]["uncorrected_errors"] == 7
    assert same([found[-1]["unexplained_resets"]], [NO])


def test_counter_is_compared_again_after_the_clock_was_set_back() -> None:
    history = History()
    history.judge(counters={UNCORRECTED: 4})
    found = [
        history.judge(seconds, counters={UNCORRECTED: errors}, sample=sample)
        for seconds, errors, sample in ((60, 6, -DAY), (LATE_SECONDS, 7, -DAY + 660), (60, 9, -DAY + 720))
    ]
    assert same([one["uncorrected_errors"] for one in found], [NO, NO, 2])


def test_late_sample_starts_no_slowdown() -> None:
    history = History()
    for _ in range(11):
        history.judge()
    for _ in range(4):
        found = history.judge(slow=1)
        history.judge(slow=0, sample=history.second - 180)
    assert found["slowdown_starts"] == 1


def test_energy_counter_that_stands_still_is_counted() -> None:
    history = History()
    found = [history.judge(counters={ENERGY: energy})["identical_energy_cycles"] for energy in (5, 6, 6, 6, 7)]
    assert same(found, [NO, 0, 1, 2, 0])


@pytest.mark.parametrize(
    ("change", "resets"),
    [
        ({}, 1),
        ({"session": 8}, NO),  # the driver was loaded again
        ({"reader": 2}, NO),  # another reader's counter
        ({"reset_second": 130}, 0),  # the GPU was reset
        ({"counters": {}}, NO),
    ],
)
def test_decrease_of_a_counter_needs_an_explanation(change: dict[str, object], resets: float) -> None:
    history = History()
    for _ in range(2):
        history.judge(counters={"gpu_pcie_replays_total": 9})
    found = history.judge(**{"counters": {"gpu_pcie_replays_total": 1}, **change})  # type: ignore[arg-type]
    assert same([found["unexplained_resets"]], [resets])


def test_first_decrease_without_a_session_can_be_a_restart() -> None:
    history = History()
    found = [history.judge(counters={ENERGY: energy}, session=0) for energy in (9, 1, 9, 1, 9, 1)]
    assert [one["unexplained_resets"] for one in found][-1] == 2


def test_decrease_counts_for_an_hour() -> None:
    history = History()
    found = [history.judge(300, counters={ENERGY: energy})["unexplained_resets"] for energy in (9, 1, *range(2, 16))]
    assert same(found[:2], [NO, 1])
    assert found[12:] == [1, 0, 0, 0]


def test_errors_are_unknown_until_the_hour_is_known() -> None:
    history = History()
    found = [history.judge(300, counters={UNCORRECTED: 4})["uncorrected_errors"] for _ in range(14)]
    assert same(found, [*[NO] * 12, 0, 0])


def test_errors_are_counted_over_sessions_and_readers() -> None:
    history = History()
    steps = [(4, 1, 7), (6, 1, 7), (1, 1, 8), (50, 2, 8), (52, 2, 8)]  # errors, reader, session
    found = [
        history.judge(counters={UNCORRECTED: errors}, reader=reader, session=session)["uncorrected_errors"]
        for errors, reader, session in steps
    ]
    assert same(found, [NO, 2, 3, 3, 5])


def test_pause_between_judgements_interrupts_the_knowledge() -> None:
    history = History()
    for _ in range(13):
        found = history.judge(300, counters={UNCORRECTED: 4})
    assert found["uncorrected_errors"] == 0
    assert same([history.judge(1200, counters={UNCORRECTED: 4})["uncorrected_errors"]], [NO])


def test_starts_of_slowdowns_count_for_ten_minutes() -> None:
    history = History()
    for _ in range(11):
        history.judge()
    found = [history.judge(slow=slow)["slowdown_starts"] for slow in (1, 1, 0, 1, *[0] * 9)]
    assert found == [1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1]
    assert history.judge(slow=0)["slowdown_starts"] == 0


def test_nvlinks_of_the_day_before_are_known_after_a_day() -> None:
    history = History()
    links = [18.0] * 13 + [16.0] * 24
    found = [history.judge(HOUR, nvlinks=number)["nvlinks_day_before"] for number in links]
    assert same(found, [*[NO] * 24, *[18.0] * 13])


def test_holding_time_starts_when_the_gpu_is_held() -> None:
    history = History()
    found = [history.judge(held=held)["held_seconds"] for held in (0, 1, 1, 0, 1, 1)]
    assert same(found, [NO, 0, 60, NO, 0, 60])


def test_holding_time_since_the_start_is_unknown_for_an_hour() -> None:
    history = History()
    found = [history.judge(600, held=1)["held_seconds"] for _ in range(8)]
    assert same(found, [*[NO] * 6, 3600, 4200])
    assert history.judge(held=1, held_since=history.second)["held_seconds"] == 60


def test_gpu_is_dropped_after_a_day_of_absence() -> None:
    history = History()
    for key in range(1, 9):
        history.judge(key=key)
    size = history.gpus.bytes
    history.judge(HOUR, key=1)
    assert history.gpus.bytes == size
    history.judge(2 * DAY, key=1)
    assert history.gpus.bytes * 8 == size


def test_gpu_that_returns_keeps_its_history() -> None:
    history = History()
    for number in (1, 2):
        history.judge(key=1, signature=number)
    for number in (1, 2, 3):
        history.judge(key=2, signature=number)
    assert history.judge(key=1, signature=2)["identical_cycles"] == 1


def test_lost_messages_are_counted_for_an_hour() -> None:
    machines = MachineMemory()

    def judge(second: int, lost: float, session: int = 1) -> float:
        at = np.array([(START + second) * NANOS])
        counter = CounterReading(np.array([lost]), np.array([1], np.int16), np.array([session], np.uint64), at)
        return float(machines.judge(np.array([1]), counter, second)[0])

    found = [judge(300 * step, lost) for step, lost in enumerate((5, 5, 8, *[8] * 12))]
    assert same(found, [NO, NO, *[3] * 12, 0])
    assert judge(4500, 2, session=2) == 2  # counted from 0 after a restart
    assert same([judge(4800, NO)], [NO])


def test_step_back_of_the_hubs_clock_changes_nothing() -> None:
    memory = FactMemory()
    seconds = []
    for now in (100, 160, 40, 100, 160):
        memory.begin(now * NANOS)
        seconds.append(memory.cluster("c").second)
    assert seconds == [0, 60, 60, 120, 180]


def test_cluster_is_dropped_after_a_day_of_absence() -> None:
    memory = FactMemory()
    memory.begin(0)
    before = memory.cluster("c")
    memory.begin((DAY - 60) * NANOS)
    assert memory.cluster("c") is before
    memory.begin(3 * DAY * NANOS)
    assert memory.cluster("c") is not before


@settings(max_examples=examples(ci=100, long=2000), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3)), min_size=1, max_size=30))
def test_hour_sums_are_those_of_an_hour_with_a_tolerance(steps: list[tuple[int, int]]) -> None:
    sums, rows = HourSums(np.uint16), np.array([0])
    sums.arrange(np.array([-1]))
    second, added = 0, []
    for passed, amount in steps:
        second += passed
        sums.turn(second)
        sums.add(rows, np.array([amount]))
        added.append((second, amount))
        least = sum(number for at, number in added if second - at < HOUR - 300)
        most = sum(number for at, number in added if second - at < HOUR)
        assert least <= float(sums.sums(rows)[0]) <= most
