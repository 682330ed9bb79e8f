"""Keeps one child alive, asks it for rounds, and notices when it hangs: never two children at once.

A child that hangs as a whole is asked to end (SIGTERM), then killed once, and never waited for. While it lives,
no other is started: a second one would hang in the same driver.
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
    DeviceRecord,
    EventRecord,
    Record,
    Request,
    SessionRecord,
)

log = logging.getLogger(__name__)

SESSION_CODES = frozenset({1, 9, 18, 28})
"""UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH, GPU_NOT_FOUND: this process's NVML is of no use."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the reader is, in seconds.

    Attributes:
        call: for all devices of one round to answer; a device that does not is `hung` in this round.
        init: for NVML to start; the first opening of a GPU without persistence mode takes seconds.
        hang: after which a child that hangs as a whole is ended (one RPC to the GPU's firmware times out at 45 s).
        grace: between asking a child to end and killing it.
        retry: before a failed start is repeated; doubles up to `retry_most`.
        unbinding: after word that a GPU is unbound, before devices are opened again.
    """

    call: float = 5.0
    init: float = 30.0
    hang: float = 60.0
    grace: float = 5.0
    retry: float = 1.0
    retry_most: float = 30.0
    unbinding: float = 3.0


class Failed(Exception):  # noqa: N818 - not an error of its own: the reader makes one of it
    """No round: the session's record says why, or the words alone do (the child died or hangs)."""

    def __init__(self, words: str, *, record: SessionRecord | None = None, hung: bool = False) -> None:
        self.record = record
        self.hung = hung
        self.at = time.time_ns()
        super().__init__(words)


class Answers(msgspec.Struct, kw_only=True):
    """What came back of one round; fills while it runs.

    Attributes:
        session: of the whole.
        devices: index to what it answered.
        hung: index to the name of the call it did not come back from.
        identities: index to identity, for every device attached in this child.
        ended_at: nanoseconds since 1970 when the wait ended; the time of what did not come.
    """

    session: SessionRecord
    devices: dict[int, DeviceRecord] = {}
    hung: dict[int, str] = {}
    identities: dict[int, AttachedRecord] = {}
    ended_at: int = 0


class Watch:
    """Owns the child."""

    def __init__(self, limits: Limits, environment: Mapping[str, str] | None, root: Path) -> None:
        self._limits, self._environment, self._root = limits, environment, root
        self._child: Child | None = None
        self._round = 0
        self._identities: dict[int, AttachedRecord] = {}
        self._session_since: float | None = None  # a request is out whose session record has not come
        self._open: Answers | None = None  # a round whose devices are still coming
        self._open_until = 0.0
        self._started = False  # the child's NVML has come up once
        self._told: list[tuple[EventRecord, AttachedRecord | None]] = []
        self._hung_since: float | None = None
        self._stopping = False  # its input has ended: it should end by itself
        self._pressed_at: float | None = None  # it was sent SIGTERM
        self._killed = False
        self._failure: Failed | None = None
        self._failures = 0
        self._retry_at = 0.0

    @property
    def child(self) -> Child | None:
        """Return the process there is, hanging ones too."""
        return self._child

    async def ask(self, lane: str) -> Answers:
        """Make one round.

        Raises:
            Failed: if there is none to be had.
        """
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
            raise self._remember(Failed(str(error))) from None
        except Failed as failure:
            if not failure.hung:
                await self._retire(child)
                self._remember(failure)
            raise
        self._failures = 0
        self._judge_hang(child, answers)
        if not answers.hung and any(record.code in SESSION_CODES for record in answers.devices.values()):
            await self._retire(child)
        return answers

    def take_events(self) -> list[tuple[EventRecord, AttachedRecord | None]]:
        """Return what the driver told since the last call, each with the device that it is about; never waits."""
        if self._child is not None:
            self._take_from(self._child)
        taken, self._told = self._told, []
        return taken

    def watched(self, index: int) -> int | None:
        """Return the return code of a GPU's registration for events, or None while it was not tried."""
        codes = self._child.watched if self._child is not None else ()
        return codes[index] if index < len(codes) else None

    async def heed_binding(self) -> None:
        """Let go of every device where the kernel binds or unbinds one: that waits for us, and NVML lists no new one.

        After an unbinding no other child is started for `unbinding` seconds: it would take the device again.
        """
        child = self._child
        if child is None or not child.binding or self._hung_since is not None or self._pressed_at is not None:
            return
        kinds = set(child.binding)
        child.binding.clear()
        await self._retire(child)
        if UNBIND in kinds:
            self._failure = Failed("a GPU is being unbound from its driver: all are let go of for a moment")
            self._retry_at = time.monotonic() + self._limits.unbinding

    async def renew(self) -> None:
        """End the child if it answers, so that the next round starts NVML afresh."""
        if self._child is not None and self._hung_since is None and self._pressed_at is None:
            await self._retire(self._child)

    async def close(self) -> None:
        """End the child: by its input, then SIGTERM, then SIGKILL.

        Raises:
            Failed: if it outlives them. It is kept in mind, and no other is started beside it.
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
                self._pressed_at, self._killed = time.monotonic(), True
                raise Failed(f"the NVML process {child.pid} cannot be ended, it still holds the devices", hung=True)
        self._drop()

    async def _ready_child(self) -> Child:
        """Return a child that can be asked; start one if there is none and it is time for it."""
        if self._child is not None and self._stopping:
            await self._retire(self._child)
        child = self._child
        if child is not None and not child.alive:
            if self._pressed_at is not None:
                self._remember(Failed(self._hung_words(child), hung=True))
            else:
                log.warning("%s", child.how_it_ended())
            self._drop()
        elif child is not None and self._pressed_at is not None:
            self._press(child)
            raise Failed(self._hung_words(child), hung=True)
        elif child is not None:
            return child
        if self._failure is not None and time.monotonic() < self._retry_at:
            raise self._failure.with_traceback(None)
        try:
            self._child = Child(self._environment, self._root)
        except OSError as error:
            raise self._remember(Failed(f"the NVML process cannot be started: {error}")) from error
        return self._child

    async def _finish(self, child: Child) -> None:
        """Wait for a round whose caller gave up: its threads would look as if they hung in the next one."""
        if self._session_since is not None:
            await self._await_session(child)
        if self._open is not None:
            await self._collect(child)

    async def _await_session(self, child: Child) -> None:
        """Wait for the session's record of the request that is out; its devices' records follow."""
        assert self._session_since is not None
        limit = self._limits.call if self._started else self._limits.init
        left = self._session_since + limit - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.01)):
                while not isinstance(record := await self._receive(child), SessionRecord):
                    pass
        except TimeoutError:
            self._end_if_overdue(child, self._session_since)
            raise Failed(self._hung_words(child), hung=True) from None
        self._session_since = None
        if record.code:
            raise Failed(record.words, record=record)
        self._started = True
        self._open, self._open_until = Answers(session=record), time.monotonic() + self._limits.call

    async def _collect(self, child: Child) -> Answers:
        """Wait for the devices of the open round, until its deadline."""
        answers = self._open
        assert answers is not None
        count, round_ = answers.session.count, answers.session.round
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._open_until - time.monotonic(), 0)):
                while len(answers.devices) + len(answers.hung) < count:
                    record = await self._receive(child)
                    if isinstance(record, DeviceRecord) and record.round == round_:
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

    def _judge_hang(self, child: Child, answers: Answers) -> None:
        if not answers.hung or answers.devices:
            self._hung_since = None
            return
        if self._hung_since is None:
            self._hung_since = time.monotonic()
        self._end_if_overdue(child, self._hung_since)

    def _end_if_overdue(self, child: Child, since: float) -> None:
        if time.monotonic() - since >= self._limits.hang:
            self._press(child)

    def _press(self, child: Child) -> None:
        """Push a hanging child towards its end: SIGTERM first, after the grace SIGKILL, once."""
        now = time.monotonic()
        if self._pressed_at is None:
            self._pressed_at = now
            log.warning("the NVML process %d hangs in %s: ending it", child.pid, child.inside())
            child.signal(signal.SIGTERM)
        elif not self._killed and now - self._pressed_at >= self._limits.grace:
            self._killed = True
            log.warning("the NVML process %d does not end on SIGTERM: killing it", child.pid)
            child.signal(signal.SIGKILL)

    async def _retire(self, child: Child) -> None:
        """Let a child that answers go, so that the next one maps the library afresh."""
        self._stopping = True
        child.stop()
        if await child.wait_end(self._limits.grace):
            self._drop()
        else:
            self._stopping = False
            self._press(child)

    def _drop(self) -> None:
        """Forget the child there was."""
        if self._child is not None:
            self._take_from(self._child)
            self._child.release()
        self._child = None
        self._identities = {}
        self._session_since = self._hung_since = self._pressed_at = None
        self._open = None
        self._started = self._killed = self._stopping = False

    def _take_from(self, child: Child) -> None:
        room = MAX_EVENTS - len(self._told)
        while child.events and room > 0:
            record, room = child.events.popleft(), room - 1
            self._told.append((record, self._identities.get(record.index)))

    def _remember(self, failure: Failed) -> Failed:
        """Keep a failure: it is the answer until the next start is due."""
        wait = min(self._limits.retry * 2**self._failures, self._limits.retry_most)
        self._failures = min(self._failures + 1, 30)
        self._failure, self._retry_at = failure, time.monotonic() + wait
        return failure

    def _hung_words(self, child: Child) -> str:
        words = f"the driver does not answer: hung in {child.inside()}"
        if self._killed:
            return f"{words}; process {child.pid} cannot be ended, no other is started beside it"
        return words
