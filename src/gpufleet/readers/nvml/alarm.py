"""In the child process: an alarm clock that one thread sets and another hears, without a word between them."""

import contextlib
import ctypes
import os

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
