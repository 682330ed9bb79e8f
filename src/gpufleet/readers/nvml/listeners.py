"""In the child process: one thread that listens for the driver's events, for all GPUs.

It takes handles of its own and asks nothing of a device later: a lost GPU could not answer, so which one an event is
about is known from the handle it was registered with.

In the child process: one thread that listens for GPUs that a kernel driver takes or gives up (drivers from 575 on).

The kernel waits with unbinding a GPU until everybody has closed it, so somebody has to hear of it.
"""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from gpufleet.readers.nvml.context import DEPRECATED, FUNCTION_NOT_FOUND, NOT_SUPPORTED, TIMEOUT, VERSION_MISMATCH
from gpufleet.readers.nvml.protocol import EventRecord, Record, SystemEventRecord, WatchedRecord

WAIT_MS = 500
"""How long the driver may keep the thread in one wait; stopping takes as long."""

XID, MIG_CHANGE = 0x8, 0x100
MEMORY_STORM, MEMORY_RETIRED, MEMORY_NOT_RETIRED = 0x200, 0x400, 0x800
POISON, FATAL_POISON, UNAVAILABLE = 0x1000, 0x2000, 0x4000
WANTED = XID | MIG_CHANGE | MEMORY_STORM | MEMORY_RETIRED | MEMORY_NOT_RETIRED | POISON | FATAL_POISON | UNAVAILABLE
"""Types of nvmlEventData_t (nvml.h; those from 0x200 on since driver branch 570). Of them those are asked for that a
device supports. The others (ECC errors, P-states, clocks, recovery actions) are told by readings, which say how much.
"""

UNKNOWN = 999
RETRY_SECONDS, RETRY_MOST = 1.0, 60.0


class _SpoiltError(Exception):
    """Registering a GPU failed with an unknown error: nvml.h says that the set is of no use then."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(index)


class Listener:
    """The thread and its set of events. Started by the first `watch`."""

    def __init__(self, put: Callable[[Record], None]) -> None:
        """Take where records leave."""
        self._put = put
        self._nvml: Any = None
        self._wanted = 0
        self._failed = False
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, nvml: Any, count: int, *, anew: bool) -> None:
        """Listen to the first `count` GPUs; `anew` tries those again that could not be registered."""
        if self._thread is None:
            self._nvml = nvml
            self._thread = threading.Thread(target=self._run, name="events", daemon=True)
            self._wanted = count
            self._changed.set()
            self._thread.start()
        elif (anew and self._failed) or count != self._wanted:
            self._wanted = count
            self._changed.set()

    def stop(self) -> bool:
        """Stop listening; return whether the thread is out of the driver."""
        self._stopping.set()
        self._changed.set()
        if self._thread is None:
            return True
        self._thread.join(4 * WAIT_MS / 1000)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause = RETRY_SECONDS
        while True:
            self._changed.clear()
            if self._stopping.is_set():  # only now: clearing must not take back the word of it
                return
            began = time.monotonic()
            with contextlib.suppress(self._nvml.NVMLError):
                self._listen()
            if self._changed.is_set():
                continue  # something else is to be listened to
            # The set could not be made, or waiting failed: a lost GPU, or a driver on its way out.
            pause = RETRY_SECONDS if time.monotonic() - began > RETRY_MOST else min(2 * pause, RETRY_MOST)
            self._changed.wait(pause)

    def _listen(self) -> None:
        """Register what there is, and pass on what comes until something changes or fails."""
        nvml, left_out = self._nvml, set[int]()
        while True:
            events = nvml.nvmlEventSetCreate()
            try:
                indices, codes = self._register(events, left_out)
                self._failed = any(code not in (0, NOT_SUPPORTED) for code in codes)
                self._put(WatchedRecord(codes))
                while indices and not self._changed.is_set():
                    self._wait(events, indices)
                self._changed.wait()
                return
            except _SpoiltError as spoilt:
                left_out.add(spoilt.index)
            finally:
                with contextlib.suppress(nvml.NVMLError):
                    nvml.nvmlEventSetFree(events)

    def _register(self, events: Any, left_out: set[int]) -> tuple[dict[int, int], tuple[int, ...]]:
        """Return address of a handle to the index of its GPU, and the return code of each GPU's registration."""
        nvml = self._nvml
        indices: dict[int, int] = {}
        codes: list[int] = []
        for index in range(self._wanted):
            if index in left_out:
                codes.append(UNKNOWN)
                continue
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                types = nvml.nvmlDeviceGetSupportedEventTypes(handle) & WANTED
            except nvml.NVMLError as error:
                codes.append(error.value)
                continue
            codes.append(self._register_one(handle, index, types, events) if types & XID else NOT_SUPPORTED)
            if codes[-1] == 0:
                indices[_address(handle)] = index
        return indices, tuple(codes)

    def _register_one(self, handle: Any, index: int, types: int, events: Any) -> int:
        try:
            self._nvml.nvmlDeviceRegisterEvents(handle, types, events)
        except self._nvml.NVMLError as error:
            if error.value == UNKNOWN:
                raise _SpoiltError(index) from None
            return int(error.value)
        return 0

    def _wait(self, events: Any, indices: dict[int, int]) -> None:
        nvml = self._nvml
        try:
            told = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except nvml.NVMLError as error:
            if error.value == TIMEOUT:
                return
            raise
        index = indices.get(_address(told.device), -1)
        self._put(
            EventRecord(
                index, told.eventType, told.eventData, told.gpuInstanceId, told.computeInstanceId, time.time_ns()
            )
        )


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


UNBIND, BIND = 0x1, 0x2
"""nvmlSystemEventTypeGpuDriverUnbind and nvmlSystemEventTypeGpuDriverBind (nvml.h)."""

SYSTEM_WAIT_MS = 500
ROOM = 16
SYSTEM_RETRY_SECONDS = 60.0

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
        self._thread.join(4 * SYSTEM_WAIT_MS / 1000)
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
            self._stopping.wait(SYSTEM_RETRY_SECONDS)

    def _listen(self, events: int) -> int:
        """Pass on what comes until it is to stop or something fails; return the code of that."""
        code = self._call(
            "nvmlSystemRegisterEvents", _RegisterRequest(_version(_RegisterRequest), UNBIND | BIND, events)
        )
        room = (_Event * ROOM)()
        while code in (0, TIMEOUT) and not self._stopping.is_set():
            wait = _WaitRequest(_version(_WaitRequest), SYSTEM_WAIT_MS, events, ctypes.addressof(room), ROOM, 0)
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
