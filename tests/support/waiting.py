"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import asyncio
import time
from collections.abc import Awaitable, Callable


def wait_until(condition: Callable[[], object], *, seconds: float = 20, what: str = "condition") -> None:
    """Poll `condition` until it is true.

    Raises:
        AssertionError: if it is still false after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"gave up after {seconds} s waiting for {what}"
        time.sleep(0.01)


async def wait_until_async(
    condition: Callable[[], Awaitable[object]], *, seconds: float = 20, what: str = "condition"
) -> None:
    """Poll an awaitable `condition` until it is true.

    Raises:
        AssertionError: if it is still false after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, f"gave up after {seconds} s waiting for {what}"
        await asyncio.sleep(0.01)
