"""Client of a DCGM host engine: one connection, one request at a time, and the reconnect backoff."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from typing import TypeVar

from gpufleet.codecs.dcgm_wire.codes import OK, name_of
from gpufleet.codecs.dcgm_wire.commands import RESULT_AT, Command
from gpufleet.codecs.dcgm_wire.frame import HEADER, MODULE_COMMAND, decode_header
from gpufleet.codecs.dcgm_wire.replies import read_result
from gpufleet.model.errors import ChannelError, ChannelProblem, GpufleetError, WireError, WireLimitError
from gpufleet.ports.channel import Dialer, Stream

INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 60.0


class BackoffError(GpufleetError):
    """No dial yet: the wait after the last failure is not over.

    Attributes:
        failure: the last failure.
        age_seconds: time since its attempt began.
    """

    def __init__(self, failure: ChannelError | WireError, age_seconds: float) -> None:
        self.failure, self.age_seconds = failure, age_seconds
        super().__init__(str(failure))


class ReconnectBackoff:
    """Exponential backoff between dials.

    The first failure has no wait. Each further failure in a row doubles the wait, from `INITIAL_BACKOFF_SECONDS` up to
    the maximum.
    """

    def __init__(self, monotonic: Callable[[], float], max_seconds: float = MAX_BACKOFF_SECONDS) -> None:
        self._monotonic, self._max = monotonic, max_seconds
        self._wait = 0.0
        self._until = 0.0
        self._last: ChannelError | WireError | None = None
        self._began = 0.0

    def record_failure(self, error: ChannelError | WireError, began: float) -> None:
        """Record a failure of an attempt that began at `began`, in monotonic seconds."""
        self._last, self._began = error, began
        self._until = self._monotonic() + self._wait
        self._wait = min(max(INITIAL_BACKOFF_SECONDS, 2 * self._wait), self._max)

    def record_success(self) -> None:
        """Reset the backoff: the engine answered."""
        self._wait, self._until, self._last = 0.0, 0.0, None

    def check(self) -> None:
        """Raise BackoffError until the wait after the last failure is over."""
        if self._last is not None and (now := self._monotonic()) < self._until:
            raise BackoffError(self._last, now - self._began)


REPLY_SECONDS = 5.0
"""Timeout of a reply. An engine does not answer some malformed or denied requests at all."""

MAX_SKIPPED_FRAMES = 64
"""Maximum number of unrelated frames (pushed by the engine, or late) that are skipped before a reply."""

Result = TypeVar("Result")


class EngineError(GpufleetError):
    """The engine refused a command.

    Attributes:
        code: dcgmReturn_t.
        command: name of the command.
    """

    def __init__(self, command: str, code: int) -> None:
        self.code = code
        self.command = command
        super().__init__(f"{command}: the engine returned {name_of(code)} ({code})")


class EngineClient:
    """Client of one engine: one request at a time, over one persistent connection.

    Any error on the connection closes it, and the engine then drops the groups and watches of the connection.
    `connection` counts connections, so that a caller notices that its groups and watches are gone.
    """

    def __init__(
        self,
        dialer: Dialer,
        *,
        reply_seconds: float = REPLY_SECONDS,
        max_backoff_seconds: float = MAX_BACKOFF_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the client; nothing is dialled yet.

        Args:
            dialer: to the engine.
            reply_seconds: timeout of a reply.
            max_backoff_seconds: maximum time between dials of an engine that fails.
            monotonic: clock of the backoff.
        """
        self._dialer, self._monotonic = dialer, monotonic
        self._backoff = ReconnectBackoff(monotonic, max_backoff_seconds)
        self._reply_seconds = reply_seconds
        self._stream: Stream | None = None
        self._numbers = itertools.cycle(range(1, 2**31))
        self.connection = 0

    async def open(self) -> int:
        """Connect if there is no connection; return the number of the connection.

        Raises:
            ChannelError: if the dial fails.
            BackoffError: during the backoff, without a dial.
        """
        if self._stream is None:
            self._backoff.check()
            began = self._monotonic()
            try:
                self._stream = await self._dialer.dial()
            except ChannelError as error:
                self._backoff.record_failure(error, began)
                raise
            self.connection += 1
        return self.connection

    async def request(
        self,
        command: Command,
        encode: Callable[[int], bytes],
        read: Callable[[bytes], Result],
        *,
        max_bytes: int | None = None,
    ) -> Result:
        """Send a request and decode its reply.

        Args:
            command: name for errors, and the position of the return code.
            encode: encodes the frame for a request id.
            read: decodes the body of the reply.
            max_bytes: maximum length of the body; None for the size of the command's struct.

        Raises:
            EngineError: if the engine refuses the command; the connection stays open.
            ChannelError: if no reply arrives in time, or the connection fails.
            WireError: if the reply violates the protocol.
            BackoffError: as `open`.
        """
        await self.open()
        began = self._monotonic()
        assert self._stream is not None
        number = next(self._numbers)
        try:
            async with asyncio.timeout(self._reply_seconds):
                await self._stream.send(encode(number))
                status, body = await self._reply(self._stream, number, max_bytes or command.size)
            self._backoff.record_success()
            if status != OK:
                raise EngineError(command.name, status)
            if command.number in RESULT_AT and (result := read_result(command, body)) != OK:
                raise EngineError(command.name, result)
            return read(body)
        except EngineError:
            raise
        except TimeoutError:
            await self.close()
            late = ChannelError(f"{command.name}: no reply within {self._reply_seconds:g} s", ChannelProblem.TIMEOUT)
            self._backoff.record_failure(late, began)
            raise late from None
        except (ChannelError, WireError) as error:
            await self.close()
            self._backoff.record_failure(error, began)
            raise
        except BaseException:  # also on cancellation within a frame: the stream is then out of step
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection; the next request opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(ChannelError):
                await stream.close()

    @staticmethod
    async def _reply(stream: Stream, number: int, max_bytes: int) -> tuple[int, bytes]:
        """Return status and body of the reply to a request; the body of a refusal is discarded."""
        for _ in range(MAX_SKIPPED_FRAMES):
            header = decode_header(await stream.receive_exactly(HEADER.size))
            if header.type == MODULE_COMMAND and header.request == number and header.status == OK:
                if header.length > max_bytes:
                    raise WireLimitError(
                        "length", f"{header.length} bytes exceed the maximum of {max_bytes} for this reply"
                    )
                return header.status, await stream.receive_exactly(header.length)
            left = header.length
            while left:
                chunk = await stream.receive(left)
                if not chunk:
                    raise ChannelError("the engine closed the connection within a frame", ChannelProblem.ENDED)
                left -= len(chunk)
            if header.type == MODULE_COMMAND and header.request == number:
                return header.status, b""
        raise WireError("reply", f"no reply among {MAX_SKIPPED_FRAMES} frames")
