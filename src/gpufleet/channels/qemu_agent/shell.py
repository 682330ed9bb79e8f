"""The script in a guest through `guest-exec`: started by the agent, its output fetched when it has ended."""

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpufleet.channels.guest_shell.shell import NAME, script
from gpufleet.channels.qemu_agent.protocol import Conversation
from gpufleet.channels.stream.dialers import UnixDialer
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from gpufleet.ports.channel import ExecResult, Stream

DIAL_SECONDS, SYNC_SECONDS = 5.0, 5.0

POLL_SECONDS, POLL_MOST_SECONDS = 0.02, 0.5
"""Between two looks whether a command has ended: at first, and at most."""

COMMANDS = ("guest-exec", "guest-exec-status")

_NO_SHELL = 127


class QemuAgentShell:
    """Asks one thing at a time: the agent talks to one client, and answers in order.

    It hangs up after each question: somebody else may use the socket, and is waited for as long as a synchronisation
    may take. A socket that libvirt manages is libvirt's alone, and cannot be used beside it.
    """

    def __init__(self, socket: Path, *, sync_seconds: float = SYNC_SECONDS) -> None:
        self._socket, self._name, self._sync_seconds = socket, f"guest agent at {socket}", sync_seconds
        self._turn = asyncio.Lock()
        self._stream: Stream | None = None
        self._talk: Conversation | None = None
        self._stuck: dict[str, int] = {}  # process ids in the guest of what did not end

    async def open(self) -> None:
        """Dial and synchronise, unless that was done and holds. Raises ChannelError."""
        async with self._turn:
            await self._open()

    async def close(self) -> None:
        """Hang up; the next question dials again."""
        async with self._turn:
            await self._hang_up()

    async def ask(self, words: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run the script with these words; see `Shell.ask`."""
        what = " ".join(words[2:4] if words[0] == "run" else words[:1])
        try:
            async with asyncio.timeout(timeout_seconds), self._turn:
                try:
                    return await self._run(await self._open(), what, words, max_output_bytes)
                finally:
                    await self._hang_up()  # others want the socket too; what is answered yet is nobody's
        except TimeoutError as error:
            told = f"{self._name}: {what} did not end within {timeout_seconds:g} s"
            raise ChannelTimeoutError(told, ChannelProblem.TIMEOUT) from error

    async def _open(self) -> Conversation:
        if self._talk is not None:
            return self._talk
        stream = await UnixDialer(self._socket, timeout_seconds=DIAL_SECONDS).dial()
        talk = Conversation(stream, self._name)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(stream.close)
            try:
                async with asyncio.timeout(self._sync_seconds):
                    await talk.synchronise()
                    self._check(await talk.ask("guest-info"))
            except TimeoutError as error:
                why = "no agent runs, the guest stands still, or somebody else asks"
                words = f"{self._name}: no answer in {self._sync_seconds:g} s: {why}"
                raise ChannelError(words, ChannelProblem.NOT_UP) from error
            stack.pop_all()  # it is kept
        self._stream, self._talk = stream, talk
        return talk

    def _check(self, info: Any) -> None:
        """Refuse an agent that runs no commands; their names are read before any is tried."""
        listed = info.get("supported_commands") if isinstance(info, dict) else None
        if not isinstance(listed, list):
            raise ChannelError(f"{self._name}: guest-info lists no commands", ChannelProblem.PROTOCOL)
        enabled = {one.get("name") for one in listed if isinstance(one, dict) and one.get("enabled") is True}
        lacking = [name for name in COMMANDS if name not in enabled]
        if lacking:
            words = f"{self._name}: {', '.join(lacking)} is switched off in the guest"
            raise ChannelError(words, ChannelProblem.NOT_ENABLED)

    async def _run(self, talk: Conversation, what: str, words: Sequence[str], max_output_bytes: int) -> ExecResult:
        await self._refuse_while_stuck(talk, what)
        argument = ["-c", script(), NAME, *words]
        started = await talk.ask("guest-exec", path="/bin/sh", arg=argument, **{"capture-output": True})
        pid = started.get("pid") if isinstance(started, dict) else None
        if not isinstance(pid, int):
            raise ChannelError(f"{self._name}: guest-exec names no process", ChannelProblem.PROTOCOL)
        self._stuck[what] = pid
        pause = POLL_SECONDS
        while True:
            status = await talk.ask("guest-exec-status", pid=pid)
            if not isinstance(status, dict):
                raise ChannelError(f"{self._name}: guest-exec-status is no answer", ChannelProblem.PROTOCOL)
            if status.get("exited") is True:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_MOST_SECONDS)
        del self._stuck[what]
        return self._result(status, what, max_output_bytes)

    async def _refuse_while_stuck(self, talk: Conversation, what: str) -> None:
        """Look after a command that did not end in its time; its like is not started before it has."""
        pid = self._stuck.get(what)
        if pid is None:
            return
        try:
            status = await talk.ask("guest-exec-status", pid=pid)
        except ChannelError as error:
            if error.problem is not ChannelProblem.FAILED:
                raise
            status = {"exited": True}  # the agent knows it no more: it, or the guest, was started anew
        if not (isinstance(status, dict) and status.get("exited") is True):
            words = f"{self._name}: {what} (process {pid}) hangs in the guest: not started again before it has ended"
            raise ChannelTimeoutError(words, ChannelProblem.TIMEOUT)
        del self._stuck[what]

    def _result(self, status: dict[str, Any], what: str, max_output_bytes: int) -> ExecResult:
        if status.get("out-truncated") or status.get("err-truncated"):
            raise self._too_much(what, max_output_bytes)
        try:
            out = base64.b64decode(str(status.get("out-data", "")), validate=True)
            err = base64.b64decode(str(status.get("err-data", "")), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ChannelError(f"{self._name}: {what}: the output is not base64", ChannelProblem.PROTOCOL) from error
        if max(len(out), len(err)) > max_output_bytes:
            raise self._too_much(what, max_output_bytes)
        code, signal = status.get("exitcode"), status.get("signal")
        if isinstance(code, int) and not isinstance(code, bool):
            return ExecResult(exit_code=code, stdout=out, stderr=err)
        return ExecResult(exit_code=128 + signal if isinstance(signal, int) else _NO_SHELL, stdout=out, stderr=err)

    def _too_much(self, what: str, most: int) -> ChannelError:
        return ChannelError(f"{self._name}: {what} printed more than {most} bytes", ChannelProblem.TOO_LARGE)

    async def _hang_up(self) -> None:
        stream, self._stream, self._talk = self._stream, None, None
        if stream is not None:
            await stream.close()
