"""Long work in small steps, so that the event loop answers others in between."""

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

SLICE_SECONDS = 0.0005
"""How long the event loop is held without a break."""

BREAK_SECONDS = 0.001
"""How long others have it between two slices: an answer takes many turns of the loop, and must not wait in each."""


async def in_slices(
    work: Generator[None, None, T], *, hurried: bool = False, slice_seconds: float = SLICE_SECONDS
) -> T:
    """Do the work, and let others have the event loop between its steps whenever a slice is over.

    Args:
        work: done when it ends; what it returns is returned.
        hurried: somebody waits for this very work: others have one turn of the loop and no more.
        slice_seconds: as `SLICE_SECONDS`, for work that is done seldom: a break costs about 0.1 ms.
    """
    began = time.perf_counter()
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            if not hurried:
                await asyncio.sleep(0)  # what follows is no part of this slice
            return result
        if time.perf_counter() - began >= slice_seconds:
            await asyncio.sleep(0 if hurried else BREAK_SECONDS)
            began = time.perf_counter()


def at_once(work: Generator[None, None, T]) -> T:
    """Do the work without a break."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
