"""A child whose parent was killed ends by itself, wherever in the driver it is, and holds no device any more."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.readers.nvml.test_hang import runs
from tests.support.waiting import wait_until

PARENT = """
import asyncio, sys
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.readers.nvml.reader import NvmlReader
from gpufleet.readers.nvml.watch import Limits

async def main():
    starts = 20 if "closing" in sys.argv else 1  # a child that is still starting NVML would not shut it down
    reader = NvmlReader(limits=Limits(call=1, init=starts, hang=3600, grace=3600))
    try:
        await reader.read(Lane.FAST)
    except ReaderError:
        pass
    print(reader.child_pid, flush=True)
    if "closing" in sys.argv:
        closing = asyncio.create_task(reader.close())
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path, Scenario.healthy(2), log=True)


@pytest.fixture
def parents() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for parent in started:
        parent.kill()
        parent.communicate()


def child_of(parents: list[subprocess.Popen[str]], fake: FakeNvml, *arguments: str) -> int:
    command = [sys.executable, "-c", PARENT, *arguments]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=fake.environment)
    parents.append(parent)
    assert parent.stdout is not None
    return int(parent.stdout.readline())


@pytest.mark.parametrize(
    "function",
    ["", "nvmlInitWithFlags", "nvmlDeviceGetPowerUsage", "nvmlEventSetWait_v2", "nvmlEventSetFree", "nvmlShutdown"],
)
def test_whatever_hangs_the_child_ends_after_its_parent_was_killed(
    fake: FakeNvml, parents: list[subprocess.Popen[str]], function: str
) -> None:
    if function:
        fake.scenario.hang(function)
        fake.apply()
    child = child_of(parents, fake)
    assert runs(child)
    parents[0].send_signal(signal.SIGKILL)
    wait_until(lambda: not runs(child), seconds=40, what="the orphan to end")


def test_a_child_that_is_being_closed_ends_too(fake: FakeNvml, parents: list[subprocess.Popen[str]]) -> None:
    """As under `gpufleet agent release`: the agent waits for the child, and is killed meanwhile."""
    fake.scenario.hang("nvmlShutdown")
    fake.apply()
    child = child_of(parents, fake, "closing")
    wait_until(lambda: fake.calls()["nvmlShutdown", -1] == 1, what="the child to be inside")
    assert runs(child)
    parents[0].send_signal(signal.SIGKILL)
    wait_until(lambda: not runs(child), seconds=40, what="the orphan to end")
