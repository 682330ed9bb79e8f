"""Sources of observations: the port of `gpufleet top`, and recordings."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from gpufleet.model.errors import GpufleetError, RecordingError
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.recording.reader import RecordingReader
from gpufleet.top.observation import Observation, observe_recorded

MIN_SPEED, MAX_SPEED = 0.125, 1024.0


class TopSource(Protocol):
    """Source of observations."""

    async def poll(self) -> Observation:
        """Return the newest observation.

        Raises:
            GpufleetError: if there is none now; the next poll may succeed.
        """
        ...


class Playback:
    """Observations of a recording, of one machine or several, at a playing time, which moves with the monotonic clock.

    Attributes:
        speed: recorded seconds per second.
        is_paused: whether the playing time stands still.
    """

    def __init__(
        self, reader: RecordingReader, start: int, monotonic: Callable[[], float], clean: Callable[[Snapshot], Snapshot]
    ) -> None:
        """Start to play.

        Args:
            reader: of the recording, which must have a frame.
            start: playing time at the start, nanoseconds since 1970.
            monotonic: clock.
            clean: removes the metrics that this version does not know from a frame.

        Raises:
            RecordingError: if the recording has no frame.
        """
        if not reader.index.frames:
            raise RecordingError(reader.end, "the recording has no frame")
        self._reader, self._monotonic, self._clean = reader, monotonic, clean
        self._at = start
        self._ticked = monotonic()
        self._shown: tuple[int, Observation] | None = None
        self.speed = 1.0
        self.is_paused = False
        self.skip(0)

    async def poll(self) -> Observation:
        """Return the observation at the playing time."""
        self._advance()
        try:
            return await asyncio.to_thread(self._observe, self._at)
        except OSError as error:
            raise GpufleetError(f"cannot read the recording: {error.strerror or error}") from error

    def _observe(self, at: int) -> Observation:
        offset = self._reader.seek(at)
        if self._shown is None or self._shown[0] != offset:
            poll = self._reader.poll(offset)
            if not poll.snapshots:
                raise poll.problems[0] if poll.problems else RecordingError(offset, "the frame is damaged")
            machines = [self._clean(one) for one in poll.snapshots]
            self._shown = offset, observe_recorded(machines, [f"recording, {one}" for one in poll.problems])
        return self._shown[1]

    @property
    def mode(self) -> str:
        """State of the playback as a text."""
        state = "paused" if self.is_paused else f"{self.speed:g}x"
        end = ", end" if self._at >= self._reader.index.latest_at else ""
        return f"replay {to_datetime(self._at):%Y-%m-%d %H:%M:%S} UTC, {state}{end}"

    def toggle_pause(self) -> None:
        """Pause, or continue."""
        self._advance()
        self.is_paused = not self.is_paused

    def change_speed(self, factor: float) -> None:
        """Multiply the speed, within limits."""
        self._advance()
        self.speed = min(MAX_SPEED, max(MIN_SPEED, self.speed * factor))

    def skip(self, seconds: float) -> None:
        """Move the playing time by recorded seconds, within the recording."""
        self._advance()
        index = self._reader.index
        self._at = min(index.latest_at, max(index.first_at, self._at + int(seconds * NANOS)))

    def _advance(self) -> None:
        now = self._monotonic()
        if not self.is_paused:
            passed = int((now - self._ticked) * self.speed * NANOS)
            self._at = min(self._reader.index.latest_at, self._at + passed)
        self._ticked = now
