"""Long work in small steps, so that the event loop answers others in between."""

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

SLICE_SECONDS = 0.0005
"""How long the event loop is held without a break; a request waits about as long."""


async def in_slices(work: Generator[None, None, T]) -> T:
    """Do the work, and let others have the event loop between its steps whenever a slice is over."""
    began = time.perf_counter()
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        if time.perf_counter() - began >= SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.perf_counter()


def at_once(work: Generator[None, None, T]) -> T:
    """Do the work without a break."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
