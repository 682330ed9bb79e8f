"""The process that talks to the driver: `python -m gpufleet.readers.nvml.child CRUMBS_FD CONTROL_DEVICE`.

It can hang or die in the driver without harm to its parent. Requests come on standard input, records leave on
standard output; before every call its number is left in shared memory, so that the parent can name the call
that does not come back. Three kinds of threads: the main one watches, others (`crew`) take the requests and ask the
driver, two listen for events. The end of standard input ends the process, whoever hangs, so that nothing is held for
a parent that was killed.
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
from gpufleet.readers.nvml.context import Context, Memory
from gpufleet.readers.nvml.listeners import Listener, SystemListener
from gpufleet.readers.nvml.pool import PATIENCE, Alarm, Crew, Job, Outlet
from gpufleet.readers.nvml.protocol import (
    DEFECT,
    SESSION_SLOT,
    SLOTS,
    Answer,
    BusyRecord,
    Request,
    SessionRecord,
    decode_request,
)
from gpufleet.readers.nvml.worker import Worker, words_of
from gpufleet.runtime import give_back_memory

UNKNOWN = 999

END_SECONDS = 10.0
"""So long the process takes at most to give everything back once its parent is gone; it ends whatever hangs."""


def version_of(text: Any) -> tuple[int, ...]:
    """Return the numbers of a driver version such as `580.159.04`, up to what is no number; empty for none."""
    numbers: list[int] = []
    for part in str(text or "").split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


class Session:
    """NVML as a whole: started once, then asked for its devices in every round."""

    def __init__(self, requests: BinaryIO, crumbs: memoryview, outlet: Outlet, control_device: str) -> None:
        self._requests, self._crumbs, self._outlet = requests, crumbs, outlet
        self._control_device = control_device
        self._nvml: Any = None
        self._versions = (Answer(0), Answer(0), Answer(0))
        self._workers: list[Worker] = []
        self._listener = Listener(outlet.put)
        self._system = SystemListener(outlet.put)
        self._lock = threading.Lock()
        self._working = self._ending = False

    def lead(self) -> list[Job] | None:
        """Wait for a request and answer for NVML as a whole; return what is left to do, None after the last."""
        length = self._requests.read(4)
        if len(length) < 4:
            return None
        request = decode_request(self._requests.read(int.from_bytes(length, "little")))
        with self._lock:
            if self._ending:
                return None
            self._working = True
        record = self._round(request)
        self._mark(calls.NOTHING)
        self._outlet.hold()  # only now: what the driver tells by itself must not wait for a call that hangs
        self._outlet.put(record)
        jobs = self._jobs(request, record.count) if record.code == 0 else []
        self._working = False
        return jobs

    def end(self) -> None:
        """Shut NVML down, unless somebody is inside it."""
        with self._lock:
            self._ending = True
        out = all([self._listener.stop(), self._system.stop()])
        if not out or self._nvml is None or self._working or any(worker.busy for worker in self._workers):
            return
        with contextlib.suppress(self._nvml.NVMLError):
            for worker in self._workers:
                worker.end()
            self._mark(calls.SHUTDOWN)
            self._nvml.nvmlShutdown()

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
                give_back_memory()  # what importing the binding took
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
        system = tuple([self._ask(call) for call in calls.SYSTEM_CALLS]) if request.lane == "static" else ()
        return SessionRecord(request.round, 0, "", 0, "", count, *self._versions, time.time_ns(), system)

    def _ask(self, call: Call) -> Answer:
        """Ask what a driver may not have; what fails is told, and asked again in the next static round."""
        number = NUMBERS[call.key]
        self._crumbs[SESSION_SLOT] = number
        driver = version_of(self._versions[0].value)
        try:
            return Answer(0, call.functions[0].ask(Context(self._nvml, None, driver, self._mark, Memory())), number)
        except self._nvml.NVMLError as error:
            return Answer(error.value, None, number)
        except Exception as error:  # noqa: BLE001 - a defect in one call must not look like a hung driver
            return Answer(DEFECT, type(error).__name__, number)

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

    def _jobs(self, request: Request, count: int) -> list[Job]:
        """Return what asks the devices, but those that are still inside a call."""
        self._listener.watch(self._nvml, count, anew=request.lane == "static")
        self._system.watch(self._nvml)
        driver = version_of(self._versions[0].value)
        for index in range(len(self._workers), count):
            self._workers.append(Worker(self._nvml, index, driver, self._crumbs, self._outlet))
        jobs: list[Job] = []
        for index, worker in enumerate(self._workers[:count]):
            if worker.busy:
                self._outlet.put(BusyRecord(request.round, index))
            else:
                worker.busy = True
                jobs.append(functools.partial(worker.ask, request))
        return jobs

    def _mark(self, label: str) -> None:
        self._crumbs[SESSION_SLOT] = NUMBERS[label]


def main(arguments: list[str]) -> None:
    """Serve requests until standard input ends."""
    crumbs = memoryview(mmap.mmap(int(arguments[0]), SLOTS * 4)).cast("I")
    outlet, alarm = Outlet(os.dup(1)), Alarm(PATIENCE)
    os.dup2(2, 1)  # what a library prints must not get between the records
    session = Session(sys.stdin.buffer, crumbs, outlet, arguments[1])
    crew = Crew(session.lead, outlet, alarm)
    crew.start()
    watched = select.poll()
    watched.register(alarm.descriptor, select.POLLIN)
    watched.register(0, 0)  # requests are another thread's: only that their writer is gone is heard of
    while 0 not in dict(watched.poll()):
        alarm.hear()
        crew.look()
    last = threading.Timer(END_SECONDS, os._exit, (1,))  # giving everything back can hang, too: nobody would end it
    last.daemon = True
    last.start()
    session.end()
    os._exit(0)  # a thread may hang in the driver: an orderly end would wait for it


if __name__ == "__main__":
    main(sys.argv[1:])
