"""The process that talks to the driver: `python -m gpufleet.readers.nvml.child CRUMBS_FD CONTROL_DEVICE`.

It can hang or die in the driver without harm to its parent. Requests come on standard input, records leave on
standard output; before every call its number is left in shared memory, so that the parent can name the call
that does not come back. Three kinds of threads: the main one reads requests, one session thread talks to NVML
as a whole, one thread a GPU talks to that GPU. The end of standard input ends the process, whoever hangs.
"""

import contextlib
import ctypes
import mmap
import os
import queue
import sys
import threading
import time
from typing import Any

from gpufleet.readers.nvml import calls
from gpufleet.readers.nvml.calls import CALLS, MIG_MODE, NUMBERS, VIRTUALIZATION_MODE, Call, Context
from gpufleet.readers.nvml.protocol import (
    DEFECT,
    SESSION_SLOT,
    SLOTS,
    Answer,
    AttachedRecord,
    BusyRecord,
    DeviceRecord,
    Record,
    Request,
    SessionRecord,
    decode_request,
    encode_frame,
)

UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, GPU_NOT_FOUND = 1, 9, 15, 16, 18, 28
LIBRARY_NOT_FOUND, UNKNOWN = 12, 999

ENDS_DEVICE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, GPU_NOT_FOUND})
"""Codes after which nothing more is asked of a device in this pass."""

LASTING = frozenset({calls.NOT_SUPPORTED, calls.FUNCTION_NOT_FOUND, calls.DEPRECATED, calls.VERSION_MISMATCH})
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
    with contextlib.suppress(nvml.NVMLError):
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
        answer = Answer(calls.FUNCTION_NOT_FOUND)
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


def major_version(version: Any) -> int:
    """Return the branch of a driver version such as `580.159.04`, or 0."""
    major = str(version or "").partition(".")[0]
    return int(major) if major.isdecimal() else 0


class Session:
    """NVML as a whole: started once, then asked for its devices in every round."""

    def __init__(self, crumbs: memoryview, outlet: Outlet, control_device: str) -> None:
        self._crumbs, self._outlet, self._control_device = crumbs, outlet, control_device
        self._nvml: Any = None
        self._versions = (Answer(0), Answer(0), Answer(0))
        self._workers: list[Worker] = []
        self._rounds: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._working = False
        threading.Thread(target=self._run, name="session", daemon=True).start()

    def give(self, request: Request) -> None:
        """Queue a round."""
        self._rounds.put(request)

    def end(self) -> None:
        """Shut NVML down, unless somebody is inside it."""
        if self._nvml is None or self._working or any(worker.busy for worker in self._workers):
            return
        self._mark(calls.SHUTDOWN)
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _run(self) -> None:
        while True:
            request = self._rounds.get()
            self._working = True
            record = self._round(request)
            self._mark(calls.NOTHING)
            self._outlet.put(record)
            if record.code == 0:
                self._dispatch(request, record.count)
            self._working = False

    def _round(self, request: Request) -> SessionRecord:
        try:
            import pynvml
        except ImportError as error:
            words = f"the Python package nvidia-ml-py cannot be imported ({error}): install gpufleet[agent]"
            return SessionRecord(request.round, DEFECT, words, measured_at=time.time_ns())
        try:
            if self._nvml is None:
                self._mark(calls.INIT)
                pynvml.nvmlInitWithFlags(0)
                self._nvml = pynvml
            if self._versions[0].asked == 0 or request.lane == "static":
                self._versions = (
                    self._version(calls.DRIVER_VERSION, pynvml.nvmlSystemGetDriverVersion),
                    self._version(calls.LIBRARY_VERSION, pynvml.nvmlSystemGetNVMLVersion),
                    self._version(calls.CUDA_VERSION, pynvml.nvmlSystemGetCudaDriverVersion),
                )
            self._mark(calls.COUNT)
            count = min(pynvml.nvmlDeviceGetCount(), SLOTS - 1)
        except pynvml.NVMLError as error:
            asked = self._crumbs[SESSION_SLOT]
            refused = self._try_control_device() if error.value == UNKNOWN else ""
            words = words_of(pynvml, error.value)
            return SessionRecord(request.round, error.value, words, asked, refused, measured_at=time.time_ns())
        return SessionRecord(request.round, 0, "", 0, "", count, *self._versions, measured_at=time.time_ns())

    def _version(self, label: str, ask: Any) -> Answer:
        self._mark(label)
        try:
            return Answer(0, ask(), NUMBERS[label])
        except self._nvml.NVMLError as error:
            return Answer(error.value, None, NUMBERS[label])
        except UnicodeDecodeError as error:
            return Answer(DEFECT, type(error).__name__, NUMBERS[label])

    def _try_control_device(self) -> str:
        """Tell why the driver's device file cannot be opened: what an unknown error at the start often is."""
        self._mark(calls.OPEN)
        try:
            os.close(os.open(self._control_device, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return f"/dev/nvidiactl: {error.strerror}"
        return ""

    def _dispatch(self, request: Request, count: int) -> None:
        driver = major_version(self._versions[0].value)
        for index in range(len(self._workers), count):
            self._workers.append(Worker(self._nvml, index, driver, self._crumbs, self._outlet))
        for index, worker in enumerate(self._workers[:count]):
            if worker.busy:
                self._outlet.put(BusyRecord(request.round, index))
            else:
                worker.give(request)

    def _mark(self, label: str) -> None:
        self._crumbs[SESSION_SLOT] = NUMBERS[label]


def main(arguments: list[str]) -> None:
    """Serve requests until standard input ends."""
    crumbs = memoryview(mmap.mmap(int(arguments[0]), SLOTS * 4)).cast("I")
    outlet = Outlet(os.dup(1))
    os.dup2(2, 1)  # what a library prints must not get between the records
    session = Session(crumbs, outlet, arguments[1])
    requests = sys.stdin.buffer
    while len(length := requests.read(4)) == 4:
        session.give(decode_request(requests.read(int.from_bytes(length, "little"))))
    session.end()
    os._exit(0)  # a thread may hang in the driver: an orderly end would wait for it


if __name__ == "__main__":
    main(sys.argv[1:])
