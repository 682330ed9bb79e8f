"""A persistent shell in a guest, over a channel of an SSH connection. Imports asyncssh: see `login`."""

import asyncio

import asyncssh

from gpufleet.channels.guest_shell.shell import ShellReply
from gpufleet.channels.output import OutputTooLargeError
from gpufleet.model.errors import ChannelError, ChannelProblem, WireError
from gpufleet.ports.channel import ExecResult

WINDOW_BYTES = 256 << 10
"""SSH flow control window: bytes that the guest may send before they are read."""

MAX_LATE_BYTES = 256 << 10
"""Maximum bytes that are dropped from an ended session before it is aborted."""


class PersistentShell(asyncssh.SSHClientSession[bytes]):
    """A session for one command at a time, until its output is not a valid reply."""

    def __init__(self, name: str) -> None:
        """Take the guest's name, for error messages."""
        self._name = name
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._reply: ShellReply | None = None
        self._result: asyncio.Future[ExecResult] | None = None
        self._late_bytes = 0
        self._ended = False

    @property
    def is_open(self) -> bool:
        """Return whether it can run a command."""
        return self._channel is not None and not self._ended and not self._channel.is_closing()

    async def execute(self, reply: ShellReply, title: str) -> ExecResult:
        """Send a request and wait for the reply. After a cancellation the caller must call `end`.

        Raises:
            ChannelError: if the session ends or its output is not a valid reply. The session cannot be used again.
        """
        assert self._channel is not None
        self._reply, self._result = reply, asyncio.get_running_loop().create_future()
        try:
            self._channel.write(reply.line)
            return await self._result
        except OutputTooLargeError as error:
            message, problem = "printed more than the limit", ChannelProblem.TOO_LARGE
            cause: Exception = error
        except WireError as error:
            message, problem, cause = str(error), ChannelProblem.PROTOCOL, error
        except (OSError, asyncssh.Error) as error:
            message, problem, cause = str(error), ChannelProblem.ENDED, error
        finally:
            self._reply = self._result = None
        self._abort()
        raise ChannelError(f"{self._name}: {title}: {message}", problem) from cause

    def end(self) -> None:
        """End the session: the guest's shell exits after its current command."""
        self._ended = True
        if self._channel is not None and not self._channel.is_closing():
            self._channel.write_eof()

    async def wait_ended(self) -> None:
        """Wait until the session's channel is closed."""
        assert self._channel is not None
        await self._channel.wait_closed()

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Store the opened channel."""
        self._channel = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Add output of the guest to the reply."""
        if self._reply is None or self._result is None or self._result.done():
            self._drop_late(data)
            return
        try:
            done = self._reply.take(data, error=datatype is not None)
        except (OutputTooLargeError, WireError) as error:
            self._result.set_exception(error)
        else:
            if done is not None:
                self._result.set_result(done)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the channel or connection."""
        self._ended = True
        if self._result is not None and not self._result.done():
            self._result.set_exception(exc or OSError("the guest closed the connection before the command ended"))

    def _drop_late(self, data: bytes) -> None:
        """Drop output outside a request: a command that timed out may still print."""
        self._late_bytes += len(data)
        if not self._ended or self._late_bytes > MAX_LATE_BYTES:
            self._abort()

    def _abort(self) -> None:
        self._ended = True
        if self._channel is not None:
            self._channel.abort()


async def open_session(connection: asyncssh.SSHClientConnection, command: str, name: str) -> PersistentShell:
    """Start a persistent shell.

    Raises:
        ChannelError: if the guest does not start it.
    """
    try:
        _, shell = await connection.create_session(
            lambda: PersistentShell(name), command, encoding=None, window=WINDOW_BYTES
        )
    except (OSError, asyncssh.Error) as error:
        raise ChannelError(f"{name}: cannot open a session: {error}", ChannelProblem.ENDED) from error
    assert isinstance(shell, PersistentShell)
    return shell
