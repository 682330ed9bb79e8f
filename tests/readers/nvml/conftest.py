"""A reader over the fake driver: real child process, real binding."""

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
    """Give eight healthy H200s, with a log of calls."""
    return FakeNvml(tmp_path, Scenario.healthy(8), log=True)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Give a maker of readers; they are closed at the end."""
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
