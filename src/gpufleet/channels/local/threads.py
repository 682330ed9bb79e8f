"""Blocking jobs in a thread that is abandoned when a job hangs.

A read from a dead network file system or a stuck driver's file can stay in the kernel for hours and cannot be
interrupted. The thread is then abandoned, the job is reported as timed out, and the remaining jobs run in a new thread.
A job whose thread is still stuck is not started again, which bounds the number of threads.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

Job = tuple[str, Callable[[], T]]
"""Key and blocking call."""


class _Worker(Generic[T]):
    """A thread that runs jobs in order. Its results may be read at any time."""

    def __init__(self, jobs: Sequence[Job[T]], loop: asyncio.AbstractEventLoop) -> None:
        self.results: dict[str, T] = {}
        self.failure: BaseException | None = None
        self.finished = asyncio.Event()
        self._jobs = jobs
        self._loop = loop
        self._lock = threading.Lock()
        self._abandoned = False
        self._current: tuple[str, float] | None = None
        # A daemon thread: a thread stuck in the kernel must not keep the process from ending.
        self.thread = threading.Thread(target=self._run, name="gpufleet-files", daemon=True)

    def current(self) -> tuple[str, float] | None:
        """Return the key and duration in seconds of the running job, or None between jobs."""
        current = self._current
        return None if current is None else (current[0], time.monotonic() - current[1])

    def abandon(self) -> dict[str, T]:
        """Abandon the thread and return the completed results. Later results are dropped."""
        with self._lock:
            self._abandoned = True
            return dict(self.results)

    def _run(self) -> None:
        try:
            for key, call in self._jobs:
                self._current = (key, time.monotonic())
                result = call()
                with self._lock:
                    if self._abandoned:
                        return
                    self.results[key] = result
        except BaseException as error:  # noqa: BLE001 - handed to the waiting task, which raises it
            self.failure = error
        self._current = None
        with self._lock:
            # After abandonment no task waits, and the loop may be closed.
            if not self._abandoned:
                self._loop.call_soon_threadsafe(self.finished.set)


class WatchedThreads(Generic[T]):
    """Runs blocking jobs for one event loop with a time limit for each.

    Args:
        job_seconds: after this time a job is reported as timed out and its thread is abandoned.
        total_seconds: after this time every incomplete job is reported as timed out.
    """

    def __init__(self, *, job_seconds: float, total_seconds: float) -> None:
        self._job_seconds = job_seconds
        self._total_seconds = total_seconds
        self._stuck: dict[str, threading.Thread] = {}

    async def run(self, jobs: Sequence[Job[T]]) -> tuple[dict[str, T], tuple[str, ...]]:
        """Run the jobs in order. Returns results by key, and the keys that timed out.

        Raises:
            BaseException: any exception of a job. Jobs are expected to return their failures.
        """
        self._stuck = {key: thread for key, thread in self._stuck.items() if thread.is_alive()}
        deadline = time.monotonic() + self._total_seconds
        results: dict[str, T] = {}
        timed_out = [key for key, _ in jobs if key in self._stuck]
        waiting = [job for job in jobs if job[0] not in self._stuck]
        while waiting and time.monotonic() < deadline:
            done, hung = await self._run_until_hung(waiting, deadline)
            results.update(done)
            waiting = [job for job in waiting if job[0] not in done and job[0] != hung]
            if hung is not None:
                timed_out.append(hung)
        timed_out.extend(key for key, _ in waiting)
        return results, tuple(timed_out)

    async def _run_until_hung(self, jobs: Sequence[Job[T]], deadline: float) -> tuple[dict[str, T], str | None]:
        worker = _Worker(jobs, asyncio.get_running_loop())
        worker.thread.start()
        try:
            while not worker.finished.is_set():
                current = worker.current()
                spent = current[1] if current is not None else 0.0
                left = min(self._job_seconds - spent, deadline - time.monotonic())
                if left <= 0:
                    break
                await _wait(worker.finished, left)
            if worker.failure is not None:
                raise worker.failure
        finally:
            done = worker.abandon()
            hung = worker.current()
            if hung is not None and hung[0] not in done:
                self._stuck[hung[0]] = worker.thread
        return done, None if hung is None or hung[0] in done else hung[0]


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for `event`, at most `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
