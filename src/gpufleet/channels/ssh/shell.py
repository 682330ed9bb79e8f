"""A guest's shell over one SSH connection that is kept."""

import asyncio
import contextlib
import importlib
import shlex
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpufleet.channels.bounded import TooMuchError, read_all
from gpufleet.channels.guest_shell.shell import FORCED, GREETING, HELLO, NAME, SESSION, Answer, is_plain, script
from gpufleet.channels.ssh.target import Pin, SshTarget
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from gpufleet.ports.channel import ExecResult

if TYPE_CHECKING:
    import asyncssh

    from gpufleet.channels.ssh.session import KeptShell

WINDOW_BYTES = 256 << 10
"""What the guest may send ahead of being read, of each command."""

HELLO_SECONDS = 5.0
_NOT_FOUND = 127
_MAX_STUCK = 4
"""Commands that did not end and are not ended yet; while so many hang, none is started."""

_MAX_IDLE = 2
"""Shells that are kept between questions: one for the GPUs', one for the files', which are asked at the same time."""


class SshShell:
    """Dials when it is first asked, and again when the connection has gone. One caller opens at a time.

    Shells in the guest are kept and asked again: to start one for each question takes longer than most answers. Where
    an older script is the key's forced command, or words have blanks in them, one is started for the question.

    A command that does not end in time keeps its session: its like is not started again before the guest has ended
    it, so that a driver that hangs does not fill the guest with processes.
    """

    def __init__(self, target: SshTarget, pin: Pin) -> None:
        self._target, self._pin = target, pin
        self._opening = asyncio.Lock()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._forced = self._keeps = False
        self._idle: list[KeptShell] = []
        self._stuck: dict[str, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Log in unless that was done and holds.

        Raises:
            ChannelError: if it does not come about.
        """
        async with self._opening:
            if self._connection is not None and not self._connection.is_closed():
                return
            await self._drop()
            try:
                login = await asyncio.to_thread(importlib.import_module, "gpufleet.channels.ssh.login")
            except ImportError as error:
                words = "asyncssh is not installed: pip install 'gpufleet[ssh]'"
                raise ChannelError(words, ChannelProblem.NOT_PERMITTED) from error
            connection: asyncssh.SSHClientConnection = await login.log_in(self._target, self._pin)
            with contextlib.ExitStack() as stack:
                stack.callback(connection.abort)
                self._forced, self._keeps = await self._greet(connection)
                stack.pop_all()  # it is kept
            self._connection = connection

    async def close(self) -> None:
        """Hang up; the next question dials again."""
        async with self._opening:
            await self._drop()

    async def ask(self, words: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run the script with these words; see `Shell.ask`."""
        what = " ".join(words[2:4] if words[0] == "run" else words[:1])
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.open()
                assert self._connection is not None
                self._refuse_while_stuck(what)
                if self._forced:  # it splits at blanks and unquotes nothing: what it could not tell apart is not asked
                    words = tuple(filter(is_plain, words))
                if self._keeps and all(map(is_plain, words)):
                    return await self._ask_kept(self._connection, words, what, max_output_bytes)
                return await self._run(self._connection, self._command(words), what, max_output_bytes)
        except TimeoutError as error:
            told = f"{self._target.name}: {what} did not end within {timeout_seconds:g} s"
            raise ChannelTimeoutError(told, ChannelProblem.TIMEOUT) from error

    def _command(self, words: Sequence[str]) -> str:
        if not self._forced:
            return shlex.join(("sh", "-c", script(), NAME, *words))
        return " ".join((NAME, *words))

    async def _greet(self, connection: "asyncssh.SSHClientConnection") -> tuple[bool, bool]:
        """Ask how words are to be put: return whether the key has the forced command, and whether shells are kept."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                said = await self._run(connection, f"{NAME} {HELLO} {SESSION}", HELLO, 4096)
        except TimeoutError as error:
            words = f"{self._target.name}: logged in, and no shell answers in {HELLO_SECONDS:g} s"
            raise ChannelError(words, ChannelProblem.TIMEOUT) from error
        greeting = said.stdout.strip()
        keeps = greeting.endswith(b" " + SESSION.encode("ascii"))
        greeting = greeting.removesuffix(b" " + SESSION.encode("ascii"))
        if said.exit_code == _NOT_FOUND or greeting == GREETING:
            return False, True  # the script comes with the question
        if greeting == GREETING + b" " + FORCED:
            return True, keeps
        words = f"{self._target.name}: the key's shell or forced command is not {NAME}'s (exit code {said.exit_code})"
        raise ChannelError(words, ChannelProblem.NOT_ENABLED)

    async def _ask_kept(
        self, connection: "asyncssh.SSHClientConnection", words: Sequence[str], what: str, max_output_bytes: int
    ) -> ExecResult:
        self._idle = [one for one in self._idle if one.is_open]
        if self._idle:
            kept = self._idle.pop()
        else:
            from gpufleet.channels.ssh.session import keep

            kept = await keep(connection, self._command((SESSION,)), self._target.name)
        try:
            result = await kept.ask(Answer(words, max_output_bytes=max_output_bytes), what)
        except asyncio.CancelledError:
            kept.end()
            self._stuck[what] = asyncio.create_task(kept.wait_ended(), name=f"{self._target.name}: {what}")
            raise
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(kept)
        else:
            kept.end()
        return result

    async def _run(
        self, connection: "asyncssh.SSHClientConnection", command: str, what: str, max_output_bytes: int
    ) -> ExecResult:
        import asyncssh

        try:
            process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
                command, encoding=None, stdin=asyncssh.DEVNULL, window=WINDOW_BYTES
            )
        except (OSError, asyncssh.Error) as error:
            raise ChannelError(f"{self._target.name}: {what}: {error}", ChannelProblem.ENDED) from error
        try:
            out, err, _ = await asyncio.gather(
                read_all(process.stdout, max_output_bytes),
                read_all(process.stderr, max_output_bytes),
                process.wait_closed(),
            )
        except asyncio.CancelledError:
            self._stuck[what] = asyncio.create_task(process.wait_closed(), name=f"{self._target.name}: {what}")
            raise
        except TooMuchError:
            process.close()
            words = f"{self._target.name}: {what} printed more than {max_output_bytes} bytes"
            raise ChannelError(words, ChannelProblem.TOO_LARGE) from None
        except (OSError, asyncssh.Error) as error:
            process.close()
            raise ChannelError(f"{self._target.name}: {what}: {error}", ChannelProblem.ENDED) from error
        if process.exit_status is None:
            words = f"{self._target.name}: {what}: the guest hung up before it ended"
            raise ChannelError(words, ChannelProblem.ENDED)
        return ExecResult(exit_code=_code(process.exit_status, process.exit_signal), stdout=out, stderr=err)

    def _refuse_while_stuck(self, what: str) -> None:
        self._stuck = {name: one for name, one in self._stuck.items() if not one.done()}
        if what in self._stuck or len(self._stuck) >= _MAX_STUCK:
            words = f"{self._target.name}: {what} hangs in the guest: not started again before it has ended"
            raise ChannelTimeoutError(words, ChannelProblem.TIMEOUT)

    async def _drop(self) -> None:
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


def _code(status: int, ended_by: tuple[str, bool, str, str] | None) -> int:
    """Return what a shell would say of a command: 128 and the number of the signal that ended it."""
    if status >= 0:
        return status
    name = f"SIG{ended_by[0]}" if ended_by is not None else ""
    return 128 + (signal.Signals[name] if name in signal.Signals.__members__ else 0)
