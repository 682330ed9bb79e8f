"""In the child process: the threads that ask the driver.

One of them leads: it takes request after request, and asks NVML as a whole and device after device, as long as the
driver answers promptly. Threads that take turns pay more for handing the interpreter to each other than the calls cost.
Where a device takes longer than `PATIENCE`, each of those that wait gets a thread, and another one leads from then on,
so that a device that hangs costs only itself.

In the child process: an alarm clock that one thread sets and another hears, without a word between them.

In the child process: where records leave for the parent.
"""

import contextlib
import ctypes
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable

from gpufleet.readers.nvml.protocol import Record, encode_frame

_MONOTONIC = 1
"""CLOCK_MONOTONIC (time.h)."""


class _Times(ctypes.Structure):
    """struct itimerspec of a 64-bit machine: seconds and nanoseconds between rings, and until the first."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every", "every_ns", "first", "first_ns"))


class Alarm:
    """Rings again and again while it is set. Linux only: a timer of the kernel behind a descriptor (timerfd(2)).

    Setting it and taking it back wakes nobody up, where waiting for another thread with a time limit does.

    Attributes:
        descriptor: can be read from once it has rung.
    """

    def __init__(self, seconds: float) -> None:
        """Make it, not set, to ring every so many seconds.

        Raises:
            OSError: if the kernel gives none.
        """
        # PyDLL: the interpreter is not handed over for a call that never waits.
        library = ctypes.PyDLL(None, use_errno=True)
        self.descriptor: int = library.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_create: {os.strerror(number)}")
        whole, part = divmod(round(seconds * 1e9), 10**9)
        self._settime = library.timerfd_settime
        self._on, self._off = ctypes.byref(_Times(whole, part, whole, part)), ctypes.byref(_Times())

    def set(self) -> None:
        """Let it ring, for the first time after its seconds."""
        self._settime(self.descriptor, 0, self._on, None)

    def clear(self) -> None:
        """Let it ring no more."""
        self._settime(self.descriptor, 0, self._off, None)

    def hear(self) -> None:
        """Take note that it rang; does nothing where it did not, or was cleared meanwhile."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 8)


class Outlet:
    """Writes records to a pipe, whoever has them; several in one go while they are held."""

    def __init__(self, descriptor: int) -> None:
        """Take the pipe; nothing is held."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._held = False

    def put(self, record: Record) -> None:
        """Write a record, at once unless records are held. The parent's end ends the process."""
        frame = encode_frame(record)
        with self._lock:
            self._waiting += frame
            if not self._held:
                self._write()

    def hold(self) -> None:
        """Keep what is put from now on, until it is asked for: a pass is one write, and wakes the parent once."""
        with self._lock:
            self._held = True

    def flush(self) -> None:
        """Write what was kept so far."""
        with self._lock:
            self._write()

    def release(self) -> None:
        """Write what was kept, and keep no more."""
        with self._lock:
            self._held = False
            self._write()

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting)]
        except BrokenPipeError:
            os._exit(0)


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
