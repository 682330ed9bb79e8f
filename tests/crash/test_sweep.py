"""A flush that is killed before its changes: the most important cases of `python -m tests.crash.sweep`."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

import pytest

from tests.crash.sweep import PART, Sweep
from tests.support.profiles import examples

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("crash_sweep")]

PARTS = 14
"""Of a flush: one for each of eleven tables, and one for a second day in three of them."""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    sweep = Sweep(tmp_path_factory.mktemp("sweep"))
    yield sweep
    sweep.close()


def named(sweep: Sweep, words: str) -> list[int]:
    """Return the numbers of the steps that start with `words`."""
    return [number for number, step in enumerate(sweep.steps, 1) if step.startswith(words)]


def tables(steps: Sequence[str]) -> list[str]:
    """Return the tables whose parts these steps name, each once, in order."""
    return list(dict.fromkeys(PurePath(step.removeprefix(PART)).parts[1] for step in steps if step.startswith(PART)))


def test_no_part_is_lost_or_doubled_before_it_gets_its_name(sweep: Sweep) -> None:
    assert len(named(sweep, PART)) >= PARTS
    chain = sweep.chain()
    assert len(chain.deaths) >= PARTS
    assert tables(chain.deaths) == tables(sweep.steps)
    assert chain.found == sweep.expected


def test_no_row_is_lost_when_the_repeated_flush_dies_too(sweep: Sweep) -> None:
    first = named(sweep, PART)[-2]  # the last part of `samples`
    for second in (first, first // 2, len(sweep.steps))[: examples(1, 3)]:
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
