"""In the child process: one GPU and its thread."""

import contextlib
import ctypes
import os
import queue
import threading
import time
from typing import Any

from gpufleet.readers.nvml import calls
from gpufleet.readers.nvml.calls import CALLS, MIG_MODE, NUMBERS, VIRTUALIZATION_MODE, Call
from gpufleet.readers.nvml.context import DEPRECATED, FUNCTION_NOT_FOUND, NOT_SUPPORTED, VERSION_MISMATCH, Context
from gpufleet.readers.nvml.protocol import (
    DEFECT,
    Answer,
    AttachedRecord,
    DeviceRecord,
    Record,
    Request,
    encode_frame,
)

UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, GPU_NOT_FOUND = 1, 9, 15, 16, 18, 28
LIBRARY_NOT_FOUND = 12

ENDS_DEVICE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, GPU_NOT_FOUND})
"""Codes after which nothing more is asked of a device in this pass."""

LASTING = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, DEPRECATED, VERSION_MISMATCH})
"""Codes that stay true until the device is attached again: the call is not repeated."""


class DeviceEndedError(Exception):
    """The pass over this device is over; carries the code and the number of the call."""

    def __init__(self, code: int, asked: int) -> None:
        self.code = code
        self.asked = asked
        super().__init__(code)


class Outlet:
    """Where records leave, one at a time whoever writes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def put(self, record: Record) -> None:
        """Write one record. The parent's end ends the process."""
        frame = memoryview(encode_frame(record))
        with self._lock:
            try:
                while frame:
                    frame = frame[os.write(self._descriptor, frame) :]
            except BrokenPipeError:
                os._exit(0)


def words_of(nvml: Any, code: int) -> str:
    """Return the driver's words for a code; the binding's where the library has no say."""
    if code == LIBRARY_NOT_FOUND:
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            return f"NVML Shared Library Not Found: {error}"
    with contextlib.suppress(nvml.NVMLError, UnicodeDecodeError):
        text = nvml.nvmlErrorString(code)
        return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return str(nvml.NVMLError(code))


class Worker:
    """One GPU: its thread, its handle, and what this driver does not offer for it."""

    def __init__(self, nvml: Any, index: int, driver: int, crumbs: memoryview, outlet: Outlet) -> None:
        self._nvml, self._index, self._driver, self._outlet = nvml, index, driver, outlet
        self._crumbs, self._slot = crumbs, index + 1
        self._handle: Any = None
        self._mig: Answer | None = None
        self._virtualization = Answer(0)
        self._lasting: dict[str, Answer] = {}
        self._rounds: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.busy = False
        threading.Thread(target=self._run, name=f"gpu-{index}", daemon=True).start()

    def give(self, request: Request) -> None:
        """Start a round; only while not `busy`."""
        self.busy = True
        self._rounds.put(request)

    def _run(self) -> None:
        while True:
            request = self._rounds.get()
            try:
                record = self._round(request)
            except DeviceEndedError as end:
                self._handle = None
                words = words_of(self._nvml, end.code)
                record = DeviceRecord(request.round, self._index, time.time_ns(), end.code, words, end.asked)
            self._mark(calls.NOTHING)
            self.busy = False
            self._outlet.put(record)

    def _round(self, request: Request) -> DeviceRecord:
        if self._handle is None or request.lane == "static":
            self._attach()
        mig = self._ask(MIG_MODE)
        if self._mig is not None and mig != self._mig:
            self._lasting.clear()
        self._mig = mig
        answers = tuple([self._ask(call) for call in CALLS[request.lane]])
        now = time.time_ns()
        return DeviceRecord(request.round, self._index, now, 0, "", 0, mig, self._virtualization, answers)

    def _attach(self) -> None:
        """Take a fresh handle, and say which device stands behind the index."""
        nvml = self._nvml
        self._handle = self._identify(calls.HANDLE, lambda: nvml.nvmlDeviceGetHandleByIndex(self._index), must=True)
        pci = self._identify(calls.PCI_INFO, lambda: nvml.nvmlDeviceGetPciInfo_v3(self._handle).busId)
        uuid = self._identify(calls.UUID, lambda: nvml.nvmlDeviceGetUUID(self._handle))
        self._outlet.put(AttachedRecord(self._index, _text(uuid), _text(pci)))
        self._lasting.clear()
        self._mig = None
        self._virtualization = self._ask(VIRTUALIZATION_MODE)

    def _identify(self, label: str, ask: Any, *, must: bool = False) -> Any:
        self._mark(label)
        try:
            return ask()
        except self._nvml.NVMLError as error:
            if must or error.value in ENDS_DEVICE:
                raise DeviceEndedError(error.value, NUMBERS[label]) from None
        except UnicodeDecodeError:
            pass  # an identity that is no text is none
        return None

    def _ask(self, call: Call) -> Answer:
        known = self._lasting.get(call.key)
        if known is not None:
            return known
        context = Context(self._nvml, self._handle, self._driver, self._mark)
        answer = Answer(FUNCTION_NOT_FOUND)
        for function in call.functions:
            self._mark(function.label)
            asked = NUMBERS[function.label]
            try:
                return Answer(0, function.ask(context), asked)
            except self._nvml.NVMLError as error:
                answer = Answer(error.value, None, asked)
            except Exception as error:  # noqa: BLE001 - a defect in one call must not look like a hung driver
                return Answer(DEFECT, type(error).__name__, asked)
            if answer.code in ENDS_DEVICE:
                raise DeviceEndedError(answer.code, asked)
            if answer.code not in LASTING:
                return answer
        self._lasting[call.key] = answer
        return answer

    def _mark(self, label: str) -> None:
        self._crumbs[self._slot] = NUMBERS[label]


def _text(text: Any) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text or "")
