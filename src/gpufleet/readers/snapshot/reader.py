"""The snapshot reader: what gpufleet prints on another machine, as samples of it."""

from gpufleet.codecs.snapshot_json import decode_snapshot
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
        channel: runs the command there.
        clock: names the instant of each pass.
        timeout_seconds: a command that takes longer hangs.
    """

    def __init__(self, channel: Exec, clock: Clock, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._channel, self._clock, self._timeout = channel, clock, timeout_seconds

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
            ReaderError: if gpufleet is not there, fails, prints something else, or shows no GPU; then with the words
                of its own reader.
        """
        printed = await fetch(self._channel, self._timeout)
        try:
            snapshot = decode_snapshot(printed)
        except WireError as error:
            raise ReaderError(Reason.READER_FAILED, f"gpufleet there prints no snapshot: {error}") from error
        samples = samples_of(snapshot, lane, self._clock.now_ns())
        if not any(sample.view is not None for sample in samples):
            why = why_no_gpu(snapshot)
            raise ReaderError(why.reason, why.detail)
        return Round(samples=samples)

    async def close(self) -> None:
        """Nothing is held."""
