"""Exec channel with scripted results."""

from collections.abc import Callable, Sequence

from gpufleet.model.errors import ChannelError
from gpufleet.ports.channel import ExecResult

Answer = ExecResult | ChannelError | Callable[[Sequence[str]], ExecResult]


def printed(stdout: str | bytes, *, code: int = 0, stderr: str = "") -> ExecResult:
    """Return the result of a command."""
    content = stdout.encode() if isinstance(stdout, str) else stdout
    return ExecResult(exit_code=code, stdout=content, stderr=stderr.encode())


class FakeCommands:
    """Exec over results by the beginning of a command line; the longest counts. Other commands are missing."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, Answer] = dict(answers)
        self.calls: list[tuple[str, ...]] = []

    async def run(self, argv: Sequence[str], *, timeout_seconds: float, max_output_bytes: int) -> ExecResult:
        self.calls.append(tuple(argv))
        line = " ".join(argv)
        known = [start for start in self.answers if line == start or line.startswith(start + " ")]
        if not known:
            return printed("", code=127, stderr=f"{argv[0]}: not found\n")
        answer = self.answers[max(known, key=len)]
        if isinstance(answer, ChannelError):
            raise answer
        result = answer if isinstance(answer, ExecResult) else answer(argv)
        if max(len(result.stdout), len(result.stderr)) > max_output_bytes:
            raise ChannelError(f"{argv[0]} printed more than {max_output_bytes} bytes")
        return result
