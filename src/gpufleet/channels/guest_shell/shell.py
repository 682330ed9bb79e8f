"""The words of `gpufleet-guest`, and who carries them.

The script is one: a guest has it as the forced command of a key, or gets it with each question.

A shell that is kept in a guest: how it is asked, and what it prints for one question. Pure.

A question is a line: a mark that was never used before, and the script's words. The mark stands on a line of its own
before what is printed, and on a line with the exit code after it, there on both streams. Nothing else is an answer: one
to an older question, a second one, or more after the end ends the session.

The fixed commands in a guest.
"""

import math
import re
import secrets
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Protocol

from gpufleet.channels.bounded import TooMuchError
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError, WireError
from gpufleet.ports.channel import ExecResult

NAME = "gpufleet-guest"

HELLO = "hello"

SESSION = "session"

GREETING = b"gpufleet-guest 1"
"""How the script answers `hello`; ` forced` follows where it is a key's forced command, ` session` where it is kept."""

FORCED = b"forced"

TIMED_OUT = (124, 137, 143)
"""How a command ends that timeout(1) ended: its own code, or SIGKILL; under busybox the command's end by SIGTERM."""

_PLAIN = re.compile(r"[A-Za-z0-9_./:,=@+*?\[\]-]+", re.ASCII)

_SMI = re.compile(
    r"-q|-x|-L|--help-query-gpu|--query-(gpu|compute-apps)=[A-Za-z0-9_.,]+|--format=csv,noheader", re.ASCII
)


class Shell(Protocol):
    """Carries the words to a guest's shell, and what it prints back."""

    async def ask(self, words: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run the script with these words, to its end.

        Raises:
            ChannelTimeoutError: if it did not end in time.
            ChannelError: if it could not be run, or printed more than `max_output_bytes` on either stream.
        """
        ...


@cache
def script() -> str:
    """Return the script's text."""
    return files(__package__).joinpath(NAME).read_text(encoding="ascii")


def is_plain(word: str) -> bool:
    """Tell whether a word survives being split at blanks by a shell that does nothing else to it."""
    return _PLAIN.fullmatch(word) is not None


def check_command(argv: Sequence[str]) -> None:
    """Refuse what is not one of the fixed commands.

    Raises:
        ChannelError: if it is another one.
    """
    smi = argv[0] == "nvidia-smi" and all(_SMI.fullmatch(argument) for argument in argv[1:])
    if not smi and tuple(argv) != ("gpufleet", "snapshot", "--format", "json"):
        raise ChannelError(f"{' '.join(argv)[:200]}: is not asked of guests", ChannelProblem.NOT_PERMITTED)


_CODE = re.compile(rb"([0-9]{1,3})\n", re.ASCII)
_MAX_CODE = 4
"""Bytes of an exit code and its line's end."""


class Answer:
    """What is printed for one question, as it comes."""

    def __init__(self, words: Sequence[str], *, max_output_bytes: int) -> None:
        """Take the question.

        Args:
            words: the script's, plain ones.
            max_output_bytes: what either stream may carry.
        """
        mark = secrets.token_hex(8)
        self.line = " ".join((mark, *words)).encode("ascii") + b"\n"
        self._out = _Stream(f"{mark}\n".encode("ascii"), mark, max_output_bytes)
        self._err = _Stream(b"", mark, max_output_bytes)

    def take(self, piece: bytes, *, error: bool) -> ExecResult | None:
        """Take what came on standard output, or on standard error; return the answer once it is whole.

        Raises:
            TooMuchError: if it is more than it may be.
            WireError: if it is no answer to this question.
        """
        (self._err if error else self._out).take(piece)
        if self._out.code is None or self._err.code is None:
            return None
        return ExecResult(exit_code=self._out.code, stdout=self._out.printed, stderr=self._err.printed)


class _Stream:
    """One stream of it, from its start to a line of the mark and the exit code."""

    def __init__(self, start: bytes, mark: str, most: int) -> None:
        self._start, self._end, self._most = start, f"\n{mark} ".encode("ascii"), most
        self._came = bytearray()
        self.code: int | None = None
        self.printed = b""

    def take(self, piece: bytes) -> None:
        if self.code is not None:
            raise WireError("session", "something came after the end of the answer")
        start, end, came = self._start, self._end, self._came
        looked = max(len(start), len(came) - len(end) - _MAX_CODE)
        came += piece
        if not came.startswith(start[: len(came)]):
            raise WireError("session", "what came is no answer to this question")
        at = came.find(end, looked)
        if (at if at >= 0 else len(came) - len(end)) - len(start) > self._most:
            raise TooMuchError
        code = bytes(came[at + len(end) :]) if at >= 0 else b""
        if b"\n" not in code and len(code) < _MAX_CODE:
            return  # the rest is on its way
        if not (found := _CODE.fullmatch(code)):
            raise WireError("session", "something came after the end of the answer")
        self.code, self.printed = int(found[1]), bytes(came[len(start) : at])
        came.clear()


MAX_BYTES = 4 << 20
"""Of one answer, however much the asker would take: sixteen GPUs print less than 1 MB of XML."""

WAY_SECONDS = 2.0
"""What the way there and back may take of a command's time; the guest itself ends the command before."""


class ShellExec:
    """The Exec port over a guest's shell: nvidia-smi's questions, and `gpufleet snapshot`."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        """Run one of the fixed commands; see `Exec.run`."""
        check_command(argv)
        seconds = max(1, math.ceil(timeout_seconds - WAY_SECONDS))
        done = await self._shell.ask(
            ("run", str(seconds), *argv),
            timeout_seconds=timeout_seconds,
            max_output_bytes=min(max_output_bytes, MAX_BYTES),
        )
        if done.exit_code in TIMED_OUT:
            words = f"{argv[0]} did not end within {seconds} s, and the guest ended it"
            raise ChannelTimeoutError(words, ChannelProblem.TIMEOUT)
        return done
