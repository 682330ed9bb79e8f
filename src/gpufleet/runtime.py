"""Process runtime: task supervision, named threads, cooperative scheduling, memory trimming and the system clock."""

import asyncio
import contextlib
import ctypes
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, TypeVar

log = logging.getLogger(__name__)

RESTART_SECONDS = 30.0
"""Delay before a task that ended is restarted. It keeps a defect that recurs at once from filling the log."""


def _ignore(_: str) -> None:
    pass


async def supervise(
    run: Callable[[], Awaitable[None]],
    name: str,
    *,
    on_end: Callable[[str], None] = _ignore,
    restart_seconds: float = RESTART_SECONDS,
) -> NoReturn:
    """Run a task that should never end, until cancelled; log and restart it if it ends.

    This is the last catch point of a task. The task's own loop handles expected errors, so any error here is a defect.

    Args:
        run: returns the awaitable to run; called again for each restart.
        name: of the task, for log messages.
        on_end: receives the reason each time the task ends, as in the log.
        restart_seconds: delay before a restart.
    """
    while True:
        try:
            await run()
        except Exception as error:  # broad: last catch point; a defect costs this task only the time until its restart
            reason = f"task crashed: {type(error).__name__}: {error}"
            log.exception("%s: %s; restarting in %g s", name, reason, restart_seconds)
        else:
            reason = "task returned unexpectedly"
            log.error("%s: %s; restarting in %g s", name, reason, restart_seconds)
        on_end(reason)
        await asyncio.sleep(restart_seconds)


NAME_BYTES = 15
"""Maximum length of a thread name in Linux."""

_COMM = Path("/proc/thread-self/comm")


def named_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of `count` threads named `name` in Python and, where /proc exists, in the kernel.

    `top -H` then attributes processor time to the named parts of a daemon.
    """
    return ThreadPoolExecutor(count, name, initializer=_set_thread_name, initargs=(name,))


def _set_thread_name(name: str) -> None:
    with contextlib.suppress(OSError):  # no /proc/thread-self on this system; the name is only a convenience
        _COMM.write_bytes(name.encode()[:NAME_BYTES])


def trim_memory() -> None:
    """Return free heap memory to the system with glibc's `malloc_trim`; do nothing with another C library.

    Imports leave much free memory behind, most of all where modules are compiled because byte code cannot be cached.
    glibc keeps that memory unless trimmed.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


TRIM_SECONDS = 60.0
"""Interval of `trim_regularly`. A trim of 1.5 GiB takes 90 ms, in which other threads allocate memory more slowly."""


async def trim_regularly(thread: Executor, interval_seconds: float = TRIM_SECONDS) -> None:
    """Trim memory in a thread at an interval, until cancelled: large arrays leave gaps that glibc keeps."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(interval_seconds)
        await loop.run_in_executor(thread, trim_memory)


T = TypeVar("T")

BUDGET_SECONDS = 0.0005
"""Time that `run_cooperatively` works before it yields to the event loop."""

YIELD_SECONDS = 0.001
"""Sleep between two work intervals. A request needs many turns of the event loop and must not wait in each."""


async def run_cooperatively(
    work: Generator[None, None, T], *, urgent: bool = False, budget_seconds: float = BUDGET_SECONDS
) -> T:
    """Run a generator to its end, yielding to the event loop each time the time budget is used up.

    Args:
        work: the generator; its return value is returned.
        urgent: yield for a single turn of the loop instead of `YIELD_SECONDS`, because a client waits for the result.
        budget_seconds: overrides `BUDGET_SECONDS`, for infrequent work; each yield costs about 0.1 ms.
    """
    began = time.perf_counter()
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            if not urgent:
                await asyncio.sleep(0)  # the caller's next step starts a new time budget
            return result
        if time.perf_counter() - began >= budget_seconds:
            await asyncio.sleep(0 if urgent else YIELD_SECONDS)
            began = time.perf_counter()


def run_to_end(work: Generator[None, None, T]) -> T:
    """Run a generator to its end without yielding and return its value."""
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
