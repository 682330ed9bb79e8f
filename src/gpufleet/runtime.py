"""Tasks that live as long as their daemon, beside the one that ends it.

Threads that the system knows by name: `top -H` and /proc tell what a hub's processor time goes to.

Memory that a process took for its start, given back to the system.

Long work in small steps, so that the event loop answers others in between.

The clocks of this machine.
"""

import asyncio
import contextlib
import ctypes
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, TypeVar

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


NAME_BYTES = 15
"""What Linux keeps of a thread's name."""

_COMM = Path("/proc/thread-self/comm")


def named_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return so many threads, each called `name` by Python, and where there is a /proc by the system too."""
    return ThreadPoolExecutor(count, name, initializer=_be_called, initargs=(name,))


def _be_called(name: str) -> None:
    with contextlib.suppress(OSError):  # another system: it is but a name
        _COMM.write_bytes(name.encode()[:NAME_BYTES])


def give_back_memory() -> None:
    """Let the C library return what it holds and nobody uses; does nothing where it is not glibc.

    Importing takes much that is free afterwards, most of all where modules have to be compiled because their byte code
    may not be written. Without being told, the C library keeps it.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


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


class SystemClock:
    """The Clock port over the kernel's own clocks."""

    def now_ns(self) -> int:
        """Return nanoseconds since 1970 UTC."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, not moved by setting the clock."""
        return time.monotonic()
