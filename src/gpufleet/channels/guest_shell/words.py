"""The words of `gpufleet-guest`, and who carries them.

The script is one: a guest has it as the forced command of a key, or gets it with each question.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Protocol

from gpufleet.model.channel import ChannelProblem
from gpufleet.model.errors import ChannelError
from gpufleet.ports import ExecResult

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
