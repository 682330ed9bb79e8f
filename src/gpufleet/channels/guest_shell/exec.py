"""The fixed commands in a guest."""

import math
from collections.abc import Sequence

from gpufleet.channels.guest_shell.words import TIMED_OUT, Shell, check_command
from gpufleet.model.channel import ChannelProblem
from gpufleet.model.errors import ChannelTimeoutError
from gpufleet.ports import ExecResult

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
