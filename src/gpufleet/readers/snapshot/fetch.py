"""The command, over any channel that can run it."""

from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelTimeoutError, ReaderError
from gpufleet.model.text import clean
from gpufleet.ports.channel import Exec

COMMAND = ("gpufleet", "snapshot", "--format", "json")

MAX_OUTPUT_BYTES = 4 << 20
"""Sixteen GPUs of seven MIG devices are less than 2 MB."""

NOT_THERE = 127


async def fetch(channel: Exec, timeout_seconds: float) -> bytes:
    """Return what it prints.

    Raises:
        ReaderError: if it is not there, fails or takes too long.
    """
    try:
        done = await channel.run(COMMAND, timeout_seconds=timeout_seconds, max_output_bytes=MAX_OUTPUT_BYTES)
    except ChannelTimeoutError as error:
        raise ReaderError(Reason.TIMEOUT, str(error)) from error
    except ChannelError as error:
        raise ReaderError(Reason.READER_FAILED, str(error)) from error
    if done.exit_code == NOT_THERE:
        raise ReaderError(Reason.NOT_ENABLED, "there is no gpufleet")
    if done.exit_code:
        said = clean(done.stderr[:400].decode("utf-8", "replace")).strip() or "it says nothing"
        raise ReaderError(Reason.READER_FAILED, f"gpufleet ended with code {done.exit_code}: {said}")
    return done.stdout
