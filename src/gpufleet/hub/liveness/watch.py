"""The loop that keeps the hub's listening time and its mark."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from gpufleet.hub.liveness.listening import Listening
from gpufleet.hub.liveness.mark import Mark
from gpufleet.hub.liveness.past import Past
from gpufleet.ports import Clock
from gpufleet.upkeep import keep

LOOK_SECONDS = 1.0
MARK_EVERY = 5
"""Looks between marks: a hub that is killed loses at most so many seconds of its life."""


@contextlib.asynccontextmanager
async def watching(
    listening: Listening, mark: Mark | None, clock: Clock, ended: Callable[[str], None], past: Past | None = None
) -> AsyncIterator[None]:
    """Keep them while the context is open, and mark the end of this life when it closes.

    `ended` is as of `keep`; `past` is what the mark said before.
    """
    life = _Life(listening, clock, past or Past())
    run = keep(lambda: _watch(life, mark), "watching the clock", ended=ended)
    task = asyncio.create_task(run, name="watch")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if mark is not None:
            await asyncio.to_thread(mark.save, life.look())


class _Life:
    """This process, as it grows its past."""

    def __init__(self, listening: Listening, clock: Clock, past: Past) -> None:
        self._listening = listening
        self._clock = clock
        self._before = past.seconds - listening.seconds
        self._past = past.begun(clock.now_ns())

    def look(self) -> Past:
        """Return the past as it is now."""
        self._past = self._past.looked(self._clock.now_ns(), self._before + self._listening.seconds)
        return self._past


async def _watch(life: _Life, mark: Mark | None) -> None:
    """Look at the clock, and mark that the hub lives, until cancelled."""
    looks = 0
    while True:
        past = life.look()
        if mark is not None and looks % MARK_EVERY == 0:
            await asyncio.to_thread(mark.save, past)
        looks += 1
        await asyncio.sleep(LOOK_SECONDS)
