"""Long work in small steps: who has the event loop meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator

import pytest

from gpufleet.runtime import run_cooperatively, run_to_end

NEVER_OVER = 600.0


class Others:
    """Everybody else on the event loop; counts their turns."""

    def __init__(self) -> None:
        self.turns = 0

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._work())
        await asyncio.sleep(0)
        yield
        task.cancel()

    async def _work(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    def watched(self, steps: int) -> Generator[None, None, list[int]]:
        """Give work of some steps; its result is how many turns they had had at each."""
        seen = []
        for _ in range(steps):
            seen.append(self.turns)
            yield
        return seen


@pytest.mark.parametrize("urgent", [False, True])
async def test_others_have_their_turn_between_slices(urgent: bool) -> None:
    others = Others()
    async with others.at_work():
        seen = await run_cooperatively(others.watched(4), urgent=urgent, budget_seconds=0)
    assert seen == sorted(set(seen))


async def test_nobody_has_a_turn_within_a_slice() -> None:
    others = Others()
    async with others.at_work():
        seen = await run_cooperatively(others.watched(4), budget_seconds=NEVER_OVER)
        assert len(seen) == 4
        assert len(set(seen)) == 1
        assert others.turns > seen[-1]  # once it is over


def test_work_without_a_loop_is_done_at_once() -> None:
    assert run_to_end(Others().watched(3)) == [0, 0, 0]
