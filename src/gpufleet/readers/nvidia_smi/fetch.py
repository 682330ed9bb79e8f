"""The commands, over any channel that can run them."""

from gpufleet.codecs.nvidia_smi import Failure
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelTimeoutError
from gpufleet.ports.channel import Exec, ExecResult

MAX_OUTPUT_BYTES = 8 << 20
"""Sixteen GPUs print less than 1 MB of XML."""


class Failed(Exception):  # noqa: N818 - an outcome, turned into a ReaderError or a partial pass
    """A command gave nothing that could be read; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.words)
        self.failure = failure


class Command:
    """Asks one nvidia-smi.

    Args:
        channel: where it runs.
        path: its name or path there.
        timeout_seconds: a command that takes longer hangs; without the persistence daemon eight GPUs take seconds.
    """

    def __init__(self, channel: Exec, *, path: str, timeout_seconds: float) -> None:
        self._channel = channel
        self._path = path
        self._timeout = timeout_seconds

    async def run(self, *arguments: str) -> ExecResult:
        """Run it with these arguments.

        Raises:
            Failed: if it could not be run to its end.
        """
        try:
            return await self._channel.run(
                (self._path, *arguments), timeout_seconds=self._timeout, max_output_bytes=MAX_OUTPUT_BYTES
            )
        except ChannelTimeoutError as error:
            raise Failed(Failure(Reason.TIMEOUT, str(error))) from error
        except ChannelError as error:
            raise Failed(Failure(Reason.READER_FAILED, str(error))) from error
