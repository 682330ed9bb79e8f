"""Execution of `gpufleet snapshot` over a channel."""

from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelTimeoutError, ReaderError
from gpufleet.model.text import clean
from gpufleet.ports.channel import Exec

COMMAND = ("gpufleet", "snapshot", "--format", "json")

MAX_OUTPUT_BYTES = 4 << 20
"""Maximum output. Sixteen GPUs with seven MIG devices each take less than 2 MB."""

NOT_FOUND = 127
"""Exit code of a shell for a missing command."""


async def fetch(channel: Exec, timeout_seconds: float) -> bytes:
    """Return the command's output.

    Raises:
        ReaderError: if gpufleet is not installed, fails or exceeds the timeout.
    """
    try:
        done = await channel.run(COMMAND, timeout_seconds=timeout_seconds, max_output_bytes=MAX_OUTPUT_BYTES)
    except ChannelTimeoutError as error:
        raise ReaderError(Reason.TIMEOUT, str(error)) from error
    except ChannelError as error:
        raise ReaderError(Reason.READER_FAILED, str(error)) from error
    if done.exit_code == NOT_FOUND:
        raise ReaderError(Reason.NOT_ENABLED, "gpufleet is not installed there")
    if done.exit_code:
        message = clean(done.stderr[:400].decode("utf-8", "replace")).strip() or "no error message"
        raise ReaderError(Reason.READER_FAILED, f"gpufleet exited with code {done.exit_code}: {message}")
    return done.stdout
