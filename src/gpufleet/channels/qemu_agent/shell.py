"""The guest script run through `guest-exec`: the agent starts it, and its output is fetched when it has ended."""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpufleet.channels.guest_shell.shell import NAME, sent_script, title_of
from gpufleet.channels.qemu_agent.protocol import QemuAgentConnection
from gpufleet.channels.stream.dialers import UnixDialer
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from gpufleet.ports.channel import ExecResult, Stream

DIAL_SECONDS, SYNC_SECONDS = 5.0, 5.0

POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.5
"""Interval between checks whether a command has ended: at first, and at most."""

COMMANDS = ("guest-exec", "guest-exec-status")

_NO_SHELL = 127


class QemuAgentShell:
    """A guest's shell over the agent's socket, for one command at a time: the agent serves one client, in order.

    The socket is closed after each command, because other clients may use it. If another client holds it, the next
    command waits as long as a synchronisation may take. A socket that libvirt manages belongs to libvirt alone.
    """

    def __init__(self, socket: Path, *, sync_seconds: float = SYNC_SECONDS) -> None:
        self._socket, self._name, self._sync_seconds = socket, f"guest agent at {socket}", sync_seconds
        self._lock = asyncio.Lock()
        self._stream: Stream | None = None
        self._connection: QemuAgentConnection | None = None
        self._stuck: dict[str, int] = {}  # process ids in the guest of commands that have not ended

    async def open(self) -> None:
        """Dial and synchronise if not connected. Raises ChannelError."""
        async with self._lock:
            await self._open()

    async def close(self) -> None:
        """Close the socket. The next command dials again."""
        async with self._lock:
            await self._close_stream()

    async def execute(self, arguments: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run the script with these arguments; see `GuestShell.execute`."""
        title = title_of(arguments)
        try:
            async with asyncio.timeout(timeout_seconds), self._lock:
                try:
                    return await self._run(await self._open(), title, arguments, max_output_bytes)
                finally:
                    await self._close_stream()  # other clients may use the socket; a late answer is dropped
        except TimeoutError as error:
            message = f"{self._name}: {title} did not end within {timeout_seconds:g} s"
            raise ChannelTimeoutError(message, ChannelProblem.TIMEOUT) from error

    async def _open(self) -> QemuAgentConnection:
        if self._connection is not None:
            return self._connection
        stream = await UnixDialer(self._socket, timeout_seconds=DIAL_SECONDS).dial()
        connection = QemuAgentConnection(stream, self._name)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(stream.close)
            try:
                async with asyncio.timeout(self._sync_seconds):
                    await connection.synchronise()
                    self._check(await connection.execute("guest-info"))
            except TimeoutError as error:
                causes = "the agent is not running, the guest is paused, or another client holds the socket"
                message = f"{self._name}: no answer in {self._sync_seconds:g} s: {causes}"
                raise ChannelError(message, ChannelProblem.NOT_UP) from error
            stack.pop_all()  # the stream stays open
        self._stream, self._connection = stream, connection
        return connection

    def _check(self, info: Any) -> None:
        """Refuse an agent that cannot run commands, by its own list of commands."""
        commands = info.get("supported_commands") if isinstance(info, dict) else None
        if not isinstance(commands, list):
            raise ChannelError(f"{self._name}: guest-info lists no commands", ChannelProblem.PROTOCOL)
        enabled = {
            command.get("name") for command in commands if isinstance(command, dict) and command.get("enabled") is True
        }
        missing = [name for name in COMMANDS if name not in enabled]
        if missing:
            message = f"{self._name}: {', '.join(missing)} disabled in the guest"
            raise ChannelError(message, ChannelProblem.NOT_ENABLED)

    async def _run(
        self, connection: QemuAgentConnection, title: str, arguments: Sequence[str], max_output_bytes: int
    ) -> ExecResult:
        await self._refuse_while_stuck(connection, title)
        shell_arguments = ["-c", sent_script(), NAME, *arguments]
        started = await connection.execute(
            "guest-exec", path="/bin/sh", arg=shell_arguments, **{"capture-output": True}
        )
        pid = started.get("pid") if isinstance(started, dict) else None
        if not isinstance(pid, int):
            raise ChannelError(f"{self._name}: guest-exec returned no process id", ChannelProblem.PROTOCOL)
        self._stuck[title] = pid
        pause = POLL_SECONDS
        while True:
            status = await connection.execute("guest-exec-status", pid=pid)
            if not isinstance(status, dict):
                raise ChannelError(f"{self._name}: malformed answer to guest-exec-status", ChannelProblem.PROTOCOL)
            if status.get("exited") is True:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)
        del self._stuck[title]
        return self._result(status, title, max_output_bytes)

    async def _refuse_while_stuck(self, connection: QemuAgentConnection, title: str) -> None:
        """Refuse a command whose previous run timed out and has not ended in the guest."""
        pid = self._stuck.get(title)
        if pid is None:
            return
        try:
            status = await connection.execute("guest-exec-status", pid=pid)
        except ChannelError as error:
            if error.problem is not ChannelProblem.FAILED:
                raise
            status = {"exited": True}  # process id unknown: the agent or the guest was restarted
        if not (isinstance(status, dict) and status.get("exited") is True):
            message = f"{self._name}: {title} (process {pid}) hangs in the guest: not started again before it ends"
            raise ChannelTimeoutError(message, ChannelProblem.TIMEOUT)
        del self._stuck[title]

    def _result(self, status: dict[str, Any], title: str, max_output_bytes: int) -> ExecResult:
        if status.get("out-truncated") or status.get("err-truncated"):
            raise self._too_large(title, max_output_bytes)
        try:
            out = base64.b64decode(str(status.get("out-data", "")), validate=True)
            err = base64.b64decode(str(status.get("err-data", "")), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ChannelError(f"{self._name}: {title}: the output is not base64", ChannelProblem.PROTOCOL) from error
        if max(len(out), len(err)) > max_output_bytes:
            raise self._too_large(title, max_output_bytes)
        code, signal = status.get("exitcode"), status.get("signal")
        if isinstance(code, int) and not isinstance(code, bool):
            return ExecResult(exit_code=code, stdout=out, stderr=err)
        return ExecResult(exit_code=128 + signal if isinstance(signal, int) else _NO_SHELL, stdout=out, stderr=err)

    def _too_large(self, title: str, limit: int) -> ChannelError:
        return ChannelError(f"{self._name}: {title} printed more than {limit} bytes", ChannelProblem.TOO_LARGE)

    async def _close_stream(self) -> None:
        stream, self._stream, self._connection = self._stream, None, None
        if stream is not None:
            await stream.close()
