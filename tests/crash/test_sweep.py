"""A flush that is killed before what it changes: the cases that tell most of `python -m tests.crash.sweep`."""

import pytest

from tests.crash.sweep import Sweep

pytestmark = pytest.mark.timeout(900)

PART = "rename to store/store/"
"""Gives a part its name: what names the insert is written down already, and nobody can see its rows."""

PARTS = 14
"""That a flush makes: one for each of eleven tables, and one for a second day in three of them."""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return Sweep(tmp_path_factory.mktemp("sweep"))


def named(sweep: Sweep, words: str) -> list[int]:
    """Return the steps whose words begin so."""
    return [number for number, step in enumerate(sweep.steps, 1) if step.startswith(words)]


def test_no_part_of_any_table_is_lost_with_a_process_that_was_about_to_name_it(sweep: Sweep) -> None:
    steps = named(sweep, PART)
    assert len(steps) >= PARTS
    for step in steps:
        case = sweep.case(step)
        assert case.deaths == (sweep.steps[step - 1],)
        assert case.found == sweep.expected, case.deaths


def test_nor_when_the_flush_that_repeats_it_is_killed_as_well(sweep: Sweep) -> None:
    first = named(sweep, PART)[-2]  # the last part of `samples`
    for second in (first // 2, first, len(sweep.steps)):
        case = sweep.case(first, second)
        assert len(case.deaths) == 2
        assert case.found == sweep.expected, case.deaths


def test_nothing_is_lost_or_doubled_around_the_store(sweep: Sweep) -> None:
    registry, log = named(sweep, "write registry.sqlite"), named(sweep, "write wal/")
    assert sweep.expected["held"] == [[1, 4]]
    assert (sweep.expected["waiting"], sweep.expected["pending"]) == (0, False)
    for step in (registry[0], registry[len(registry) // 2], registry[-1], log[-1]):
        case = sweep.case(step)
        assert case.deaths == (sweep.steps[step - 1],)
        assert case.found == sweep.expected, case.deaths
