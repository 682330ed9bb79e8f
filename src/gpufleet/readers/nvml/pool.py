"""Threads of the child process that query the driver, their alarm, and the writer of its records.

Leader/follower: the leader thread takes each request and queries NVML as a whole and device after device, as long as
the driver answers promptly. Handing the interpreter between threads costs more than the calls themselves. If a device
takes longer than `PATIENCE`, each remaining device gets its own thread and another thread becomes the leader, so that a
device that hangs affects only itself.
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


class _TimerSpec(ctypes.Structure):
    """struct itimerspec of a 64-bit machine: interval and initial expiration, in seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every", "every_ns", "first", "first_ns"))


class Alarm:
    """Periodic kernel timer behind a descriptor (timerfd(2)). Linux only.

    Setting and clearing it wakes no thread; waiting for another thread with a timeout would.

    Attributes:
        descriptor: readable once the timer has expired.
    """

    def __init__(self, seconds: float) -> None:
        """Create the timer, unset, with this period.

        Raises:
            OSError: if the kernel cannot create it.
        """
        # PyDLL: the interpreter lock is kept during a call that never blocks.
        library = ctypes.PyDLL(None, use_errno=True)
        self.descriptor: int = library.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"timerfd_create: {os.strerror(number)}")
        whole, part = divmod(round(seconds * 1e9), 10**9)
        self._settime = library.timerfd_settime
        self._on, self._off = ctypes.byref(_TimerSpec(whole, part, whole, part)), ctypes.byref(_TimerSpec())

    def set(self) -> None:
        """Start the timer; it expires first after one period."""
        self._settime(self.descriptor, 0, self._on, None)

    def clear(self) -> None:
        """Stop the timer."""
        self._settime(self.descriptor, 0, self._off, None)

    def acknowledge(self) -> None:
        """Reset the descriptor; does nothing if the timer did not expire or was cleared meanwhile."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 8)


class RecordWriter:
    """Writer of records to a pipe, for any thread; combines records into one write while held."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._held = False

    def put(self, record: Record) -> None:
        """Write a record, immediately unless held. Exits the process if the parent has closed the pipe."""
        frame = encode_frame(record)
        with self._lock:
            self._buffer += frame
            if not self._held:
                self._write()

    def hold(self) -> None:
        """Buffer records from now on: a pass is one write, and wakes the parent once."""
        with self._lock:
            self._held = True

    def flush(self) -> None:
        """Write the buffered records."""
        with self._lock:
            self._write()

    def release(self) -> None:
        """Write the buffered records, and stop buffering."""
        with self._lock:
            self._held = False
            self._write()

    def _write(self) -> None:
        try:
            while self._buffer:
                del self._buffer[: os.write(self._descriptor, self._buffer)]
        except BrokenPipeError:
            os._exit(0)


PATIENCE = 0.005
"""Seconds within which a device of the pass must be started; otherwise all remaining ones get a thread each."""

Job = Callable[[], object]
LeadFunction = Callable[[], Iterable[Job] | None]
"""Waits for a request and returns its jobs, one per device; None after the last request."""


class _JobPass:
    """Jobs of one pass that no thread has started.

    Attributes:
        left: the jobs.
        seen: their number at the last check.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.left = deque(jobs)
        self.seen = len(self.left)

    def work(self) -> None:
        """Do one job after another until none is left; safe for any number of threads."""
        while True:
            try:
                job = self.left.popleft()
            except IndexError:
                return
            job()


class WorkerPool:
    """Threads that do the jobs: one per device that hangs, and one more. Threads are reused and never ended."""

    def __init__(self, lead: LeadFunction, writer: RecordWriter, alarm: Alarm) -> None:
        """Create the pool, without threads.

        Args:
            lead: called by the leader; may hold the writer.
            writer: released at the end of a pass, and as soon as a device hangs.
            alarm: set during a pass; on its expiry the caller runs `check_progress`.
        """
        self._lead, self._writer, self._alarm = lead, writer, alarm
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()
        self._pass: _JobPass | None = None  # the leader's current pass

    def start(self) -> None:
        """Start the first leader."""
        self._dispatch(self._lead_passes)

    def check_progress(self) -> None:
        """Write the records so far; replace the leader if it has started no device since the last check."""
        with self._lock:
            current = self._pass
            if current is None:
                return
            left = len(current.left)
            hangs, current.seen = left == current.seen, left
        if hangs:
            self._replace_leader(current)
        else:
            self._writer.flush()

    def _lead_passes(self) -> None:
        """Lead pass after pass, until another thread becomes the leader."""
        while (jobs := self._lead()) is not None:
            current = _JobPass(jobs)
            with self._lock:
                self._pass = current
            self._alarm.set()
            try:
                current.work()
            except Exception:
                self._replace_leader(current)  # a defect affects only its own device, as a hang does
                raise
            with self._lock:
                if self._pass is not current:
                    return
                self._pass = None
            self._alarm.clear()
            self._writer.release()

    def _replace_leader(self, current: _JobPass) -> None:
        """Give the remaining jobs of a pass and the lead to other threads, unless the leader has finished the pass."""
        with self._lock:
            if self._pass is not current:
                return
            self._pass = None
        self._alarm.clear()
        self._writer.release()
        for _ in range(len(current.left)):
            self._dispatch(current.work)
        self._dispatch(self._lead_passes)

    def _dispatch(self, task: Callable[[], None]) -> None:
        """Run a task on an idle thread, or on a new one."""
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
