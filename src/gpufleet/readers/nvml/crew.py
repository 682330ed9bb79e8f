"""In the child process: the threads that ask the driver.

One of them leads: it takes request after request, and asks NVML as a whole and device after device, as long as the
driver answers promptly. Threads that take turns pay more for handing the interpreter to each other than the calls cost.
Where a device takes longer than `PATIENCE`, each of those that wait gets a thread, and another one leads from then on,
so that a device that hangs costs only itself.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable

from gpufleet.readers.nvml.alarm import Alarm
from gpufleet.readers.nvml.outlet import Outlet

PATIENCE = 0.005
"""Seconds in which some device has to begin, or else all that wait do."""

Job = Callable[[], object]
Lead = Callable[[], Iterable[Job] | None]
"""Waits for a request and gives the jobs that it takes, one a device; None once there will be no more."""


class _Pass:
    """Jobs of one pass that nobody has begun yet."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.left = deque(jobs)
        self.seen = len(self.left)

    def work(self) -> None:
        """Do one job after another until none is left; any number of threads may."""
        while True:
            try:
                job = self.left.popleft()
            except IndexError:
                return
            job()


class Crew:
    """Threads, as many as were ever needed at once: one for each device that hangs, and one more."""

    def __init__(self, lead: Lead, outlet: Outlet, alarm: Alarm) -> None:
        """Start with none.

        Args:
            lead: called by the thread that leads; it may hold the outlet.
            outlet: released at the end of a pass, and as soon as somebody hangs.
            alarm: set while a pass is on; whoever hears it calls `look`.
        """
        self._lead, self._outlet, self._alarm = lead, outlet, alarm
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()
        self._pass: _Pass | None = None  # the one that the leader is in

    def start(self) -> None:
        """Have somebody lead."""
        self._have(self._go_on)

    def look(self) -> None:
        """Let go what is known so far; where no device was begun since the last look, do without the leader."""
        with self._lock:
            work = self._pass
            if work is None:
                return
            left = len(work.left)
            hangs, work.seen = left == work.seen, left
        if hangs:
            self._hand_on(work)
        else:
            self._outlet.flush()

    def _go_on(self) -> None:
        """Lead, pass after pass, until somebody else does."""
        while (jobs := self._lead()) is not None:
            work = _Pass(jobs)
            with self._lock:
                self._pass = work
            self._alarm.set()
            try:
                work.work()
            except Exception:
                self._hand_on(work)  # a defect costs its own device, as a hang does
                raise
            with self._lock:
                if self._pass is not work:
                    return
                self._pass = None
            self._alarm.clear()
            self._outlet.release()

    def _hand_on(self, work: _Pass) -> None:
        """Have others do what is left of a pass, and one lead, unless the leader is out of it."""
        with self._lock:
            if self._pass is not work:
                return
            self._pass = None
        self._alarm.clear()
        self._outlet.release()
        for _ in range(len(work.left)):
            self._have(work.work)
        self._have(self._go_on)

    def _have(self, task: Callable[[], None]) -> None:
        """Have a thread do it: one that has nothing to do, or else a new one."""
        with self._lock:
            found = self._idle > 0
            self._idle -= found
        if found:
            self._tasks.put(task)
        else:
            threading.Thread(target=self._run, args=(task,), name="devices", daemon=True).start()

    def _run(self, task: Callable[[], None]) -> None:
        while True:
            task()
            with self._lock:
                self._idle += 1
            task = self._tasks.get()
