"""Flush that is killed before one of its changes: the main cases of `python -m tests.crash.sweep`."""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

import pytest

from tests.crash.sweep import PART, Sweep
from tests.support.profiles import examples

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("crash_sweep")]

PARTS = 16
"""Parts of a flush: one for each of twelve tables, one for a second day in three, and the first number of subjects."""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    sweep = Sweep(tmp_path_factory.mktemp("sweep"))
    yield sweep
    sweep.close()


def steps_with(sweep: Sweep, prefix: str) -> list[int]:
    """Return the numbers of the steps that start with `prefix`."""
    return [number for number, step in enumerate(sweep.steps, 1) if step.startswith(prefix)]


def tables(steps: Sequence[str]) -> list[str]:
    """Return the tables whose parts are renamed by these steps, in order and without duplicates."""
    return list(dict.fromkeys(PurePath(step.removeprefix(PART)).parts[1] for step in steps if step.startswith(PART)))


def test_kill_before_a_part_is_renamed_loses_nothing(sweep: Sweep) -> None:
    assert len(steps_with(sweep, PART)) >= PARTS
    chain = sweep.chain()
    assert len(chain.deaths) >= PARTS
    assert tables(chain.deaths) == tables(sweep.steps)[:-1]  # a start after a kill writes `latest_position` itself
    assert chain.found == sweep.expected


def test_kill_of_the_repeated_flush_loses_nothing(sweep: Sweep) -> None:
    first = steps_with(sweep, PART)[-3]  # the last part of `samples`
    for second in (first, first // 2, len(sweep.steps))[: examples(1, 3)]:
        case = sweep.case(first, second)
        assert len(case.deaths) == 2
        assert case.found == sweep.expected, case.deaths


def test_kill_at_registry_or_log_writes_loses_nothing(sweep: Sweep) -> None:
    registry, log = steps_with(sweep, "write registry.sqlite"), steps_with(sweep, "write wal/")
    assert sweep.expected["sequences"] == [[1, 4]]
    assert (sweep.expected["backlog"], sweep.expected["pending"]) == (0, False)
    for step in (registry[0], registry[len(registry) // 2], registry[-1], log[-1]):
        case = sweep.case(step)
        assert case.deaths == (sweep.steps[step - 1],)
        assert case.found == sweep.expected, case.deaths
