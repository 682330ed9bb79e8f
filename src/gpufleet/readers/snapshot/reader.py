"""The snapshot reader: converts the output of `gpufleet snapshot` on another machine to samples."""

from gpufleet.codecs.snapshot_json import decode_snapshot
from gpufleet.fleet.device_events import DeviceStates
from gpufleet.fleet.snapshots import judge_snapshot
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError, WireError
from gpufleet.model.reading import Round
from gpufleet.ports.channel import Exec
from gpufleet.ports.clock import Clock
from gpufleet.readers.snapshot.fetch import fetch
from gpufleet.readers.snapshot.mapping import NAME, samples_of, why_no_gpu

TIMEOUT_SECONDS = 15.0


class SnapshotReader:
    """Reads the GPUs of the machine at the other end of a channel, where gpufleet is installed.

    Args:
        channel: channel to the machine.
        clock: wall clock.
        timeout_seconds: maximum duration of the command.
    """

    def __init__(self, channel: Exec, clock: Clock, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._channel, self._clock, self._timeout = channel, clock, timeout_seconds
        self._states = DeviceStates(NAME)

    @property
    def name(self) -> str:
        """Return `snapshot`."""
        return NAME

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return static, fast and slow."""
        return (Lane.STATIC, Lane.FAST, Lane.SLOW)

    async def read(self, lane: Lane) -> Round:
        """Make one pass of one lane.

        Raises:
            ReaderError: if gpufleet is not installed, fails, prints something else, or found no GPU. The last contains
                the error of its own reader.
        """
        output = await fetch(self._channel, self._timeout)
        try:
            snapshot = judge_snapshot(decode_snapshot(output))
        except WireError as error:
            raise ReaderError(Reason.READER_FAILED, f"gpufleet there did not print a snapshot: {error}") from error
        samples = samples_of(snapshot, lane, self._clock.now_ns())
        if not any(sample.view is not None for sample in samples):
            why = why_no_gpu(snapshot)
            raise ReaderError(why.reason, why.detail)
        return Round(samples=samples, events=tuple(self._states.change_by_samples(samples)))

    async def close(self) -> None:
        """Do nothing: the reader holds no resources."""
