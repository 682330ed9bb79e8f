"""Tasks that live as long as their daemon, beside the one that ends it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

log = logging.getLogger(__name__)

AGAIN_SECONDS = 30.0
"""Before a task that ended is begun again: a defect that comes back at once fills no log."""


def _nobody(_: str) -> None:
    pass


async def keep(
    run: Callable[[], Awaitable[None]],
    name: str,
    *,
    ended: Callable[[str], None] = _nobody,
    again_seconds: float = AGAIN_SECONDS,
) -> NoReturn:
    """Run what should never end, until cancelled; if it does end, say so, and begin it again.

    It is the last catch point of a task, behind those in its own loop: whatever gets here is a defect.

    Args:
        run: makes what is run; called again each time.
        name: what it is, for people.
        ended: hears in words why it ended.
        again_seconds: how long to wait then.
    """
    while True:
        try:
            await run()
        except Exception as error:  # the last catch point: a defect costs this task its time until it is begun again
            words = f"{type(error).__name__}: {error}"
            log.exception("%s: a defect ended it; it begins again in %g s", name, again_seconds)
        else:
            words = "it ended by itself"
            log.error("%s: %s, which it never should; it begins again in %g s", name, words, again_seconds)
        ended(words)
        await asyncio.sleep(again_seconds)
