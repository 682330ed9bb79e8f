"""The loop that has minutes and hours made of what was measured."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator

from gpufleet.hub.counters import Counters
from gpufleet.hub.threads import named_threads
from gpufleet.model.errors import StoreError
from gpufleet.ports import Clock, Store

LOG = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0
"""Between looks for an hour that should be made."""


@contextlib.asynccontextmanager
async def rolling(
    store: Store, counters: Counters, clock: Clock, *, pause_seconds: float = PAUSE_SECONDS
) -> AsyncIterator[None]:
    """Have hours made while the context is open, one after the other, on a thread of its own.

    One that is being made when the context closes is left as it was.
    """
    stop = threading.Event()
    thread = named_threads(1, "hub-roller")
    task = asyncio.get_running_loop().run_in_executor(thread, _roll, store, counters, clock, stop, pause_seconds)
    try:
        yield
    finally:
        stop.set()
        await task
        thread.shutdown()


def _roll(store: Store, counters: Counters, clock: Clock, stop: threading.Event, pause_seconds: float) -> None:
    told = ""
    while not stop.is_set():
        try:
            hour = store.roll_up(clock.now_ns(), stop.is_set)
            told = ""
        except Exception as error:  # the hour is as it was, and is tried again: nothing else waits for it
            if not isinstance(error, StoreError):
                LOG.exception("minutes and hours could not be made")
            elif (words := str(error)) != told:  # a store that is away for hours is told of once
                LOG.warning("minutes and hours could not be made: %s", words)
                told = words
            counters.rollup_failures += 1
            hour = None
        if hour is None:
            stop.wait(pause_seconds)
            continue
        counters.rolled_hours += 1
        counters.rolled_again += hour.again
        LOG.debug("hour of %d: %d machines in %.1f s", hour.start, hour.machines, hour.seconds)
