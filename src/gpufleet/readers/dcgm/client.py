"""One connection to a host engine: a question, its answer, and nothing an engine can do beyond that.

How soon an engine that failed is dialled again.
"""

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

FIRST_SECONDS, MOST_SECONDS = 1.0, 60.0


class Patience:
    """Waits after each failure in a row but the first: a second, then twice as long each time, up to a bound."""

    def __init__(self, monotonic: Callable[[], float], most_seconds: float = MOST_SECONDS) -> None:
        self._monotonic, self._most = monotonic, most_seconds
        self._wait = 0.0
        self._until = 0.0
        self._last: ChannelError | WireError | None = None

    def failed(self, error: ChannelError | WireError) -> None:
        """Take note of a failure."""
        self._last = error
        self._until = self._monotonic() + self._wait
        self._wait = min(max(FIRST_SECONDS, 2 * self._wait), self._most)

    def worked(self) -> None:
        """Take note that the engine answered."""
        self._wait, self._until, self._last = 0.0, 0.0, None

    def check(self) -> None:
        """Raise the last failure once more while it is too early to try again."""
        if self._last is not None and self._monotonic() < self._until:
            raise self._last


REPLY_SECONDS = 5.0
"""How long a reply may take. An engine does not answer some malformed or denied requests at all."""

MAX_STRAYS = 64
"""Frames that answer nothing (pushed by the engine, or late) and are skipped while one answer is awaited."""

Read = TypeVar("Read")


class EngineError(GpufleetError):
    """The engine refused a command.

    Attributes:
        code: dcgmReturn_t.
        command: name of the command.
    """

    def __init__(self, command: str, code: int) -> None:
        self.code = code
        self.command = command
        super().__init__(f"{command}: the engine answers {name_of(code)} ({code})")


class EngineClient:
    """Asks one engine, one question at a time, over one connection that it keeps.

    Whatever goes wrong on the connection closes it: the engine then forgets this connection's groups and watches.
    `connection` counts connections, so that a caller notices that what it set up is gone.
    """

    def __init__(
        self,
        dialer: Dialer,
        *,
        reply_seconds: float = REPLY_SECONDS,
        most_wait_seconds: float = MOST_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare it; nothing is dialled yet.

        Args:
            dialer: to the engine.
            reply_seconds: how long a reply may take.
            most_wait_seconds: longest time between dials of an engine that fails.
            monotonic: the clock that waits are measured by.
        """
        self._dialer = dialer
        self._patience = Patience(monotonic, most_wait_seconds)
        self._reply_seconds = reply_seconds
        self._stream: Stream | None = None
        self._numbers = itertools.cycle(range(1, 2**31))
        self.connection = 0

    async def open(self) -> int:
        """Connect unless that has been done; return the number of the connection.

        Raises:
            ChannelError: if it cannot be done; or if it could not lately, in the words of then: an engine that fails
                again and again is not dialled at every question.
            WireError: so too, where the engine spoke and was not understood.
        """
        if self._stream is None:
            self._patience.check()
            try:
                self._stream = await self._dialer.dial()
            except ChannelError as error:
                self._patience.failed(error)
                raise
            self.connection += 1
        return self.connection

    async def ask(
        self,
        command: Command,
        request: Callable[[int], bytes],
        read: Callable[[bytes], Read],
        *,
        most_bytes: int | None = None,
    ) -> Read:
        """Ask a question and read its answer.

        Args:
            command: what is asked; names it in errors, and tells where its return code stands.
            request: makes the frame for a request id.
            read: reads the reply's body.
            most_bytes: a longer body is no answer; the command's struct unless told.

        Raises:
            EngineError: if the engine refuses the command; the connection stays.
            ChannelError: if no answer comes in time, or the connection fails.
            WireError: if the answer is not what the protocol says.
        """
        await self.open()
        assert self._stream is not None
        number = next(self._numbers)
        try:
            async with asyncio.timeout(self._reply_seconds):
                await self._stream.send(request(number))
                status, body = await self._reply(self._stream, number, most_bytes or command.size)
            self._patience.worked()
            if status != OK:
                raise EngineError(command.name, status)
            if command.number in RESULT_AT and (result := read_result(command, body)) != OK:
                raise EngineError(command.name, result)
            return read(body)
        except EngineError:
            raise
        except TimeoutError:
            await self.close()
            late = ChannelError(f"{command.name}: no answer in {self._reply_seconds:g} s", ChannelProblem.TIMEOUT)
            self._patience.failed(late)
            raise late from None
        except (ChannelError, WireError) as error:
            await self.close()
            self._patience.failed(error)
            raise
        except BaseException:  # cancelled in the middle of a frame, too: what comes next could not be told from it
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection; the next question opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(ChannelError):
                await stream.close()

    @staticmethod
    async def _reply(stream: Stream, number: int, most: int) -> tuple[int, bytes]:
        """Return status and body of the reply to a request; a refused request's body is thrown away."""
        for _ in range(MAX_STRAYS):
            header = decode_header(await stream.receive_exactly(HEADER.size))
            if header.type == MODULE_COMMAND and header.request == number and header.status == OK:
                if header.length > most:
                    raise WireLimitError("length", f"{header.length} bytes, of {most} that an answer can have")
                return header.status, await stream.receive_exactly(header.length)
            left = header.length
            while left:
                chunk = await stream.receive(left)
                if not chunk:
                    raise ChannelError("the engine ended inside a frame", ChannelProblem.ENDED)
                left -= len(chunk)
            if header.type == MODULE_COMMAND and header.request == number:
                return header.status, b""
        raise WireError("reply", f"{MAX_STRAYS} frames came, and none was the answer")
