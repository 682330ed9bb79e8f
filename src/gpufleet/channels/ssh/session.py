"""One shell that is kept in a guest, over a channel of an SSH connection. Imports asyncssh: see `login`."""

import asyncio

import asyncssh

from gpufleet.channels.bounded import TooMuchError
from gpufleet.channels.guest_shell.shell import Answer
from gpufleet.model.errors import ChannelError, ChannelProblem, WireError
from gpufleet.ports.channel import ExecResult

WINDOW_BYTES = 256 << 10
"""What the guest may send at a time before it is told that there is room for more."""

MAX_LATE_BYTES = 256 << 10
"""What is thrown away of a session that is over; one that goes on after that is cut off."""


class KeptShell(asyncssh.SSHClientSession[bytes]):
    """Is asked one question at a time, until it gives anything but the answer."""

    def __init__(self, name: str) -> None:
        """Take the guest's name, for words."""
        self._name = name
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._answer: Answer | None = None
        self._answered: asyncio.Future[ExecResult] | None = None
        self._late_bytes = 0
        self._over = False

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self._channel is not None and not self._over and not self._channel.is_closing()

    async def ask(self, answer: Answer, what: str) -> ExecResult:
        """Ask, and wait for the answer. Whoever is cancelled in between must `end` it.

        Raises:
            ChannelError: if it ends, or gives something else; it is over then.
        """
        assert self._channel is not None
        self._answer, self._answered = answer, asyncio.get_running_loop().create_future()
        try:
            self._channel.write(answer.line)
            return await self._answered
        except TooMuchError as error:
            words, problem = "printed more than it may", ChannelProblem.TOO_LARGE
            cause: Exception = error
        except WireError as error:
            words, problem, cause = str(error), ChannelProblem.PROTOCOL, error
        except (OSError, asyncssh.Error) as error:
            words, problem, cause = str(error), ChannelProblem.ENDED, error
        finally:
            self._answer = self._answered = None
        self._cut()
        raise ChannelError(f"{self._name}: {what}: {words}", problem) from cause

    def end(self) -> None:
        """Ask no more: the guest's shell ends with what it does now."""
        self._over = True
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write_eof()

    async def wait_ended(self) -> None:
        """Wait until the guest has told that it ended, or is gone."""
        assert self._channel is not None
        await self._channel.wait_closed()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Hear that the channel is open."""
        self._channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Take what the guest prints."""
        if self._answer is None or self._answered is None or self._answered.done():
            self._take_late(data)
            return
        try:
            result = self._answer.take(data, error=datatype is not None)
        except (TooMuchError, WireError) as error:
            self._answered.set_exception(error)
        else:
            if result is not None:
                self._answered.set_result(result)

    def connection_lost(self, exc: Exception | None) -> None:
        """Hear that the channel, or the connection, is gone."""
        self._over = True
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(exc or OSError("the guest hung up before it ended"))

    def _take_late(self, data: bytes) -> None:
        """Throw away what nobody asked for: what it was asked and did not end may still print."""
        self._late_bytes += len(data)
        if not self._over or self._late_bytes > MAX_LATE_BYTES:
            self._cut()

    def _cut(self) -> None:
        self._over = True
        if self._channel is not None:
            self._channel.abort()


async def keep(connection: asyncssh.SSHClientConnection, command: str, name: str) -> KeptShell:
    """Start a shell that is kept.

    Raises:
        ChannelError: if the guest starts none.
    """
    try:
        _, kept = await connection.create_session(lambda: KeptShell(name), command, encoding=None, window=WINDOW_BYTES)
    except (OSError, asyncssh.Error) as error:
        raise ChannelError(f"{name}: a session: {error}", ChannelProblem.ENDED) from error
    assert isinstance(kept, KeptShell)
    return kept
