"""The fixed commands of `gpufleet-guest` and the protocol of its persistent session. The protocol is pure.

A guest has the script as the forced command of an SSH key, or receives it with each command.

In a session a request is a line with a new random mark and the script's arguments. The reply starts with the mark on a
line of its own on standard output. It ends on both streams with a line of the mark and the exit code. Any other output,
such as a reply to an older request, a second reply or output after the end, ends the session.
"""

import math
import re
import secrets
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Protocol

from gpufleet.channels.output import OutputTooLargeError
from gpufleet.model.commands import CommandGroup, command_group, refusal
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError, WireError
from gpufleet.ports.channel import ExecResult

NAME = "gpufleet-guest"

HELLO = "hello"

SESSION = "session"

GREETING = b"gpufleet-guest 1"
"""Reply of the script to `hello`. ` forced` follows for a forced command, ` session` if it supports sessions."""

FORCED = b"forced"

TIMEOUT_EXIT_CODES = (124, 137, 143)
"""Exit codes of a command ended by timeout(1): its own or SIGKILL; with busybox that of SIGTERM."""

_PLAIN = re.compile(r"[A-Za-z0-9_./:,=@+*?%\[\]-]+", re.ASCII)


class GuestShell(Protocol):
    """A channel that runs the guest script."""

    async def execute(self, arguments: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run the script with these arguments to completion.

        Raises:
            ChannelTimeoutError: if the script exceeds the timeout.
            ChannelError: if the script cannot be run, or prints more than `max_output_bytes` on either stream.
        """
        ...


@cache
def script() -> str:
    """Return the script's text."""
    return files(__package__).joinpath(NAME).read_text(encoding="ascii")


@cache
def sent_script() -> str:
    """Return the script without comments and indentation, for sending it with a command.

    dropbear closes the connection for a command of more than 9000 bytes.
    """
    lines = (line.strip() for line in script().splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))


def is_plain(argument: str) -> bool:
    """Return whether an argument survives a shell that only splits at blanks."""
    return _PLAIN.fullmatch(argument) is not None


def title_of(arguments: Sequence[str]) -> str:
    """Return a short name of a request for messages; requests of one name do not run at the same time."""
    has_command = arguments[0] in CommandGroup.__members__.values()
    return " ".join(arguments[2:4] if has_command else arguments[:1])


_CODE = re.compile(rb"([0-9]{1,3})\n", re.ASCII)
_MAX_CODE = 4
"""Bytes of an exit code and its line end."""


class ShellReply:
    """A request of a session, and its reply as it arrives."""

    def __init__(self, arguments: Sequence[str], *, max_output_bytes: int) -> None:
        """Take the request.

        Args:
            arguments: the script's arguments, all plain.
            max_output_bytes: limit for each stream.
        """
        mark = secrets.token_hex(8)
        self.line = " ".join((mark, *arguments)).encode("ascii") + b"\n"
        self._out = _ReplyStream(f"{mark}\n".encode("ascii"), mark, max_output_bytes)
        self._err = _ReplyStream(b"", mark, max_output_bytes)

    def take(self, piece: bytes, *, error: bool) -> ExecResult | None:
        """Add output of standard output or standard error; return the result once it is complete.

        Raises:
            OutputTooLargeError: if the output exceeds the limit.
            WireError: if the output is not a reply to this request.
        """
        (self._err if error else self._out).take(piece)
        if self._out.code is None or self._err.code is None:
            return None
        return ExecResult(exit_code=self._out.code, stdout=self._out.printed, stderr=self._err.printed)


class _ReplyStream:
    """A stream of a reply, up to the line with the mark and the exit code."""

    def __init__(self, start: bytes, mark: str, limit: int) -> None:
        self._start, self._end, self._limit = start, f"\n{mark} ".encode("ascii"), limit
        self._received = bytearray()
        self.code: int | None = None
        self.printed = b""

    def take(self, piece: bytes) -> None:
        if self.code is not None:
            raise WireError("session", "output after the end of the reply")
        start, end, received = self._start, self._end, self._received
        searched = max(len(start), len(received) - len(end) - _MAX_CODE)
        received += piece
        if not received.startswith(start[: len(received)]):
            raise WireError("session", "the output is not a reply to this request")
        at = received.find(end, searched)
        if (at if at >= 0 else len(received) - len(end)) - len(start) > self._limit:
            raise OutputTooLargeError
        code = bytes(received[at + len(end) :]) if at >= 0 else b""
        if b"\n" not in code and len(code) < _MAX_CODE:
            return  # the rest has not arrived
        if not (found := _CODE.fullmatch(code)):
            raise WireError("session", "output after the end of the reply")
        self.code, self.printed = int(found[1]), bytes(received[len(start) : at])
        received.clear()


MAX_OUTPUT_BYTES = 4 << 20
"""Maximum output of one command, whatever the caller's limit: 16 GPUs print less than 1 MB of XML."""

TRANSFER_SECONDS = 2.0
"""Part of the timeout that is reserved for transfer. The guest ends the command before that."""


MONITORED = frozenset({CommandGroup.RUN, CommandGroup.PROBE})
"""Groups of commands for the regular readings of a guest."""

MEASURED = MONITORED | {CommandGroup.BENCH}
"""Groups of commands for a capture of benchmark evidence."""


class ShellExec:
    """The Exec port over a guest's shell: fixed commands of `model.commands`.

    Args:
        shell: runs the guest script.
        groups: permitted groups of commands.
    """

    def __init__(self, shell: GuestShell, groups: frozenset[CommandGroup] = MONITORED) -> None:
        self._shell = shell
        self._groups = groups

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run one of the fixed commands; see `Exec.run`."""
        group = command_group(argv)
        if group is None or group not in self._groups:
            raise ChannelError(refusal(argv), ChannelProblem.NOT_PERMITTED)
        seconds = max(1, math.ceil(timeout_seconds - TRANSFER_SECONDS))
        done = await self._shell.execute(
            (group, str(seconds), *argv),
            timeout_seconds=timeout_seconds,
            max_output_bytes=min(max_output_bytes, MAX_OUTPUT_BYTES),
        )
        if done.exit_code in TIMEOUT_EXIT_CODES:
            message = f"{argv[0]} exceeded {seconds} s and was ended in the guest"
            raise ChannelTimeoutError(message, ChannelProblem.TIMEOUT)
        return done
