"""In the child process: one thread that listens for GPUs that a kernel driver takes or gives up (drivers from 575 on).

The kernel waits with unbinding a GPU until everybody has closed it, so somebody has to hear of it.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from gpufleet.readers.nvml.context import DEPRECATED, FUNCTION_NOT_FOUND, NOT_SUPPORTED, TIMEOUT, VERSION_MISMATCH
from gpufleet.readers.nvml.protocol import Record, SystemEventRecord

UNBIND, BIND = 0x1, 0x2
"""nvmlSystemEventTypeGpuDriverUnbind and nvmlSystemEventTypeGpuDriverBind (nvml.h)."""

WAIT_MS = 500
ROOM = 16
RETRY_SECONDS = 60.0

_FOR_GOOD = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED, VERSION_MISMATCH})


class _SetRequest(ctypes.Structure):
    """nvmlSystemEventSetCreateRequest_v1_t, and nvmlSystemEventSetFreeRequest_v1_t."""

    _fields_ = (("version", ctypes.c_uint), ("set", ctypes.c_void_p))


class _RegisterRequest(ctypes.Structure):
    """nvmlSystemRegisterEventRequest_v1_t."""

    _fields_ = (("version", ctypes.c_uint), ("types", ctypes.c_ulonglong), ("set", ctypes.c_void_p))


class _Event(ctypes.Structure):
    """nvmlSystemEventData_v1_t."""

    _fields_ = (("type", ctypes.c_ulonglong), ("gpu", ctypes.c_uint))


class _WaitRequest(ctypes.Structure):
    """nvmlSystemEventSetWaitRequest_v1_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("timeout_ms", ctypes.c_uint),
        ("set", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("room", ctypes.c_uint),
        ("count", ctypes.c_uint),
    )


class SystemListener:
    """The thread and its set of events. Started by the first `watch`."""

    def __init__(self, put: Callable[[Record], None]) -> None:
        """Take where records leave."""
        self._put = put
        self._library: Any = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, nvml: Any) -> None:
        """Listen; does nothing if it does already."""
        if self._thread is None:
            self._library = nvml.nvmlLib
            self._thread = threading.Thread(target=self._run, name="system-events", daemon=True)
            self._thread.start()

    def stop(self) -> bool:
        """Stop listening; return whether the thread is out of the driver."""
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(4 * WAIT_MS / 1000)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            made = _SetRequest(_version(_SetRequest))
            code = self._call("nvmlSystemEventSetCreate", made)
            if code == 0:
                code = self._listen(made.set)
                self._call("nvmlSystemEventSetFree", made)
            if code in _FOR_GOOD:
                return
            self._stopping.wait(RETRY_SECONDS)

    def _listen(self, events: int) -> int:
        """Pass on what comes until it is to stop or something fails; return the code of that."""
        code = self._call(
            "nvmlSystemRegisterEvents", _RegisterRequest(_version(_RegisterRequest), UNBIND | BIND, events)
        )
        room = (_Event * ROOM)()
        while code in (0, TIMEOUT) and not self._stopping.is_set():
            wait = _WaitRequest(_version(_WaitRequest), WAIT_MS, events, ctypes.addressof(room), ROOM, 0)
            code = self._call("nvmlSystemEventSetWait", wait)
            for event in room[: min(wait.count, ROOM)] if code == 0 else ():
                self._put(SystemEventRecord(event.type, event.gpu, time.time_ns()))
        return code

    def _call(self, name: str, request: ctypes.Structure) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return FUNCTION_NOT_FOUND
        return int(function(ctypes.byref(request)))


def _version(request: type[ctypes.Structure]) -> int:
    """Return what NVML calls version 1 of a struct: that number over its size."""
    return 1 << 24 | ctypes.sizeof(request)
