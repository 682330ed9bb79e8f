"""Fixtures of the NVML reader tests: a fake driver, read through a real child process and the real binding."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gpufleet.readers.nvml.reader import NvmlReader
from gpufleet.readers.nvml.watch import NvmlLimits
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.fixtures import short_waits as short_waits
from tests.fakes.nvml.scenario import Scenario
from tests.readers.nvml.rig import PATIENT, Start


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    """Return a machine with eight healthy H200s and a log of NVML calls."""
    return FakeNvml(tmp_path, Scenario.healthy(8), log=True)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Return a factory of readers and close them at the end of the test."""
    closers: list[Callable[[], Awaitable[None]]] = []

    def make(
        fake: FakeNvml, limits: NvmlLimits = PATIENT, root: Path = Path("/"), *, process_names: bool = False
    ) -> NvmlReader:
        reader = NvmlReader(limits=limits, environment=fake.environment, root=root, process_names=process_names)
        closers.append(reader.close)
        return reader

    yield make
    for close in closers:
        await close()
