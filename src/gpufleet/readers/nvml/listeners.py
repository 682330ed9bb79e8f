"""Threads of the child process that wait for the driver's events.

One thread waits for events of all GPUs. It identifies the GPU of an event by the handle that it registered, because a
lost GPU would not answer a call.

Another thread waits for GPUs that a kernel driver binds or unbinds (drivers from 575 on). The kernel blocks the
unbinding of a GPU until every process has closed it, so this process must react to it.
"""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from gpufleet.readers.nvml.context import FUNCTION_NOT_FOUND, NOT_SUPPORTED, PERMANENT_CODES, TIMEOUT, UNKNOWN
from gpufleet.readers.nvml.protocol import BindingRecord, DriverEventRecord, Record, RegistrationRecord

WAIT_MS = 500
"""Maximum duration of one wait in the driver, and so of stopping the thread."""

XID, MIG_CHANGE = 0x8, 0x100
MEMORY_STORM, MEMORY_RETIRED, MEMORY_NOT_RETIRED = 0x200, 0x400, 0x800
POISON, FATAL_POISON, UNAVAILABLE = 0x1000, 0x2000, 0x4000
EVENT_TYPES = (
    XID | MIG_CHANGE | MEMORY_STORM | MEMORY_RETIRED | MEMORY_NOT_RETIRED | POISON | FATAL_POISON | UNAVAILABLE
)
"""Requested types of nvmlEventData_t, as far as a device supports them (nvml.h; from 0x200 on since driver branch 570).

The other types (ECC errors, P-states, clocks, recovery actions) are covered by readings, which give amounts.
"""

RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0


class _InvalidSetError(Exception):
    """Registration of a GPU failed with an unknown error, which invalidates the event set (nvml.h).

    Attributes:
        index: index of the GPU.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(index)


class EventListener:
    """Thread that waits for events of GPUs. Started by the first `watch`."""

    def __init__(self, put: Callable[[Record], None]) -> None:
        """Create it.

        Args:
            put: sends a record to the parent.
        """
        self._put = put
        self._nvml: Any = None
        self._count = 0
        self._failed = False
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, nvml: Any, count: int, *, retry_failed: bool) -> None:
        """Listen to the first `count` GPUs; `retry_failed` repeats registrations that failed."""
        if self._thread is None:
            self._nvml = nvml
            self._thread = threading.Thread(target=self._run, name="events", daemon=True)
            self._count = count
            self._changed.set()
            self._thread.start()
        elif (retry_failed and self._failed) or count != self._count:
            self._count = count
            self._changed.set()

    def stop(self) -> bool:
        """Stop the thread; return whether it has left the driver."""
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
            if self._stopping.is_set():  # after the clear, which must not lose a stop
                return
            began = time.monotonic()
            with contextlib.suppress(self._nvml.NVMLError):
                self._listen()
            if self._changed.is_set():
                continue  # the set of GPUs changed
            # The set could not be created, or the wait failed: a lost GPU, or a driver that is being unloaded.
            pause = RETRY_SECONDS if time.monotonic() - began > MAX_RETRY_SECONDS else min(2 * pause, MAX_RETRY_SECONDS)
            self._changed.wait(pause)

    def _listen(self) -> None:
        """Register the GPUs, and forward events until the set of GPUs changes or a call fails."""
        nvml, excluded = self._nvml, set[int]()
        while True:
            events = nvml.nvmlEventSetCreate()
            try:
                indices, codes = self._register(events, excluded)
                self._failed = any(code not in (0, NOT_SUPPORTED) for code in codes)
                self._put(RegistrationRecord(codes))
                while indices and not self._changed.is_set():
                    self._wait(events, indices)
                self._changed.wait()
                return
            except _InvalidSetError as error:
                excluded.add(error.index)
            finally:
                with contextlib.suppress(nvml.NVMLError):
                    nvml.nvmlEventSetFree(events)

    def _register(self, events: Any, excluded: set[int]) -> tuple[dict[int, int], tuple[int, ...]]:
        """Return the handles' addresses with the index of their GPU, and the return code of each GPU's registration."""
        nvml = self._nvml
        indices: dict[int, int] = {}
        codes: list[int] = []
        for index in range(self._count):
            if index in excluded:
                codes.append(UNKNOWN)
                continue
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                types = nvml.nvmlDeviceGetSupportedEventTypes(handle) & EVENT_TYPES
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
                raise _InvalidSetError(index) from None
            return int(error.value)
        return 0

    def _wait(self, events: Any, indices: dict[int, int]) -> None:
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except nvml.NVMLError as error:
            if error.value == TIMEOUT:
                return
            raise
        index = indices.get(_address(event.device), -1)
        self._put(
            DriverEventRecord(
                index, event.eventType, event.eventData, event.gpuInstanceId, event.computeInstanceId, time.time_ns()
            )
        )


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


UNBIND, BIND = 0x1, 0x2
"""nvmlSystemEventTypeGpuDriverUnbind and nvmlSystemEventTypeGpuDriverBind (nvml.h)."""

SYSTEM_WAIT_MS = 500
SYSTEM_RETRY_SECONDS = 60.0
MAX_SYSTEM_EVENTS = 16


class _SetRequest(ctypes.Structure):
    """nvmlSystemEventSetCreateRequest_v1_t, and nvmlSystemEventSetFreeRequest_v1_t."""

    _fields_ = (("version", ctypes.c_uint), ("set", ctypes.c_void_p))


class _RegisterRequest(ctypes.Structure):
    """nvmlSystemRegisterEventRequest_v1_t."""

    _fields_ = (("version", ctypes.c_uint), ("types", ctypes.c_ulonglong), ("set", ctypes.c_void_p))


class _SystemEventData(ctypes.Structure):
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


class SystemEventListener:
    """Thread that waits for GPUs that a kernel driver binds or unbinds. Started by the first `watch`."""

    def __init__(self, put: Callable[[Record], None]) -> None:
        """Create it.

        Args:
            put: sends a record to the parent.
        """
        self._put = put
        self._library: Any = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, nvml: Any) -> None:
        """Start the thread; does nothing if it is running."""
        if self._thread is None:
            self._library = nvml.nvmlLib
            self._thread = threading.Thread(target=self._run, name="system-events", daemon=True)
            self._thread.start()

    def stop(self) -> bool:
        """Stop the thread; return whether it has left the driver."""
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(4 * SYSTEM_WAIT_MS / 1000)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            request = _SetRequest(_version(_SetRequest))
            code = self._call("nvmlSystemEventSetCreate", request)
            if code == 0:
                code = self._listen(request.set)
                self._call("nvmlSystemEventSetFree", request)
            if code in PERMANENT_CODES:
                return
            self._stopping.wait(SYSTEM_RETRY_SECONDS)

    def _listen(self, events: int) -> int:
        """Forward events until the thread is stopped or a call fails; return that call's code."""
        code = self._call(
            "nvmlSystemRegisterEvents", _RegisterRequest(_version(_RegisterRequest), UNBIND | BIND, events)
        )
        buffer = (_SystemEventData * MAX_SYSTEM_EVENTS)()
        while code in (0, TIMEOUT) and not self._stopping.is_set():
            wait = _WaitRequest(
                _version(_WaitRequest), SYSTEM_WAIT_MS, events, ctypes.addressof(buffer), MAX_SYSTEM_EVENTS, 0
            )
            code = self._call("nvmlSystemEventSetWait", wait)
            for event in buffer[: min(wait.count, MAX_SYSTEM_EVENTS)] if code == 0 else ():
                self._put(BindingRecord(event.type, event.gpu, time.time_ns()))
        return code

    def _call(self, name: str, request: ctypes.Structure) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return FUNCTION_NOT_FOUND
        return int(function(ctypes.byref(request)))


def _version(request: type[ctypes.Structure]) -> int:
    """Return NVML's identifier of version 1 of a struct: the version in the highest byte, and the struct's size."""
    return 1 << 24 | ctypes.sizeof(request)
