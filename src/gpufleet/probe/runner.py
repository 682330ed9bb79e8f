"""Execution of fixed commands, with their records and bounded outputs.

`CommandRunner` is the only place that runs commands of a probe or a capture. It needs an `Exec` channel. It refuses
every command outside its groups of `model.commands`, so that nothing else runs on any channel.
"""

import datetime as dt
import hashlib

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.commands import CommandGroup, command_group, refusal
from gpufleet.model.errors import ChannelError, ChannelProblem, ChannelTimeoutError
from gpufleet.model.text import bounded
from gpufleet.ports.channel import Exec, ExecResult
from gpufleet.ports.clock import Clock
from gpufleet.probe.records import MAX_OUTPUT_TEXT, CommandRecord, RawOutput

MAX_OUTPUT_BYTES = 1 << 20
"""Maximum output of a command, for each stream. Beyond it the command has no result."""

MAX_SECONDS = 3600.0
"""Maximum time of a capture. After it no command is started: a hanging machine costs this time at most."""

MAX_TOTAL_TEXT = 4 << 20
"""Maximum size of all outputs in a document, in bytes of JSON. Beyond it outputs have a digest but no text."""

_MAX_ENCODED = 6
"""Bytes of JSON of a control character, the longest of all characters."""

PROBED = frozenset({CommandGroup.RUN, CommandGroup.PROBE})
"""Groups of commands of the probe."""


class FixedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Command with its limits.

    Attributes:
        name: name in the document.
        argv: program and arguments.
        timeout_seconds: time limit.
        tool_version: of the program, if known.
    """

    name: str
    argv: tuple[str, ...]
    tool_version: str = ""
    timeout_seconds: float = 10.0


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a command.

    Attributes:
        result: None if the command did not run to completion.
        seconds: its duration.
        absent: why there is no result, or why a missing program or permission prevented it; None after any other exit.
    """

    result: ExecResult | None
    seconds: float
    absent: Absent | None


class CommandRunner:
    """Runs commands one after another, and collects their records and outputs.

    Args:
        channel: runs the commands.
        clock: clock of the records.
        groups: permitted groups of commands.
    """

    def __init__(self, channel: Exec, clock: Clock, groups: frozenset[CommandGroup] = PROBED) -> None:
        self._channel = channel
        self._groups = groups
        self._clock = clock
        self._deadline = clock.monotonic() + MAX_SECONDS
        self._text_left = MAX_TOTAL_TEXT
        self.records: list[CommandRecord] = []
        self.outputs: dict[str, RawOutput] = {}

    async def run(self, command: FixedCommand) -> CommandOutcome:
        """Run a command to completion and record it. Failures are outcomes; past the time limit there is no record."""
        started_at = dt.datetime.fromtimestamp(self._clock.now_ns() / 1e9, dt.UTC)
        start = self._clock.monotonic()
        if start > self._deadline:
            late = Absent(Reason.TIMEOUT, f"the capture exceeded {MAX_SECONDS:g} s: not started")
            return CommandOutcome(result=None, seconds=0.0, absent=late)
        result: ExecResult | None = None
        absent: Absent | None = None
        try:
            if command_group(command.argv) not in self._groups:
                raise ChannelError(refusal(command.argv), ChannelProblem.NOT_PERMITTED)
            result = await self._channel.run(
                command.argv, timeout_seconds=command.timeout_seconds, max_output_bytes=MAX_OUTPUT_BYTES
            )
        except ChannelTimeoutError as error:
            absent = Absent(Reason.TIMEOUT, bounded(str(error), 1024))
        except ChannelError as error:
            is_refused = error.problem is ChannelProblem.NOT_PERMITTED
            absent = Absent(Reason.NOT_PERMITTED if is_refused else Reason.READER_FAILED, bounded(str(error), 1024))
        seconds = max(0.0, self._clock.monotonic() - start)
        if result is not None and result.exit_code in (126, 127):
            absent = _missing(command.argv[0], result)
        self.records.append(
            CommandRecord(
                name=command.name,
                argv=command.argv,
                tool_version=command.tool_version,
                started_at=started_at,
                duration_seconds=seconds,
                exit_code=None if result is None else result.exit_code,
                stdout=None if result is None else self._store(result.stdout),
                stderr=None if result is None else self._store(result.stderr),
                absent=None if absent is None else absent.reason,
                detail="" if absent is None else absent.detail,
            )
        )
        return CommandOutcome(result=result, seconds=seconds, absent=absent)

    def _store(self, output: bytes) -> str:
        """Store an output and return its digest. Equal outputs are stored once."""
        digest = hashlib.sha256(output).hexdigest()
        if digest not in self.outputs:
            room = min(MAX_OUTPUT_TEXT, self._text_left)
            whole = output[: 4 * room].decode("utf-8", errors="replace")
            text = whole[:room]
            if _encoded_bytes(text) > self._text_left:
                text = text[: self._text_left // _MAX_ENCODED]
            self._text_left -= _encoded_bytes(text)
            is_cut = len(output) > 4 * room or len(text) < len(whole)
            self.outputs[digest] = RawOutput(bytes=len(output), text=text, truncated=is_cut)
        return digest


def _encoded_bytes(text: str) -> int:
    return len(msgspec.json.encode(text)) - 2  # without quotation marks


def _missing(program: str, result: ExecResult) -> Absent:
    if result.exit_code == 127:
        return Absent(Reason.NOT_ENABLED, message_of(result) or f"{program} is not installed")
    return Absent(Reason.NOT_PERMITTED, message_of(result) or f"no permission to run {program}")


def message_of(result: ExecResult) -> str:
    """Return the last lines that a failed command printed, as one bounded line; standard error comes first."""
    for output in (result.stderr, result.stdout):
        lines = [line.strip() for line in output[-4096:].decode("utf-8", errors="replace").splitlines()]
        text = "; ".join(bounded(line, 200) for line in lines[-6:] if line)
        if text:
            return bounded(text, 1000)
    return ""


def failure_of(program: str, result: ExecResult) -> Absent:
    """Return the absence of a command that ended with a failure."""
    return Absent(Reason.READER_FAILED, f"{program} exited with code {result.exit_code}: {message_of(result)}"[:1024])
