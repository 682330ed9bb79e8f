"""The loop that keeps the hub's listening time and its mark."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from gpufleet.hub.liveness.listening import Listening
from gpufleet.hub.liveness.mark import Mark
from gpufleet.upkeep import keep

LOOK_SECONDS = 1.0
MARK_EVERY = 5
"""Looks between marks: a hub that is killed loses at most so many seconds of its life."""


@contextlib.asynccontextmanager
async def watching(listening: Listening, mark: Mark | None, ended: Callable[[str], None]) -> AsyncIterator[None]:
    """Keep them while the context is open, and mark the end of this life when it closes; `ended` as of `keep`."""
    run = keep(lambda: _watch(listening, mark), "watching the clock", ended=ended)
    task = asyncio.create_task(run, name="watch")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if mark is not None:
            await asyncio.to_thread(mark.save, listening.past)


async def _watch(listening: Listening, mark: Mark | None) -> None:
    """Look at the clock, and mark that the hub lives, until cancelled."""
    looks = 0
    while True:
        _ = listening.seconds
        if mark is not None and looks % MARK_EVERY == 0:
            await asyncio.to_thread(mark.save, listening.past)
        looks += 1
        await asyncio.sleep(LOOK_SECONDS)
