"""Events of GPUs: XIDs since the last reset, fatal XIDs of machines, slowdowns and ECC errors."""

from collections.abc import Sequence

import numpy as np
import pytest

from gpufleet.fleet.facts.events import EventSubjects, GpuEvents, gpu_events
from gpufleet.model.stored.readings import EventCount
from gpufleet.model.time import NANOS

NOW = 1_800_000_000 * NANOS
GPUS = {("m", "gpu/A"): 0, ("m", "gpu/B"): 1, ("n", "gpu/C"): 2}
HOUR, DAY = 3600, 86400

Event = tuple[str, str, str, int, float]
"""Machine, view, kind, code, and age in seconds."""


def events_of(
    events: Sequence[Event],
    booted: Sequence[float | None] = (None, None),
    replaced: Sequence[float | None] = (None, None, None),
    works: Sequence[float | None] = (None, None, None),
) -> GpuEvents:
    counts = [
        EventCount(machine, view, kind, code, (NOW - int(age * NANOS),), 1) for machine, view, kind, code, age in events
    ]
    return judged(counts, booted, replaced, works)


def judged(
    counts: Sequence[EventCount],
    booted: Sequence[float | None] = (None, None),
    replaced: Sequence[float | None] = (None, None, None),
    works: Sequence[float | None] = (None, None, None),
) -> GpuEvents:
    subjects = EventSubjects(
        gpu_of=lambda machine, view: GPUS.get((machine, view)),
        machine_of=np.array([0, 0, 1]),
        machines={"m": 0, "n": 1},
        booted_at=np.array([0 if age is None else NOW - int(age * NANOS) for age in booted]),
        others_until=np.array([0 if age is None else NOW - int(age * NANOS) for age in replaced]),
        works_at=np.array([0 if age is None else NOW - int(age * NANOS) for age in works]),
    )
    return gpu_events(counts, subjects, NOW)


def test_xids_count_since_the_last_reset() -> None:
    found = events_of(
        [
            ("m", "gpu/A", "xid", 31, 500),
            ("m", "gpu/A", "xid", 79, 900),
            ("m", "gpu/A", "gpu_recovered", 10, 700),
            ("m", "gpu/B", "xid", 79, 900),
            ("n", "gpu/C", "xid", 79, 900),
            ("n", "", "driver_reloaded", 10, 800),
            ("m", "gpu/unknown", "xid", 79, 100),
        ]
    )
    assert found.xids == {0: {31: 1}, 1: {79: 1}}
    assert found.fell_off == {1}


@pytest.mark.parametrize(
    ("view", "kind"), [("gpu/C", "gpu_reset"), ("gpu/C", "gpu_recovered"), ("", "driver_reloaded")]
)
def test_xid_between_a_reset_and_the_pass_that_shows_it_counts(view: str, kind: str) -> None:
    """An operator released the GPUs for 600 s and reset one, which failed again before the agent read it."""
    events: list[Event] = [("n", view, kind, 600, 100), ("n", "gpu/C", "xid", 119, 150), ("n", "gpu/C", "xid", 31, 710)]
    found = events_of(events)
    assert (found.xids, found.restarted_at.tolist()) == ({2: {119: 1}}, [0, 0, NOW - 100 * NANOS])
    assert events_of([*events, ("n", "", "driver_loaded", 0, 140)]).xids == {}


@pytest.mark.parametrize("code", [0, -5, 2**62])
def test_reset_without_a_valid_time_ends_no_xid(code: int) -> None:
    assert events_of([("m", "gpu/A", "gpu_reset", code, 100), ("m", "gpu/A", "xid", 31, 150)]).xids == {0: {31: 1}}


def test_recovery_from_an_error_is_no_reset() -> None:
    """The driver's firmware timed out, so did one pass. Only the GPU that was lost as well had a reset."""
    found = events_of(
        [
            *(("m", view, "xid", 119, 900.0) for view in ("gpu/A", "gpu/B")),
            ("m", "gpu/A", "gpu_recovered", 0, 870),
            ("m", "gpu/B", "gpu_recovered", 10, 870),
        ]
    )
    assert found.xids == {0: {119: 1}}


def test_boot_of_the_machine_is_a_reset() -> None:
    events: list[Event] = [("m", "gpu/A", "xid", 79, 900), ("n", "gpu/C", "xid", 79, 900)]
    assert events_of(events, booted=(600, 1200)).xids == {2: {79: 1}}


def test_events_of_the_gpu_that_was_in_the_slot_before_do_not_count() -> None:
    """A GPU that fell off the bus was replaced 300 s ago, without a boot."""
    events = [
        ("m", "gpu/A", kind, code, age)
        for kind, code in (("xid", 79), ("throttle_started", 0), ("ecc_uncorrected", 2))
        for age in (400, 200)
    ]
    found = events_of(events, replaced=(300, None, None))
    assert (found.xids, found.restarted_at.tolist()) == ({0: {79: 1}}, [0, 0, 0])
    assert (found.slowdowns.tolist(), found.uncorrected.tolist()) == ([1, 0, 0], [2, 0, 0])
    assert events_of(events[::2], replaced=(300, None, None)).fell_off == frozenset()


@pytest.mark.parametrize("loss", [("xid", 79), ("gpu_lost", 0), ("gpu_reset_required", 0)])
def test_gpu_that_works_after_a_loss_had_a_reset(loss: tuple[str, int]) -> None:
    """No agent ran while it came back."""
    events: list[Event] = [
        *(("m", view, *loss, 900.0) for view in ("gpu/A", "gpu/B")),
        *(("m", view, "xid", 119, 910.0) for view in ("gpu/A", "gpu/B")),
        ("m", "gpu/A", "xid", 31, 800),
        ("n", "gpu/C", "xid", 119, 900),
    ]
    before = {119: 1, 79: 1} if loss[0] == "xid" else {119: 1}
    assert events_of(events, works=(860, 880, 5)).xids == {0: {31: 1}, 1: before, 2: {119: 1}}


def test_reset_of_the_gpu_that_was_in_the_slot_before_does_not_count() -> None:
    events: list[Event] = [("m", "gpu/A", "gpu_recovered", 10, 400), ("m", "gpu/A", "xid", 119, 200)]
    found = events_of(events, replaced=(300, None, None))
    assert (found.xids, found.restarted_at.tolist()) == ({0: {119: 1}}, [0, 0, 0])


def test_counters_can_start_again_before_any_recovery() -> None:
    """The agent was stopped for the reset: its time is not known, and the recovery from errors proves none."""
    events: list[Event] = [("m", "gpu/A", "gpu_lost", 0, 900), ("m", "gpu/A", "gpu_recovered", 0, 100)]
    assert events_of(events, works=(5, None, None)).restarted_at.tolist() == [NOW - 100 * NANOS, 0, 0]


def test_fatal_xids_of_a_machine_count_over_resets() -> None:
    found = events_of(
        [
            *(("m", "gpu/A", "xid", 46, 900.0 + age) for age in range(3)),
            ("m", "gpu/unknown", "xid", 79, 100),
            ("m", "gpu/A", "xid", 31, 100),
            ("m", "gpu/A", "gpu_reset", 10, 50),
        ]
    )
    assert found.fatal.tolist() == [4, 0]


def test_slowdowns_and_errors_count_in_their_windows() -> None:
    found = events_of(
        [
            *(("m", "gpu/A", "throttle_started", 0, age) for age in (10, 590, 610)),
            *(
                ("m", "gpu/B", "ecc_uncorrected", errors, age)
                for errors, age in ((2, 10), (3, HOUR - 1), (9, HOUR + 1))
            ),
        ]
    )
    assert found.slowdowns.tolist() == [2, 0, 0]
    assert found.uncorrected.tolist() == [0, 5, 0]


def test_events_in_the_far_future_do_not_count() -> None:
    future = -2 * HOUR
    found = events_of(
        [("m", "gpu/A", "xid", 31, future), ("m", "", "driver_loaded", 0, future), ("m", "gpu/B", "xid", 31, 9)]
    )
    assert found.xids == {1: {31: 1}}


def test_events_beyond_the_listed_ones_count_if_all_are_in_the_window() -> None:
    at = tuple(NOW - age * NANOS for age in (30, 20, 10))
    counts = [EventCount("m", "gpu/A", "xid", 31, at, 500)]
    assert judged(counts).xids == {0: {31: 500}}
    reset = EventCount("m", "gpu/A", "gpu_reset", 3, (NOW - 25 * NANOS,), 1)
    assert judged([*counts, reset]).xids == {0: {31: 2}}
