"""The time in which a hub could hear: silence at any other time is the hub's own fault."""

from gpufleet.hub.liveness.past import Past
from gpufleet.ports import Clock

STANDSTILL_SECONDS = 5.0
"""A longer pause between two looks at the clock means that this process stood still."""

DEAF_SECONDS = 60.0
"""So long after a batch was turned away for the hub's own sake is no silence counted, unless another one is taken.

Whoever was turned away tries again within 15 s (`sending/backoff.py`)."""


LOOK_SECONDS = 1.0
"""What is known of the past is as old as this, at most, where the clock is looked at all the time."""


class Listening:
    """Counts seconds on the monotonic clock, but those in which the hub stood still or turned batches away.

    Lives on one thread, and must be looked at more often than `STANDSTILL_SECONDS`: `watch` does that.
    """

    def __init__(self, clock: Clock, past: Past | None = None) -> None:
        """Take the clock, and when earlier processes could hear."""
        past = past or Past()
        self._clock = clock
        self._before = past.seconds
        self._past = past.begun(clock.now_ns())
        self._kept = clock.monotonic()
        self._looked = clock.monotonic()
        self._deaf_until = self._looked
        self._heard = 0.0
        self._deaf = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the start in which it could hear."""
        now = self._clock.monotonic()
        passed = now - self._looked
        could = 0.0 if passed > STANDSTILL_SECONDS else max(0.0, now - max(self._looked, self._deaf_until))
        self._heard += could
        self._deaf += passed - could
        self._looked = now
        if now - self._kept >= LOOK_SECONDS:  # of looks that follow each other closely none would show it was deaf
            self._past, self._kept = self._until_now(), now
        return self._heard

    @property
    def past(self) -> Past:
        """When this process and those before it could hear, until now."""
        _ = self.seconds
        return self._until_now()

    def _until_now(self) -> Past:
        return self._past.looked(self._clock.now_ns(), self._before + self._heard)

    @property
    def deaf_seconds(self) -> float:
        """Seconds since the start in which it could not."""
        _ = self.seconds
        return self._deaf

    @property
    def is_deaf(self) -> bool:
        """Whether it turned batches away just now, and took none since."""
        return self._clock.monotonic() < self._deaf_until

    def turned_away(self) -> None:
        """Note that a batch was turned away for the hub's own sake."""
        _ = self.seconds
        self._deaf_until = self._looked + DEAF_SECONDS

    def took(self) -> None:
        """Note that a batch was taken."""
        _ = self.seconds
        self._deaf_until = min(self._deaf_until, self._looked)
