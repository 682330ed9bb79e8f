"""Execution of nvidia-smi over any channel that can run commands."""

from gpufleet.codecs.nvidia_smi import Failure
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError, ChannelTimeoutError
from gpufleet.ports.channel import Exec, ExecResult

MAX_OUTPUT_BYTES = 8 << 20
"""Sixteen GPUs print less than 1 MB of XML."""


class CommandFailedError(Exception):
    """A command gave no usable output; converted to a ReaderError or a partial pass. `failure` has the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class NvidiaSmiCommand:
    """The nvidia-smi command of one machine.

    Args:
        channel: runs the command.
        path: name or path of nvidia-smi on that machine.
        timeout_seconds: timeout of one run; without the persistence daemon eight GPUs take seconds.
    """

    def __init__(self, channel: Exec, *, path: str, timeout_seconds: float) -> None:
        self._channel = channel
        self._path = path
        self._timeout = timeout_seconds

    async def run(self, *arguments: str) -> ExecResult:
        """Run nvidia-smi with arguments.

        Raises:
            CommandFailedError: if the command could not be run, or did not end in time.
        """
        try:
            return await self._channel.run(
                (self._path, *arguments), timeout_seconds=self._timeout, max_output_bytes=MAX_OUTPUT_BYTES
            )
        except ChannelTimeoutError as error:
            raise CommandFailedError(Failure(Reason.TIMEOUT, (str(error),))) from error
        except ChannelError as error:
            raise CommandFailedError(Failure(Reason.READER_FAILED, (str(error),))) from error
