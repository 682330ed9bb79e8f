"""Fixtures of the agent's tests."""

from tests.fakes.nvml.fixtures import short_waits as short_waits
