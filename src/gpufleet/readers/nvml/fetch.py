"""Child process, seen from the parent: start, exchange of records, end. Nothing here waits for the driver."""

import asyncio
import contextlib
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpufleet.readers.nvml.calls import LABELS
from gpufleet.readers.nvml.protocol import (
    SESSION_SLOT,
    SLOTS,
    BindingRecord,
    DriverEventRecord,
    Frames,
    Record,
    RegistrationRecord,
    Request,
    encode_frame,
)

CHILD = (sys.executable, "-P", "-m", "gpufleet.readers.nvml.child")


class ChildEndedError(Exception):
    """The child has ended or violated the protocol; the text describes how."""


MAX_EVENTS = 10_000
"""Maximum queued events; the oldest are dropped beyond it. The kernel's log contains them, too."""


class Child:
    """Child process. Created and used on one running event loop.

    Attributes:
        events: queued events of the driver, oldest first.
        binding: queued kinds of binding events (a kernel driver binds or unbinds a GPU).
        registrations: return code of each GPU's registration for events, by index; empty before the first attempt.
    """

    def __init__(self, environment: Mapping[str, str] | None, root: Path, end_seconds: float) -> None:
        """Start the process.

        Args:
            environment: of the process, or None for this one's.
            root: of the file system that has the driver's control device.
            end_seconds: limit for the process to exit after its input closed, even if the driver hangs.

        Raises:
            OSError: if the process cannot be started.
        """
        self._frames = Frames()
        self._records: asyncio.Queue[Record | None] = asyncio.Queue()
        self.events: deque[DriverEventRecord] = deque(maxlen=MAX_EVENTS)
        self.binding: deque[int] = deque(maxlen=MAX_EVENTS)
        self.registrations: tuple[int, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        breadcrumbs_descriptor = _anonymous_file(SLOTS * 4)
        try:
            self._map = mmap.mmap(breadcrumbs_descriptor, SLOTS * 4)
            self._process = _spawn(breadcrumbs_descriptor, environment, root / "dev" / "nvidiactl", end_seconds)
        finally:
            os.close(breadcrumbs_descriptor)
        self._breadcrumbs = memoryview(self._map).cast("I")
        assert self._process.stdout is not None
        self._replies = self._process.stdout.fileno()
        os.set_blocking(self._replies, False)
        self._loop.add_reader(self._replies, self._on_readable)

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Return whether it is running; never waits."""
        return self._process.poll() is None

    def send(self, request: Request) -> None:
        """Send a request.

        Raises:
            ChildEndedError: if the process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode_frame(request))
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise ChildEndedError(self.describe_end()) from None

    async def receive(self) -> Record:
        """Wait for the next record, without a timeout.

        Raises:
            ChildEndedError: if the process ends or violates the protocol.
        """
        record = await self._records.get()
        if record is None:
            self._records.put_nowait(None)
            await self.wait_end(1.0)
            raise ChildEndedError(self.describe_end())
        return record

    def label_of(self, slot: int) -> str:
        """Return the name of the call that the thread of this slot last entered, or an empty text."""
        number = self._breadcrumbs[slot]
        return LABELS[number] if number < len(LABELS) else ""

    def describe_position(self) -> str:
        """Return the names of the calls that its threads are in, up to three, joined by `or`."""
        if self._breadcrumbs[SESSION_SLOT]:
            return self.label_of(SESSION_SLOT)
        names = dict.fromkeys(self.label_of(slot) for slot in range(1, SLOTS) if self._breadcrumbs[slot])
        return " or ".join(list(names)[:3]) or "no call"

    def describe_end(self) -> str:
        """Return a description of how the process ended."""
        code = self._process.poll()
        where = f" in {self.describe_position()}"
        if code is None:
            return f"the NVML process broke off{where}"
        if code < 0:
            return f"the NVML process died of {_signal_name(-code)}{where}"
        return f"the NVML process ended with exit code {code}{where}"

    def stop(self) -> None:
        """End its input; the process then shuts NVML down, unless a thread hangs, and exits."""
        if not self._stopping:
            self._stopping = True
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing if the process has ended."""
        self._process.send_signal(number)

    async def wait_end(self, seconds: float) -> bool:
        """Wait for the end of the process, with a timeout in seconds; return whether it has ended."""
        deadline = self._loop.time() + seconds
        while self.alive and self._loop.time() < deadline:  # noqa: ASYNC110 - a wait in the kernel could block permanently
            await asyncio.sleep(0.002)
        return not self.alive

    def release(self) -> None:
        """Close pipes and memory; a process that still hangs is abandoned."""
        self._loop.remove_reader(self._replies)
        self.stop()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._breadcrumbs.release()
        self._map.close()

    def _on_readable(self) -> None:
        try:
            data = os.read(self._replies, 1 << 16)
            records = self._frames.feed(data)
        except BlockingIOError:
            return
        except ValueError:
            data, records = b"", []
        for record in records:
            if isinstance(record, DriverEventRecord):
                self.events.append(record)
            elif isinstance(record, BindingRecord):
                self.binding.append(record.kind)
            elif isinstance(record, RegistrationRecord):
                self.registrations = record.codes
            else:
                self._records.put_nowait(record)
        if not data:
            self._loop.remove_reader(self._replies)
            self._records.put_nowait(None)


def _spawn(
    breadcrumbs: int, environment: Mapping[str, str] | None, control_device: Path, end_seconds: float
) -> subprocess.Popen[bytes]:
    """Start the process in its own session: the parent handles Ctrl-C at the terminal.

    The end of the parent, however it ends, closes the process's standard input, which ends the process.
    """
    command: Sequence[str] = (*CHILD, str(breadcrumbs), str(control_device), str(end_seconds))
    return subprocess.Popen(  # noqa: S603 - a fixed command
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=None if environment is None else dict(environment),
        pass_fds=(breadcrumbs,),
        start_new_session=True,
    )


def _anonymous_file(size: int) -> int:
    """Return the descriptor of an unnamed file: in memory on Linux, else on disk and already removed."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("gpufleet-nvml")
    else:
        descriptor, path = tempfile.mkstemp()
        Path(path).unlink()
    os.ftruncate(descriptor, size)
    return descriptor


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
