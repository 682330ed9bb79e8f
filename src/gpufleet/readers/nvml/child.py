"""Child process that calls the driver.

    python -m gpufleet.readers.nvml.child BREADCRUMBS_FD CONTROL_DEVICE END_SECONDS

It can hang or crash in the driver without affecting its parent. Requests arrive on standard input, records leave on
standard output. Before each call its number is stored in shared memory (a breadcrumb), so that the parent can name the
call that hangs. The main thread supervises, the threads of `pool` take requests and query the driver, and two threads
wait for events. The end of standard input ends the process even if a thread hangs, so no device is held for a parent
that was killed.
"""

import contextlib
import functools
import mmap
import os
import select
import sys
import threading
import time
from typing import Any, BinaryIO

from gpufleet.readers.nvml import calls
from gpufleet.readers.nvml.calls import NUMBERS, Call
from gpufleet.readers.nvml.context import UNKNOWN, Context, DeviceCache
from gpufleet.readers.nvml.listeners import EventListener, SystemEventListener
from gpufleet.readers.nvml.pool import PATIENCE, Alarm, Job, RecordWriter, WorkerPool
from gpufleet.readers.nvml.protocol import (
    DEFECT,
    SESSION_SLOT,
    SLOTS,
    BusyRecord,
    CallResult,
    Request,
    SessionRecord,
    decode_request,
)
from gpufleet.readers.nvml.worker import GpuWorker, error_text
from gpufleet.runtime import trim_memory


def parse_version(text: Any) -> tuple[int, ...]:
    """Return the leading numbers of a driver version such as `580.159.04`; empty without a version."""
    numbers: list[int] = []
    for part in str(text or "").split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


class NvmlSession:
    """NVML as a whole: initialised once, then queried for its devices in every round."""

    def __init__(self, requests: BinaryIO, breadcrumbs: memoryview, writer: RecordWriter, control_device: str) -> None:
        self._requests, self._breadcrumbs, self._writer = requests, breadcrumbs, writer
        self._control_device = control_device
        self._nvml: Any = None
        self._versions = (CallResult(0), CallResult(0), CallResult(0))
        self._workers: list[GpuWorker] = []
        self._listener = EventListener(writer.put)
        self._system_listener = SystemEventListener(writer.put)
        self._lock = threading.Lock()
        self._working = self._ending = False

    def lead(self) -> list[Job] | None:
        """Wait for a request and answer it for NVML as a whole; return the devices' jobs, None after the last."""
        length = self._requests.read(4)
        if len(length) < 4:
            return None
        request = decode_request(self._requests.read(int.from_bytes(length, "little")))
        with self._lock:
            if self._ending:
                return None
            self._working = True
        record = self._query_session(request)
        self._mark(calls.IDLE)
        self._writer.hold()  # only now: events of the driver must not wait for a call that hangs
        self._writer.put(record)
        jobs = self._jobs(request, record.count) if record.code == 0 else []
        self._working = False
        return jobs

    def end(self) -> None:
        """Shut NVML down, unless a thread is inside a call."""
        with self._lock:
            self._ending = True
        stopped = all([self._listener.stop(), self._system_listener.stop()])
        if not stopped or self._nvml is None or self._working or any(worker.busy for worker in self._workers):
            return
        with contextlib.suppress(self._nvml.NVMLError):
            for worker in self._workers:
                worker.end()
            self._mark(calls.SHUTDOWN)
            self._nvml.nvmlShutdown()

    def _query_session(self, request: Request) -> SessionRecord:
        try:
            import pynvml
        except ImportError as error:
            message = f"the Python package nvidia-ml-py cannot be imported ({error}): install gpufleet[agent]"
            return SessionRecord(request.round, DEFECT, message, measured_at=time.time_ns())
        try:
            if self._nvml is None:
                self._mark(calls.INIT)
                pynvml.nvmlInitWithFlags(0)
                self._nvml = pynvml
                trim_memory()  # freed after the import of the binding
            if self._versions[0].breadcrumb == 0 or request.lane == "static":
                self._versions = (
                    self._query_version(calls.DRIVER_VERSION, pynvml.nvmlSystemGetDriverVersion),
                    self._query_version(calls.LIBRARY_VERSION, pynvml.nvmlSystemGetNVMLVersion),
                    self._query_version(calls.CUDA_VERSION, pynvml.nvmlSystemGetCudaDriverVersion),
                )
            self._mark(calls.COUNT)
            count = min(pynvml.nvmlDeviceGetCount(), SLOTS - 1)
        except pynvml.NVMLError as error:
            breadcrumb = self._breadcrumbs[SESSION_SLOT]
            open_error = self._try_control_device() if error.value == UNKNOWN else ""
            message = error_text(pynvml, error.value)
            return SessionRecord(
                request.round, error.value, message, breadcrumb, open_error, measured_at=time.time_ns()
            )
        system = tuple([self._query(call) for call in calls.SYSTEM_CALLS]) if request.lane == "static" else ()
        return SessionRecord(request.round, 0, "", 0, "", count, *self._versions, time.time_ns(), system)

    def _query(self, call: Call) -> CallResult:
        """Make a call about NVML as a whole; a failed call is reported, and repeated in the next static round."""
        number = NUMBERS[call.key]
        self._breadcrumbs[SESSION_SLOT] = number
        context = Context(self._nvml, None, parse_version(self._versions[0].value), self._mark, DeviceCache())
        try:
            return CallResult(0, call.functions[0].query(context), number)
        except self._nvml.NVMLError as error:
            return CallResult(error.value, None, number)
        except Exception as error:  # noqa: BLE001 - a defect in one call must not look like a hung driver
            return CallResult(DEFECT, type(error).__name__, number)

    def _query_version(self, label: str, function: Any) -> CallResult:
        self._mark(label)
        try:
            return CallResult(0, function(), NUMBERS[label])
        except self._nvml.NVMLError as error:
            return CallResult(error.value, None, NUMBERS[label])
        except UnicodeDecodeError as error:
            return CallResult(DEFECT, type(error).__name__, NUMBERS[label])

    def _try_control_device(self) -> str:
        """Return the error of opening the driver's device file, a frequent cause of an unknown error at the start."""
        self._mark(calls.OPEN)
        try:
            os.close(os.open(self._control_device, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return f"/dev/nvidiactl: {error.strerror}"
        return ""

    def _jobs(self, request: Request, count: int) -> list[Job]:
        """Return the jobs of the devices, except those that are still inside a call."""
        self._listener.watch(self._nvml, count, retry_failed=request.lane == "static")
        self._system_listener.watch(self._nvml)
        driver = parse_version(self._versions[0].value)
        for index in range(len(self._workers), count):
            self._workers.append(GpuWorker(self._nvml, index, driver, self._breadcrumbs, self._writer))
        jobs: list[Job] = []
        for index, worker in enumerate(self._workers[:count]):
            if worker.busy:
                self._writer.put(BusyRecord(request.round, index))
            else:
                worker.busy = True
                jobs.append(functools.partial(worker.run, request))
        return jobs

    def _mark(self, label: str) -> None:
        self._breadcrumbs[SESSION_SLOT] = NUMBERS[label]


def main(arguments: list[str]) -> None:
    """Serve requests until standard input ends."""
    breadcrumbs = memoryview(mmap.mmap(int(arguments[0]), SLOTS * 4)).cast("I")
    writer, alarm = RecordWriter(os.dup(1)), Alarm(PATIENCE)
    os.dup2(2, 1)  # output of libraries must not get between the records
    session = NvmlSession(sys.stdin.buffer, breadcrumbs, writer, arguments[1])
    pool = WorkerPool(session.lead, writer, alarm)
    pool.start()
    watched = select.poll()
    watched.register(alarm.descriptor, select.POLLIN)
    watched.register(0, 0)  # another thread reads the requests: here only the end of their writer is noticed
    while 0 not in dict(watched.poll()):
        alarm.acknowledge()
        pool.check_progress()
    # The shutdown can hang, too, and no parent would end it.
    deadline = threading.Timer(float(arguments[2]), os._exit, (1,))
    deadline.daemon = True
    deadline.start()
    session.end()
    os._exit(0)  # a thread may hang in the driver: an orderly exit would wait for it


if __name__ == "__main__":
    main(sys.argv[1:])
