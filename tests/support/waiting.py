"""Waiting for a condition with a deadline, instead of sleeping for a fixed time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE = 4
"""Factor of every deadline. Tests state the time of an idle machine; a busy one takes several times as long."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.2
"""Seconds between two evaluations of a condition. They grow, because evaluating one may burden a busy process."""


def pause_after(pause: float, evaluation: float) -> float:
    """Return the seconds to wait after an evaluation: at least twice its duration, but at most a second for that."""
    return max(pause, min(1.0, 2 * evaluation))


def wait_until(condition: Callable[[], object], *, seconds: float = 20, what: str = "condition") -> None:
    """Poll `condition` until it is true.

    Raises:
        AssertionError: if it is still false after `seconds` times `PATIENCE`.
    """
    deadline, pause = time.monotonic() + seconds * PATIENCE, SHORTEST_PAUSE
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        assert now < deadline, f"gave up after {seconds * PATIENCE} s waiting for {what}"
        time.sleep(pause_after(pause, now - began))
        pause = min(LONGEST_PAUSE, 1.2 * pause)


async def wait_until_async(
    condition: Callable[[], Awaitable[object]], *, seconds: float = 20, what: str = "condition"
) -> None:
    """Poll an awaitable `condition` until it is true.

    Raises:
        AssertionError: if it is still false after `seconds` times `PATIENCE`.
    """
    deadline, pause = time.monotonic() + seconds * PATIENCE, SHORTEST_PAUSE
    while True:
        began = time.monotonic()
        if await condition():
            return
        now = time.monotonic()
        assert now < deadline, f"gave up after {seconds * PATIENCE} s waiting for {what}"
        await asyncio.sleep(pause_after(pause, now - began))
        pause = min(LONGEST_PAUSE, 1.2 * pause)
