"""A guest's shell over a persistent SSH connection."""

import asyncio
import contextlib
import importlib
import shlex
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpufleet.channels.guest_shell.shell import (
    FORCED,
    GREETING,
    HELLO,
    NAME,
    SESSION,
    ShellReply,
    is_plain,
    sent_script,
    title_of,
)
from gpufleet.channels.output import OutputTooLargeError, read_all
from gpufleet.channels.ssh.target import HostKeyPin, SshTarget
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from gpufleet.ports.channel import ExecResult

if TYPE_CHECKING:
    import asyncssh

    from gpufleet.channels.ssh.session import PersistentShell

WINDOW_BYTES = 256 << 10
"""SSH flow control window of each command: bytes that the guest may send before they are read."""

HELLO_SECONDS = 5.0
_NOT_FOUND = 127
_MAX_STUCK = 4
"""Maximum commands that timed out and have not ended. At this number no command is started."""

_MAX_IDLE = 2
"""Maximum idle sessions: one for GPU commands and one for files, which run at the same time."""


class SshShell:
    """A guest's shell. Connects on the first command and again after a lost connection. One caller connects at a time.

    Sessions in the guest are reused, because starting a shell takes longer than most commands. A new shell is started
    for a command if the key's forced command is an older script, or if arguments contain blanks.

    A command that times out keeps its session. The same command is not started again before the guest has ended it, so
    that a hanging driver does not fill the guest with processes.
    """

    def __init__(self, target: SshTarget, pin: HostKeyPin) -> None:
        self._target, self._pin = target, pin
        self._opening = asyncio.Lock()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._forced = self._has_sessions = False
        self._idle: list[PersistentShell] = []
        self._stuck: dict[str, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Log in if not connected.

        Raises:
            ChannelError: if the connection or login fails.
        """
        async with self._opening:
            if self._connection is not None and not self._connection.is_closed():
                return
            await self._disconnect()
            try:
                login = await asyncio.to_thread(importlib.import_module, "gpufleet.channels.ssh.login")
            except ImportError as error:
                message = "asyncssh is not installed: pip install 'gpufleet[ssh]'"
                raise ChannelError(message, ChannelProblem.NOT_PERMITTED) from error
            connection: asyncssh.SSHClientConnection = await login.log_in(self._target, self._pin)
            with contextlib.ExitStack() as stack:
                stack.callback(connection.abort)
                self._forced, self._has_sessions = await self._handshake(connection)
                stack.pop_all()  # the connection stays open
            self._connection = connection

    async def close(self) -> None:
        """Close the connection. The next command connects again."""
        async with self._opening:
            await self._disconnect()

    async def execute(self, arguments: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run the script with these arguments; see `GuestShell.execute`."""
        title = title_of(arguments)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.open()
                assert self._connection is not None
                self._refuse_while_stuck(title)
                if self._forced:  # a forced command splits at blanks and does not unquote: other paths are left out
                    arguments = tuple(filter(is_plain, arguments))
                if self._has_sessions and all(map(is_plain, arguments)):
                    return await self._run_in_session(self._connection, arguments, title, max_output_bytes)
                return await self._run(self._connection, self._command(arguments), title, max_output_bytes)
        except TimeoutError as error:
            message = f"{self._target.name}: {title} did not end within {timeout_seconds:g} s"
            raise ChannelTimeoutError(message, ChannelProblem.TIMEOUT) from error

    def _command(self, arguments: Sequence[str]) -> str:
        if not self._forced:
            return shlex.join(("sh", "-c", sent_script(), NAME, *arguments))
        return " ".join((NAME, *arguments))

    async def _handshake(self, connection: "asyncssh.SSHClientConnection") -> tuple[bool, bool]:
        """Return whether the key has a forced command, and whether the script supports sessions."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                reply = await self._run(connection, f"{NAME} {HELLO} {SESSION}", HELLO, 4096)
        except TimeoutError as error:
            message = f"{self._target.name}: logged in, but the shell does not answer within {HELLO_SECONDS:g} s"
            raise ChannelError(message, ChannelProblem.TIMEOUT) from error
        greeting = reply.stdout.strip()
        has_sessions = greeting.endswith(b" " + SESSION.encode("ascii"))
        greeting = greeting.removesuffix(b" " + SESSION.encode("ascii"))
        if reply.exit_code == _NOT_FOUND or greeting == GREETING:
            return False, True  # the script is sent with each command
        if greeting == GREETING + b" " + FORCED:
            return True, has_sessions
        message = (
            f"{self._target.name}: the account's shell or forced command is not {NAME} (exit code {reply.exit_code})"
        )
        raise ChannelError(message, ChannelProblem.NOT_ENABLED)

    async def _run_in_session(
        self, connection: "asyncssh.SSHClientConnection", arguments: Sequence[str], title: str, max_output_bytes: int
    ) -> ExecResult:
        self._idle = [item for item in self._idle if item.is_open]
        if self._idle:
            session = self._idle.pop()
        else:
            from gpufleet.channels.ssh.session import open_session

            session = await open_session(connection, self._command((SESSION,)), self._target.name)
        try:
            result = await session.execute(ShellReply(arguments, max_output_bytes=max_output_bytes), title)
        except asyncio.CancelledError:
            session.end()
            self._stuck[title] = asyncio.create_task(session.wait_ended(), name=f"{self._target.name}: {title}")
            raise
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(session)
        else:
            session.end()
        return result

    async def _run(
        self, connection: "asyncssh.SSHClientConnection", command: str, title: str, max_output_bytes: int
    ) -> ExecResult:
        import asyncssh

        try:
            process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
                command, encoding=None, stdin=asyncssh.DEVNULL, window=WINDOW_BYTES
            )
        except (OSError, asyncssh.Error) as error:
            raise ChannelError(f"{self._target.name}: {title}: {error}", ChannelProblem.ENDED) from error
        try:
            out, err, _ = await asyncio.gather(
                read_all(process.stdout, max_output_bytes),
                read_all(process.stderr, max_output_bytes),
                process.wait_closed(),
            )
        except asyncio.CancelledError:
            self._stuck[title] = asyncio.create_task(process.wait_closed(), name=f"{self._target.name}: {title}")
            raise
        except OutputTooLargeError:
            process.close()
            message = f"{self._target.name}: {title} printed more than {max_output_bytes} bytes"
            raise ChannelError(message, ChannelProblem.TOO_LARGE) from None
        except (OSError, asyncssh.Error) as error:
            process.close()
            raise ChannelError(f"{self._target.name}: {title}: {error}", ChannelProblem.ENDED) from error
        if process.exit_status is None:
            message = f"{self._target.name}: {title}: the guest closed the connection before the command ended"
            raise ChannelError(message, ChannelProblem.ENDED)
        return ExecResult(exit_code=_code(process.exit_status, process.exit_signal), stdout=out, stderr=err)

    def _refuse_while_stuck(self, title: str) -> None:
        self._stuck = {name: item for name, item in self._stuck.items() if not item.done()}
        if title in self._stuck or len(self._stuck) >= _MAX_STUCK:
            message = f"{self._target.name}: {title} hangs in the guest: not started again before it ends"
            raise ChannelTimeoutError(message, ChannelProblem.TIMEOUT)

    async def _disconnect(self) -> None:
        for task in self._stuck.values():
            task.cancel()
        self._stuck.clear()
        self._idle.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await connection.wait_closed()


def _code(status: int, exit_signal: tuple[str, bool, str, str] | None) -> int:
    """Return the exit code that a shell would give: 128 plus the number of the signal that ended the command."""
    if status >= 0:
        return status
    name = f"SIG{exit_signal[0]}" if exit_signal is not None else ""
    return 128 + (signal.Signals[name] if name in signal.Signals.__members__ else 0)
