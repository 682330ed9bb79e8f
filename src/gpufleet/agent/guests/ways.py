"""The ways into one virtual machine, and a reader that takes the first that answers and stays with it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gpufleet.agent.guests.gate import admit
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.model.reading import Round
from gpufleet.model.snapshot import WayReport, WayState
from gpufleet.model.text import clean
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader

TRY_SECONDS = 20.0
"""What one way may take of a pass."""

MAX_WORDS = 500
"""Letters of what a guest says of a failure."""

FORGET_AFTER = 3
"""Failures in a row of the way that answered before the others are tried again."""


class Link(Protocol):
    """A channel to one virtual machine that is opened once and kept."""

    async def open(self) -> None:
        """Open it unless it is open. Raises ChannelError."""
        ...

    async def close(self) -> None:
        """Close it; it can be opened again."""
        ...


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way to ask.

    Attributes:
        name: channel and reader, for people.
        reader: what is asked over it.
        link: the channel, or None where the reader dials by itself.
    """

    name: str
    reader: Reader
    link: Link | None = None


PROBLEMS = {
    ChannelProblem.NOT_UP: Reason.GUEST_BOOTING,
    ChannelProblem.AUTHENTICATION: Reason.GUEST_REFUSED,
    ChannelProblem.IDENTITY_MISMATCH: Reason.IDENTITY_MISMATCH,
    ChannelProblem.NOT_ENABLED: Reason.NOT_ENABLED,
    ChannelProblem.NOT_PERMITTED: Reason.NOT_PERMITTED,
    ChannelProblem.PROTOCOL: Reason.READER_FAILED,
    ChannelProblem.TOO_LARGE: Reason.READER_FAILED,
}
"""What a channel's problem says of the guest; every other one says that it cannot be reached."""

TELLING = (
    Reason.IDENTITY_MISMATCH,
    Reason.DRIVER_MISMATCH,
    Reason.DRIVER_ERROR,
    Reason.GPU_LOST,
    Reason.RESET_REQUIRED,
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
"""Of several ways that failed, which tells most: who was met, then what the driver said, then how far one came."""

HEARD = frozenset(TELLING[1 : TELLING.index(Reason.TIMEOUT)])
"""Reasons that only somebody inside can give."""


class _ShutError(ReaderError):
    """The channel of a way does not open."""


class FirstAnswer:
    """A reader over several ways: the first that gives something wins and is remembered until it fails for long."""

    def __init__(
        self,
        name: str,
        ways: Sequence[Way],
        clock: Clock,
        *,
        wants_devices: bool,
        opened: Callable[[], None],
        try_seconds: float = TRY_SECONDS,
    ) -> None:
        """Take the ways.

        Args:
            name: in statuses.
            ways: the preferred first; all readers with the lanes of the first.
            clock: the clocks.
            wants_devices: whether a pass without a device is no answer.
            opened: hears that a channel is open.
            try_seconds: what one way may take of a pass.
        """
        self._name, self._ways, self._wants_devices, self._clock = name, tuple(ways), wants_devices, clock
        self._opened, self._try_seconds = opened, try_seconds
        self._chosen: Way | None = None
        self._failures = 0
        self._tried: dict[str, WayReport] = {}

    @property
    def name(self) -> str:
        """Its name in statuses."""
        return self._name

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Every lane; a way without one gives nothing on it."""
        return (Lane.STATIC, Lane.FAST, Lane.SLOW, Lane.EVENT)

    @property
    def chosen(self) -> str:
        """Name of the way that answers, or empty."""
        return self._chosen.name if self._chosen is not None else ""

    @property
    def tried(self) -> tuple[WayReport, ...]:
        """How each way did when it was last asked, the preferred first."""
        return tuple(self._tried.get(way.name, WayReport(way=way.name, asks=self._name)) for way in self._ways)

    @property
    def pass_seconds(self) -> float:
        """What a pass may take: every way opened and asked once."""
        return 2 * self._try_seconds * len(self._ways) + 1

    async def read(self, lane: Lane) -> Round:
        """Make one pass over the chosen way, or over each until one answers.

        Raises:
            ReaderError: if none answers; of all failures the one that tells most.
        """
        if lane is Lane.EVENT and (self._chosen is None or lane not in self._chosen.reader.lanes):
            return Round()  # events are asked of the way that answers, and no way is looked for because of them
        if self._chosen is not None:
            try:
                done = await self._try(self._chosen, lane)
            except ReaderError:
                self._failures += 1
                if self._failures >= FORGET_AFTER:
                    self._chosen, self._failures = None, 0
                raise
            self._failures = 0
            return done
        failures: list[ReaderError] = []
        shut: list[Link] = []  # a channel that does not open is not dialled again for the next question over it
        for way in self._ways:
            if any(way.link is link for link in shut):
                continue
            try:
                done = await self._try(way, lane)
            except _ShutError as error:
                failures.append(error)
                shut += [way.link] if way.link is not None else []
            except ReaderError as error:
                failures.append(error)
            else:
                self._chosen = way
                return done
        try:
            raise min(failures, key=_rank)
        finally:
            failures.clear()  # they hold this frame, it them, and all of them what was read, megabytes of it

    async def close(self) -> None:
        """Close every way's reader; the channels are the guest's to close."""
        self._chosen = None
        for way in self._ways:
            await way.reader.close()

    async def _open(self, way: Way, link: Link) -> None:
        try:
            async with asyncio.timeout(self._try_seconds):
                await link.open()
        except TimeoutError as error:
            words = f"{way.name}: no answer within {self._try_seconds:g} s"
            raise _ShutError(Reason.GUEST_UNREACHABLE, words) from error
        except ChannelError as error:
            raise _ShutError(_reason(error), _said(way, error)) from error
        self._opened()

    async def _try(self, way: Way, lane: Lane) -> Round:
        try:
            done = await self._ask(way, lane)
        except ReaderError as error:
            self._note(way, error)
            raise
        self._note(way, None)
        return done

    def _note(self, way: Way, failure: ReaderError | None) -> None:
        """Keep what came of asking; what was wrong before stays told, with its time."""
        at = to_datetime(self._clock.now_ns())
        before = self._tried.get(way.name, WayReport(way=way.name, asks=self._name))
        if failure is None:
            now = msgspec.structs.replace(before, state=WayState.ANSWERS, last_attempt=at, last_success=at)
        else:
            now = msgspec.structs.replace(
                before,
                state=WayState.FAILS,
                last_attempt=at,
                last_failure=at,
                reason=failure.absence,
                last_error=clean(str(failure))[:MAX_WORDS],
            )
        self._tried[way.name] = now

    async def _ask(self, way: Way, lane: Lane) -> Round:
        if way.link is not None:
            await self._open(way, way.link)
        try:
            async with asyncio.timeout(self._try_seconds):
                if lane not in way.reader.lanes:
                    return Round()
                done = admit(await way.reader.read(lane))
        except TimeoutError as error:
            words = f"{way.name}: no answer within {self._try_seconds:g} s"
            raise ReaderError(Reason.TIMEOUT, words) from error
        except ReaderError as error:
            carried = _carried(error)
            if carried is not None and carried.problem is not ChannelProblem.FAILED:
                reason = Reason.TIMEOUT if error.absence is Reason.TIMEOUT else _reason(carried)
            else:
                # A reader that cannot work at all with what answers there speaks another version of it.
                old = error.absence is Reason.NOT_SUPPORTED
                reason = Reason.INCOMPATIBLE_VERSION if old else error.absence
                self._opened()
            told = admit(error.round) if error.round is not None else None
            raise ReaderError(reason, _said(way, error), round=told) from error
        self._opened()
        if (
            self._wants_devices
            and lane is not Lane.EVENT
            and not any(sample.view is not None for sample in done.samples)
        ):
            words = "; ".join(done.errors[:1]) or "it shows no GPU"
            raise ReaderError(Reason.NO_SUPPORTED_GPU, f"{way.name}: {words}", round=done)
        return done


def _said(way: Way, error: Exception) -> str:
    return f"{way.name}: {clean(str(error))[:MAX_WORDS]}"


def _rank(error: ReaderError) -> int:
    return TELLING.index(error.absence) if error.absence in TELLING else len(TELLING)


def _reason(error: ChannelError) -> Reason:
    return PROBLEMS.get(error.problem, Reason.GUEST_UNREACHABLE)


def _carried(error: BaseException) -> ChannelError | None:
    """Return the channel's failure behind a reader's, if that is what it was."""
    cause: BaseException | None = error
    for _ in range(8):
        cause = cause.__cause__ if cause is not None else None
        if isinstance(cause, ChannelError):
            return cause
    return None
