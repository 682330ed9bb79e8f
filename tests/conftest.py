"""Fixtures for every test."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import peers

# A busy machine makes no property false: nothing here is judged by the clock.
settings.register_profile("gpufleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpufleet")


@pytest.fixture(scope="session")
def peer() -> Callable[[str], Path]:
    """Give the path of a real program; without it the test fails, or skips if skips are allowed."""

    def path_of(program: str) -> Path:
        path = peers.find(program)
        if path is None:
            message = f"{program} is not here: run `make test`, or `python tests/support/peers.py fetch`"
            if os.environ.get("GPUFLEET_ALLOW_SKIPS") == "1":
                pytest.skip(message)
            pytest.fail(message)
        return path

    return path_of
