"""Fixtures for tests that start processes with the fake driver."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def short_waits() -> Iterator[None]:
    """Bound each wait for events to 40 ms; a reader with an idle driver otherwise takes up to 1 s to close.

    A folder's conftest.py imports this fixture. Benchmarks do not: shorter waits wake the listeners more often.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_NVML_WAIT_MS", "40")
        yield
