"""The parent's side of one child process: start it, talk to it, end it. Nothing here waits for the driver."""

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
    EventRecord,
    Frames,
    Record,
    Request,
    SystemEventRecord,
    WatchedRecord,
    encode_frame,
)

CHILD = (sys.executable, "-P", "-m", "gpufleet.readers.nvml.child")


class ChildEndedError(Exception):
    """The child is gone, or says what no child says; the text tells how."""


MAX_EVENTS = 10_000
"""Events that wait to be taken; beyond it the oldest are lost. The kernel's log has them too."""


class Child:
    """One child process. Made and used on one running event loop.

    Attributes:
        events: what the driver told, the oldest first, for whoever takes it.
        binding: kinds of what happened to the binding of GPUs to kernel drivers, for whoever takes them.
        watched: return code of each GPU's registration for events, by index; empty while it was not tried.
    """

    def __init__(self, environment: Mapping[str, str] | None, root: Path) -> None:
        """Start it.

        Raises:
            OSError: if the process cannot be started.
        """
        self._frames = Frames()
        self._records: asyncio.Queue[Record | None] = asyncio.Queue()
        self.events: deque[EventRecord] = deque(maxlen=MAX_EVENTS)
        self.binding: deque[int] = deque(maxlen=MAX_EVENTS)
        self.watched: tuple[int, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        crumbs_descriptor = _anonymous_file(SLOTS * 4)
        try:
            self._map = mmap.mmap(crumbs_descriptor, SLOTS * 4)
            self._process = _spawn(crumbs_descriptor, environment, root / "dev" / "nvidiactl")
        finally:
            os.close(crumbs_descriptor)
        self._crumbs = memoryview(self._map).cast("I")
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
        """Tell whether it still runs; never waits."""
        return self._process.poll() is None

    def send(self, request: Request) -> None:
        """Give it a request.

        Raises:
            ChildEndedError: if it is gone.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode_frame(request))
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise ChildEndedError(self.how_it_ended()) from None

    async def receive(self) -> Record:
        """Wait for its next record, without a limit of its own.

        Raises:
            ChildEndedError: if it ends, or breaks the protocol.
        """
        record = await self._records.get()
        if record is None:
            self._records.put_nowait(None)
            await self.wait_end(1.0)
            raise ChildEndedError(self.how_it_ended())
        return record

    def label_of(self, slot: int) -> str:
        """Return the name of the call that the thread of this slot entered last, or an empty text."""
        number = self._crumbs[slot]
        return LABELS[number] if number < len(LABELS) else ""

    def inside(self) -> str:
        """Return the calls that its threads entered last, for people: one name, or several with `or`."""
        if self._crumbs[SESSION_SLOT]:
            return self.label_of(SESSION_SLOT)
        names = dict.fromkeys(self.label_of(slot) for slot in range(1, SLOTS) if self._crumbs[slot])
        return " or ".join(list(names)[:3]) or "no call"

    def how_it_ended(self) -> str:
        """Return words for what became of it."""
        code = self._process.poll()
        where = f" in {self.inside()}"
        if code is None:
            return f"the NVML process broke off{where}"
        if code < 0:
            return f"the NVML process died of {_signal_name(-code)}{where}"
        return f"the NVML process ended with exit code {code}{where}"

    def stop(self) -> None:
        """Ask it to end by ending its input; it shuts NVML down unless a thread hangs."""
        if not self._stopping:
            self._stopping = True
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; does nothing when it is gone."""
        self._process.send_signal(number)

    async def wait_end(self, seconds: float) -> bool:
        """Wait until it is gone, at most so long; return whether it is."""
        deadline = self._loop.time() + seconds
        while self.alive and self._loop.time() < deadline:  # noqa: ASYNC110 - waiting in the kernel could be for ever
            await asyncio.sleep(0.002)
        return not self.alive

    def release(self) -> None:
        """Give back pipes and memory; the process itself, if it still hangs, is left behind."""
        self._loop.remove_reader(self._replies)
        self.stop()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._crumbs.release()
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
            if isinstance(record, EventRecord):
                self.events.append(record)
            elif isinstance(record, SystemEventRecord):
                self.binding.append(record.kind)
            elif isinstance(record, WatchedRecord):
                self.watched = record.codes
            else:
                self._records.put_nowait(record)
        if not data:
            self._loop.remove_reader(self._replies)
            self._records.put_nowait(None)


def _spawn(crumbs: int, environment: Mapping[str, str] | None, control_device: Path) -> subprocess.Popen[bytes]:
    """Start it in a session of its own: a Ctrl-C at the terminal is its parent's to handle.

    The end of the parent ends its standard input, and so the process, however the parent ends.
    """
    command: Sequence[str] = (*CHILD, str(crumbs), str(control_device))
    return subprocess.Popen(  # noqa: S603 - a fixed command
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=None if environment is None else dict(environment),
        pass_fds=(crumbs,),
        start_new_session=True,
    )


def _anonymous_file(size: int) -> int:
    """Return a descriptor of a file without a name: in memory on Linux, else on disk and already removed."""
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
