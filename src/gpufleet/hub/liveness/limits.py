"""After how much silence something is late, stale, lost. Pure."""

import functools

import msgspec

from gpufleet.model.liveness import State

UNSAID_INTERVAL_SECONDS = 30.0
"""The interval of a sender that never said its own."""

SLACK_SECONDS = 15.0
"""What two missed words may be late in addition: a retry, a slow way."""

LONGEST_LATE_SECONDS = 1200.0
LEAST_STALE_SECONDS = 300.0
LOST_SECONDS = 3600.0
"""Whoever is silent for so long is lost, whatever interval it declared."""


class Limits(msgspec.Struct, frozen=True):
    """Seconds of silence from which on something is late and stale."""

    late: float
    stale: float


@functools.lru_cache(maxsize=1024)
def limits_of(interval_seconds: float | None) -> Limits:
    """Return the limits of something that speaks in this interval: `late` up to 1200 s, `stale` up to 2400 s."""
    interval = UNSAID_INTERVAL_SECONDS if interval_seconds is None else interval_seconds
    late = min(2 * interval + SLACK_SECONDS, LONGEST_LATE_SECONDS)
    return Limits(late=late, stale=max(LEAST_STALE_SECONDS, 2 * late))


def judge(silent_seconds: float, limits: Limits) -> State:
    """Return the state after so much silence."""
    if silent_seconds >= LOST_SECONDS:
        return State.LOST
    if silent_seconds >= limits.stale:
        return State.STALE
    return State.LATE if silent_seconds >= limits.late else State.LIVE
