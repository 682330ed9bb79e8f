"""Access paths into a virtual machine, and a reader that fails over between them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gpufleet.agent.guests.validation import validate_round
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.model.reading import Round
from gpufleet.model.snapshot import AccessPathReport, AccessPathState
from gpufleet.model.text import clean
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader

ATTEMPT_SECONDS = 20.0
"""Time limit for opening a path's channel, and again for reading over it."""

MAX_ERROR_LENGTH = 500
"""Maximum characters of a guest's error message."""

MAX_FAILURES = 3
"""Consecutive failures of the active path before all paths are tried again."""


class Link(Protocol):
    """A channel to one virtual machine that is opened once and kept open."""

    async def open(self) -> None:
        """Open the channel if it is not open. Raises ChannelError."""
        ...

    async def close(self) -> None:
        """Close the channel. It can be opened again."""
        ...


class ShortConnectionReader:
    """A reader that is closed after each pass, because other clients use the same channel.

    It has no event lane, which would need a connection each second.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def name(self) -> str:
        """Name of the reader."""
        return self._reader.name

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Lanes of the reader, except events."""
        return tuple(lane for lane in self._reader.lanes if lane is not Lane.EVENT)

    async def read(self, lane: Lane) -> Round:
        """Make a pass and close the connection. Raises ReaderError."""
        try:
            return await self._reader.read(lane)
        finally:
            await self._reader.close()

    async def close(self) -> None:
        """Close the reader."""
        await self._reader.close()


class AccessPath(msgspec.Struct, frozen=True, kw_only=True):
    """A reader and the channel that it reads over.

    Attributes:
        name: channel and reader, for people.
        reader: the reader.
        link: the channel, or None if the reader dials by itself.
    """

    name: str
    reader: Reader
    link: Link | None = None


PROBLEM_REASONS = {
    ChannelProblem.NOT_UP: Reason.GUEST_BOOTING,
    ChannelProblem.AUTHENTICATION: Reason.GUEST_REFUSED,
    ChannelProblem.IDENTITY_MISMATCH: Reason.IDENTITY_MISMATCH,
    ChannelProblem.NOT_ENABLED: Reason.NOT_ENABLED,
    ChannelProblem.NOT_PERMITTED: Reason.NOT_PERMITTED,
    ChannelProblem.PROTOCOL: Reason.READER_FAILED,
    ChannelProblem.TOO_LARGE: Reason.READER_FAILED,
}
"""Channel problem to reason of absence; any other problem means `guest_unreachable`."""

REASON_PRECEDENCE = (
    Reason.IDENTITY_MISMATCH,
    Reason.DRIVER_MISMATCH,
    Reason.DRIVER_ERROR,
    Reason.NO_SUPPORTED_GPU,
    Reason.NO_DRIVER,
    Reason.NO_LIBRARY,
    Reason.INCOMPATIBLE_VERSION,
    Reason.TIMEOUT,
    Reason.GUEST_REFUSED,
    Reason.NOT_PERMITTED,
    Reason.READER_FAILED,
    Reason.NOT_ENABLED,
    Reason.GUEST_BOOTING,
    Reason.GUEST_UNREACHABLE,
)
"""Order in which failures of several paths are reported: a wrong peer, then the driver's errors, then transport
failures by how far the connection came.
"""

GUEST_ANSWERED_REASONS = frozenset(REASON_PRECEDENCE[1 : REASON_PRECEDENCE.index(Reason.TIMEOUT)])
"""Reasons that only an answer from inside the guest can give."""


class _OpenFailedError(ReaderError):
    """The channel of a path could not be opened."""


class FailoverReader:
    """A reader over several access paths.

    The first path that answers becomes the active path until it fails `MAX_FAILURES` times in a row.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[AccessPath],
        clock: Clock,
        *,
        requires_devices: bool,
        on_open: Callable[[], None],
        attempt_seconds: float = ATTEMPT_SECONDS,
        lanes: tuple[Lane, ...] = tuple(Lane),
    ) -> None:
        """Take the parts.

        Args:
            name: name in reader statuses.
            paths: access paths in order of preference.
            clock: wall and monotonic time.
            requires_devices: whether a pass without a device counts as a failure.
            on_open: called when a channel is open.
            attempt_seconds: time limit for opening a path's channel, and again for reading over it.
            lanes: lanes of the reader. A path whose reader lacks one gives an empty pass for it.
        """
        self._lanes = lanes
        self._name, self._paths, self._requires_devices, self._clock = name, tuple(paths), requires_devices, clock
        self._on_open, self._attempt_seconds = on_open, attempt_seconds
        self._chosen: AccessPath | None = None
        self._failures = 0
        self._reports: dict[str, AccessPathReport] = {}

    @property
    def name(self) -> str:
        """Name in reader statuses."""
        return self._name

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Lanes of the reader."""
        return self._lanes

    @property
    def chosen(self) -> str:
        """Name of the active path, or empty."""
        return self._chosen.name if self._chosen is not None else ""

    @property
    def reports(self) -> tuple[AccessPathReport, ...]:
        """Result of the last attempt on each path, in order of preference."""
        return tuple(
            self._reports.get(path.name, AccessPathReport(name=path.name, reads=self._name)) for path in self._paths
        )

    @property
    def pass_seconds(self) -> float:
        """Time limit of a pass: every path is opened and read once."""
        return 2 * self._attempt_seconds * len(self._paths) + 1

    async def read(self, lane: Lane) -> Round:
        """Make one pass over the active path, or over each path until one answers.

        Raises:
            ReaderError: if no path answers: the failure that is first in `REASON_PRECEDENCE`.
        """
        if lane is Lane.EVENT and (self._chosen is None or lane not in self._chosen.reader.lanes):
            return Round()  # events are read only over the active path; they start no search for one
        if self._chosen is not None:
            try:
                result = await self._attempt(self._chosen, lane)
            except ReaderError:
                self._failures += 1
                if self._failures >= MAX_FAILURES:
                    self._chosen, self._failures = None, 0
                raise
            self._failures = 0
            return result
        failures: list[ReaderError] = []
        closed: list[Link] = []  # a channel that does not open is not dialled again in this pass
        for path in self._paths:
            if any(path.link is link for link in closed):
                continue
            try:
                result = await self._attempt(path, lane)
            except _OpenFailedError as error:
                failures.append(error)
                closed += [path.link] if path.link is not None else []
            except ReaderError as error:
                failures.append(error)
            else:
                self._chosen = path
                return result
        try:
            raise min(failures, key=_rank)
        finally:
            failures.clear()  # breaks the reference cycle with this frame, which holds megabytes of data

    async def close(self) -> None:
        """Close the readers of all paths. The channels are closed by the guest's watch."""
        self._chosen = None
        for path in self._paths:
            await path.reader.close()

    async def _open(self, path: AccessPath, link: Link) -> None:
        try:
            async with asyncio.timeout(self._attempt_seconds):
                await link.open()
        except TimeoutError as error:
            message = f"{path.name}: no answer within {self._attempt_seconds:g} s"
            raise _OpenFailedError(Reason.GUEST_UNREACHABLE, message) from error
        except ChannelError as error:
            raise _OpenFailedError(_reason(error), _message(path, error)) from error
        self._on_open()

    async def _attempt(self, path: AccessPath, lane: Lane) -> Round:
        try:
            result = await self._read(path, lane)
        except ReaderError as error:
            self._record(path, error)
            raise
        self._record(path, None)
        return result

    def _record(self, path: AccessPath, failure: ReaderError | None) -> None:
        """Record the result of an attempt. The last error is kept with its time after a success."""
        age = 0.0 if failure is None else failure.age_seconds
        at = to_datetime(self._clock.now_ns() - round(age * NANOS))
        before = self._reports.get(path.name, AccessPathReport(name=path.name, reads=self._name))
        if failure is None:
            report = msgspec.structs.replace(before, state=AccessPathState.ANSWERS, last_attempt=at, last_success=at)
        else:
            report = msgspec.structs.replace(
                before,
                state=AccessPathState.FAILS,
                last_attempt=at,
                last_failure=at,
                reason=failure.absence,
                last_error=clean(str(failure))[:MAX_ERROR_LENGTH],
            )
        self._reports[path.name] = report

    async def _read(self, path: AccessPath, lane: Lane) -> Round:
        if path.link is not None:
            await self._open(path, path.link)
        try:
            async with asyncio.timeout(self._attempt_seconds):
                if lane not in path.reader.lanes:
                    return Round()
                result = validate_round(await path.reader.read(lane))
        except TimeoutError as error:
            message = f"{path.name}: no answer within {self._attempt_seconds:g} s"
            raise ReaderError(Reason.TIMEOUT, message) from error
        except ReaderError as error:
            channel_error = _channel_error(error)
            if channel_error is not None and channel_error.problem is not ChannelProblem.FAILED:
                reason = Reason.TIMEOUT if error.absence is Reason.TIMEOUT else _reason(channel_error)
            else:
                # A reader for which nothing is supported speaks another version of the protocol.
                is_unsupported = error.absence is Reason.NOT_SUPPORTED
                reason = Reason.INCOMPATIBLE_VERSION if is_unsupported else error.absence
                self._on_open()
            partial = validate_round(error.round) if error.round is not None else None
            message = _message(path, error)
            raise ReaderError(reason, message, round=partial, age_seconds=error.age_seconds) from error
        self._on_open()
        if (
            self._requires_devices
            and lane is not Lane.EVENT
            and not any(sample.view is not None for sample in result.samples)
        ):
            message = "; ".join(result.errors[:1]) or "no GPU found"
            raise ReaderError(
                Reason.NO_SUPPORTED_GPU, f"{path.name}: {message}", round=result, age_seconds=result.age_seconds
            )
        return result


def _message(path: AccessPath, error: Exception) -> str:
    return f"{path.name}: {clean(str(error))[:MAX_ERROR_LENGTH]}"


def _rank(error: ReaderError) -> int:
    return REASON_PRECEDENCE.index(error.absence) if error.absence in REASON_PRECEDENCE else len(REASON_PRECEDENCE)


def _reason(error: ChannelError) -> Reason:
    return PROBLEM_REASONS.get(error.problem, Reason.GUEST_UNREACHABLE)


def _channel_error(error: BaseException) -> ChannelError | None:
    """Return the channel's error that caused a reader's error, or None."""
    cause: BaseException | None = error
    for _ in range(8):
        cause = cause.__cause__ if cause is not None else None
        if isinstance(cause, ChannelError):
            return cause
    return None
