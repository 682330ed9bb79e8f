"""Watchdog of the child process: starts it, requests rounds, and replaces it when it hangs. Never two children at once.

A child that hangs as a whole gets SIGTERM, then one SIGKILL, and is never waited for. No other child is started while
it lives: it would hang in the same driver.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpufleet.readers.nvml.fetch import MAX_EVENTS, Child, ChildEndedError
from gpufleet.readers.nvml.listeners import UNBIND
from gpufleet.readers.nvml.protocol import (
    AttachedRecord,
    BusyRecord,
    DriverEventRecord,
    GpuPassRecord,
    Record,
    Request,
    SessionRecord,
)

log = logging.getLogger(__name__)

SESSION_CODES = frozenset({1, 9, 18, 28})
"""UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH, GPU_NOT_FOUND: NVML needs a new process."""


class NvmlLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of the NVML reader, in seconds.

    Attributes:
        call: for all devices of one round; a device that does not answer in time is `hung` in this round.
        init: for the start of NVML; the first opening of a GPU without persistence mode takes seconds.
        hang: until a child that hangs as a whole is ended (one RPC to the GPU's firmware times out at 45 s).
        grace: between SIGTERM and SIGKILL.
        retry: until a failed start is repeated; doubles up to `max_retry`.
        unbinding: after a GPU's unbinding, until devices are opened again.
        end: until a child exits after its input closed, even if the driver hangs.
    """

    call: float = 5.0
    init: float = 30.0
    hang: float = 60.0
    grace: float = 5.0
    retry: float = 1.0
    max_retry: float = 30.0
    unbinding: float = 3.0
    end: float = 10.0


class RoundFailedError(Exception):
    """A round failed as a whole. The reader converts it to a ReaderError.

    Attributes:
        record: the session's record with the driver's code, or None (the child died or hangs).
        hung: the driver does not answer.
        at: nanoseconds since 1970.
        began: when the attempt that failed began, in monotonic seconds; None for the current request.
    """

    def __init__(self, message: str, *, record: SessionRecord | None = None, hung: bool = False) -> None:
        self.record = record
        self.hung = hung
        self.at = time.time_ns()
        self.began: float | None = None
        super().__init__(message)


class RoundAnswers(msgspec.Struct, kw_only=True):
    """Answers of one round, filled while it runs.

    Attributes:
        session: state of NVML as a whole.
        devices: index to the device's answer.
        hung: index to the name of the call in which the device hangs.
        identities: index to identity, for every device attached in this child.
        ended_at: nanoseconds since 1970 when the wait ended; the time of missing answers.
    """

    session: SessionRecord
    devices: dict[int, GpuPassRecord] = {}
    hung: dict[int, str] = {}
    identities: dict[int, AttachedRecord] = {}
    ended_at: int = 0


class ChildWatchdog:
    """Owner of the child process."""

    def __init__(self, limits: NvmlLimits, environment: Mapping[str, str] | None, root: Path) -> None:
        self._limits, self._environment, self._root = limits, environment, root
        self._child: Child | None = None
        self._round = 0
        self._identities: dict[int, AttachedRecord] = {}
        self._session_since: float | None = None  # set while a request awaits its session record
        self._open: RoundAnswers | None = None  # a round that awaits answers of devices
        self._open_until = 0.0
        self._started = False  # the child's NVML was initialised
        self._events: list[tuple[DriverEventRecord, AttachedRecord | None]] = []
        self._hung_since: float | None = None
        self._stopping = False  # its input is closed: it should exit by itself
        self._terminated_at: float | None = None  # time of SIGTERM
        self._killed = False
        self._failure: RoundFailedError | None = None
        self._failures = 0
        self._retry_at = 0.0

    @property
    def child(self) -> Child | None:
        """Return the current process, also if it hangs."""
        return self._child

    async def request(self, lane: str) -> RoundAnswers:
        """Request one round.

        Raises:
            RoundFailedError: if the round fails as a whole.
        """
        began = time.monotonic()
        child = await self._ready_child()
        try:
            await self._finish(child)
            self._round += 1
            child.send(Request(self._round, lane))
            self._session_since = time.monotonic()
            await self._await_session(child)
            answers = await self._collect(child)
        except ChildEndedError as error:
            await self._retire(child)
            raise self._store_failure(RoundFailedError(str(error)), began) from None
        except RoundFailedError as failure:
            if not failure.hung:
                await self._retire(child)
                self._store_failure(failure, began)
            raise
        self._failures = 0
        self._check_hang(child, answers)
        if not answers.hung and any(record.code in SESSION_CODES for record in answers.devices.values()):
            await self._retire(child)
        return answers

    def take_events(self) -> list[tuple[DriverEventRecord, AttachedRecord | None]]:
        """Return the driver's events since the last call, each with the identity of its device; never waits."""
        if self._child is not None:
            self._take_from(self._child)
        taken, self._events = self._events, []
        return taken

    def registration(self, index: int) -> int | None:
        """Return the return code of a GPU's registration for events, or None before the first attempt."""
        codes = self._child.registrations if self._child is not None else ()
        return codes[index] if index < len(codes) else None

    async def release_after_binding(self) -> None:
        """End the child, and so release all devices, if the kernel binds or unbinds a GPU.

        The kernel blocks the unbinding until the device is closed, and NVML does not list a GPU that was bound later.
        After an unbinding no other child is started for `unbinding` seconds: it would open the device again.
        """
        child = self._child
        if child is None or not child.binding or self._hung_since is not None or self._terminated_at is not None:
            return
        kinds = set(child.binding)
        child.binding.clear()
        await self._retire(child)
        if UNBIND in kinds:
            self._failure = RoundFailedError(
                "a GPU is being unbound from its driver: all devices are released for a moment"
            )
            self._failure.began = time.monotonic()
            self._retry_at = self._failure.began + self._limits.unbinding

    async def renew(self) -> None:
        """End the child if it answers, so that the next round starts NVML again."""
        if self._child is not None and self._hung_since is None and self._terminated_at is None:
            await self._retire(self._child)

    async def close(self) -> None:
        """End the child: close its input, then SIGTERM, then SIGKILL.

        Raises:
            RoundFailedError: if the process survives. It remains the current child, and no other is started.
        """
        child = self._child
        if child is None:
            return
        child.stop()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if await child.wait_end(self._limits.grace):
                break
            child.signal(number)
        else:
            if not await child.wait_end(self._limits.grace):
                self._terminated_at, self._killed = time.monotonic(), True
                raise RoundFailedError(
                    f"the NVML process {child.pid} cannot be ended and still holds the devices", hung=True
                )
        self._drop()

    async def _ready_child(self) -> Child:
        """Return a child that accepts requests; start one if there is none and the next start is due."""
        if self._child is not None and self._stopping:
            await self._retire(self._child)
        child = self._child
        if child is not None and not child.alive:
            if self._terminated_at is not None:
                self._store_failure(RoundFailedError(self._hung_text(child), hung=True), self._terminated_at)
            else:
                log.warning("%s", child.describe_end())
            self._drop()
        elif child is not None and self._terminated_at is not None:
            self._terminate(child)
            raise RoundFailedError(self._hung_text(child), hung=True)
        elif child is not None:
            return child
        if self._failure is not None and time.monotonic() < self._retry_at:
            raise self._failure.with_traceback(None)
        try:
            self._child = Child(self._environment, self._root, self._limits.end)
        except OSError as error:
            failure = RoundFailedError(f"the NVML process cannot be started: {error}")
            raise self._store_failure(failure, time.monotonic()) from error
        return self._child

    async def _finish(self, child: Child) -> None:
        """Wait for an abandoned round: in the next one its threads would appear to hang."""
        if self._session_since is not None:
            await self._await_session(child)
        if self._open is not None:
            await self._collect(child)

    async def _await_session(self, child: Child) -> None:
        """Wait for the session record of the pending request; the devices' records follow."""
        assert self._session_since is not None
        limit = self._limits.call if self._started else self._limits.init
        left = self._session_since + limit - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.01)):
                while not isinstance(record := await self._receive(child), SessionRecord):
                    pass
        except TimeoutError:
            self._end_if_overdue(child, self._session_since)
            raise RoundFailedError(self._hung_text(child), hung=True) from None
        self._session_since = None
        if record.code:
            raise RoundFailedError(record.message, record=record)
        self._started = True
        self._open, self._open_until = RoundAnswers(session=record), time.monotonic() + self._limits.call

    async def _collect(self, child: Child) -> RoundAnswers:
        """Wait for the devices of the open round, until its deadline."""
        answers = self._open
        assert answers is not None
        count, round_ = answers.session.count, answers.session.round
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._open_until - time.monotonic(), 0)):
                while len(answers.devices) + len(answers.hung) < count:
                    record = await self._receive(child)
                    if isinstance(record, GpuPassRecord) and record.round == round_:
                        answers.devices[record.index] = record
                    elif isinstance(record, BusyRecord) and record.round == round_:
                        answers.hung[record.index] = child.label_of(record.index + 1)
        self._open = None
        for index in range(count):
            if index not in answers.devices:
                answers.hung[index] = child.label_of(index + 1)
        answers.identities = {index: known for index, known in self._identities.items() if index < count}
        answers.ended_at = time.time_ns()
        return answers

    async def _receive(self, child: Child) -> Record:
        record = await child.receive()
        if isinstance(record, AttachedRecord):
            self._identities[record.index] = record
        return record

    def _check_hang(self, child: Child, answers: RoundAnswers) -> None:
        if not answers.hung or answers.devices:
            self._hung_since = None
            return
        if self._hung_since is None:
            self._hung_since = time.monotonic()
        self._end_if_overdue(child, self._hung_since)

    def _end_if_overdue(self, child: Child, since: float) -> None:
        if time.monotonic() - since >= self._limits.hang:
            self._terminate(child)

    def _terminate(self, child: Child) -> None:
        """End a hanging child: SIGTERM first, one SIGKILL after the grace period."""
        now = time.monotonic()
        if self._terminated_at is None:
            self._terminated_at = now
            log.warning("the NVML process %d hangs in %s: sending SIGTERM", child.pid, child.describe_position())
            child.signal(signal.SIGTERM)
        elif not self._killed and now - self._terminated_at >= self._limits.grace:
            self._killed = True
            log.warning("the NVML process %d does not end on SIGTERM: sending SIGKILL", child.pid)
            child.signal(signal.SIGKILL)

    async def _retire(self, child: Child) -> None:
        """End a child that answers, so that the next one maps the library again."""
        self._stopping = True
        child.stop()
        if await child.wait_end(self._limits.grace):
            self._drop()
        else:
            self._stopping = False
            self._terminate(child)

    def _drop(self) -> None:
        """Release the child and reset all state about it."""
        if self._child is not None:
            self._take_from(self._child)
            self._child.release()
        self._child = None
        self._identities = {}
        self._session_since = self._hung_since = self._terminated_at = None
        self._open = None
        self._started = self._killed = self._stopping = False

    def _take_from(self, child: Child) -> None:
        left = MAX_EVENTS - len(self._events)
        while child.events and left > 0:
            record, left = child.events.popleft(), left - 1
            self._events.append((record, self._identities.get(record.index)))

    def _store_failure(self, failure: RoundFailedError, began: float) -> RoundFailedError:
        """Store the failure of an attempt; it is raised until the next start is due."""
        failure.began = began
        wait = min(self._limits.retry * 2**self._failures, self._limits.max_retry)
        self._failures = min(self._failures + 1, 30)
        self._failure, self._retry_at = failure, time.monotonic() + wait
        return failure

    def _hung_text(self, child: Child) -> str:
        message = f"the driver does not answer: hung in {child.describe_position()}"
        if self._killed:
            return f"{message}; process {child.pid} cannot be ended, no other is started beside it"
        return message
