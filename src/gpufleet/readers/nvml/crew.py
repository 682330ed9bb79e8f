"""In the child process: the threads that ask the devices.

One thread asks device after device as long as the driver answers promptly: threads that take turns at single calls pay
more for handing the interpreter to each other than the calls cost. Where a device takes longer than `PATIENCE`, each of
those that wait gets a thread, so that one that hangs costs only itself.
"""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable

PATIENCE = 0.005
"""Seconds in which some device has to begin, or else all that wait do."""

Job = Callable[[], object]


class _Pass:
    """Jobs of one pass that nobody has begun yet."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.left = deque(jobs)
        self.all_begun: queue.SimpleQueue[None] = queue.SimpleQueue()

    def work(self) -> None:
        """Do one job after another until none is left; any number of threads may."""
        while True:
            try:
                job = self.left.popleft()
            except IndexError:
                return
            if not self.left:
                self.all_begun.put(None)
            job()


class Crew:
    """Threads, as many as were ever needed at once: one for each device that hangs, and as a rule one more."""

    def __init__(self, patience: float = PATIENCE) -> None:
        """Start with none; `patience` as `PATIENCE` says."""
        self._patience = patience
        self._invitations: queue.SimpleQueue[_Pass] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def do(self, jobs: Iterable[Job]) -> None:
        """Have every job done; return when each has begun, or has a thread that will. Called by one thread."""
        work = _Pass(jobs)
        waiting = len(work.left)
        if waiting:
            self._invite(work)
        while work.left:
            with contextlib.suppress(queue.Empty):
                work.all_begun.get(timeout=self._patience)
            left = len(work.left)
            if left == waiting:
                for _ in range(left):
                    self._invite(work)
                return
            waiting = left

    def _invite(self, work: _Pass) -> None:
        """Have one more thread work: one that has nothing to do, or else a new one."""
        with self._lock:
            found = self._idle > 0
            self._idle -= found
        if found:
            self._invitations.put(work)
        else:
            threading.Thread(target=self._run, args=(work,), name="devices", daemon=True).start()

    def _run(self, work: _Pass) -> None:
        while True:
            work.work()
            with self._lock:
                self._idle += 1
            work = self._invitations.get()
