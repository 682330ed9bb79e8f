"""Cooperative scheduling: long work in small steps shares the event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator

import pytest

from gpufleet.runtime import run_cooperatively, run_to_end

NEVER_OVER = 600.0


class OtherTask:
    """Another task on the event loop, which counts its turns."""

    def __init__(self) -> None:
        self.turns = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._work())
        await asyncio.sleep(0)
        yield
        task.cancel()

    async def _work(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    def watched(self, steps: int) -> Generator[None, None, list[int]]:
        """Return work of several steps; its result is the other task's turns at each step."""
        seen = []
        for _ in range(steps):
            seen.append(self.turns)
            yield
        return seen


@pytest.mark.parametrize("urgent", [False, True])
async def test_other_tasks_run_between_slices(urgent: bool) -> None:
    other = OtherTask()
    async with other.running():
        seen = await run_cooperatively(other.watched(4), urgent=urgent, budget_seconds=0)
    assert seen == sorted(set(seen))


async def test_other_tasks_do_not_run_within_a_slice() -> None:
    other = OtherTask()
    async with other.running():
        seen = await run_cooperatively(other.watched(4), budget_seconds=NEVER_OVER)
        assert len(seen) == 4
        assert len(set(seen)) == 1
        assert other.turns > seen[-1]  # after the work


def test_work_without_a_loop_is_done_at_once() -> None:
    assert run_to_end(OtherTask().watched(3)) == [0, 0, 0]
