"""How old a sample may be before it is no longer current."""

from collections.abc import Sequence

from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored import StoredSample
from gpufleet.model.time import NANOS

MISSED_PASSES = 3
"""Passes of a lane that may be missed before its values are stale."""

LONGEST_SECONDS = 3600.0
"""However slow a sender says its lane is, nothing older is current."""

LANE_SECONDS = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0, Lane.EVENT: 10.0}
"""Intervals of lanes whose reader has not said its own."""


class Freshness:
    """Judges samples of one machine by the hub's clock on receipt."""

    def __init__(self, now: int, stale_after_seconds: float, readers: Sequence[ReaderStatus]) -> None:
        self._now = now
        self._stale_after = stale_after_seconds
        self._intervals = {(one.reader, one.lane): one.interval_seconds for one in readers}

    def age_seconds(self, received_at: int) -> float:
        """Return seconds since receipt; a clock that was stepped back gives 0."""
        return max(0, self._now - received_at) / NANOS

    def is_heard(self, received_at: int) -> bool:
        """Tell whether something received then shows that its machine is heard of now."""
        return not self._is_ahead(received_at) and self.age_seconds(received_at) <= self._stale_after

    def is_current(self, stored: StoredSample) -> bool:
        """Tell whether the sample's values are current, by the interval of its lane."""
        sample = stored.sample
        passes = MISSED_PASSES * self.interval_of(sample)
        limit = min(max(self._stale_after, passes), max(LONGEST_SECONDS, self._stale_after))
        return not self._is_ahead(stored.received_at) and self.age_seconds(stored.received_at) <= limit

    def interval_of(self, sample: Sample) -> float:
        """Return how often the lane of a sample is read, in seconds."""
        return self._intervals.get((sample.reader, sample.lane), LANE_SECONDS[sample.lane])

    def _is_ahead(self, received_at: int) -> bool:
        """Tell whether it was received before the hub's clock was set back: its age is not known."""
        return received_at - self._now > self._stale_after * NANOS
