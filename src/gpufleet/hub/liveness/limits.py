"""Times without heartbeat after which something is late, stale or lost. Pure."""

import functools

import msgspec

from gpufleet.model.liveness import State

DEFAULT_INTERVAL_SECONDS = 30.0
"""Assumed interval of a sender that never declared one."""

SLACK_SECONDS = 15.0
"""Additional delay allowed for two missed reports: a retry, a slow network."""

MAX_LATE_SECONDS = 1200.0
MIN_STALE_SECONDS = 300.0
LOST_SECONDS = 3600.0
"""Time without heartbeat after which everything is lost, whatever its interval."""


class LivenessLimits(msgspec.Struct, frozen=True):
    """Seconds without heartbeat after which something is late or stale."""

    late: float
    stale: float


@functools.lru_cache(maxsize=1024)
def limits_of(interval_seconds: float | None) -> LivenessLimits:
    """Return the limits for a report interval: `late` is at most 1200 s, `stale` at most 2400 s."""
    interval = DEFAULT_INTERVAL_SECONDS if interval_seconds is None else interval_seconds
    late = min(2 * interval + SLACK_SECONDS, MAX_LATE_SECONDS)
    return LivenessLimits(late=late, stale=max(MIN_STALE_SECONDS, 2 * late))


def state_after(unseen_seconds: float, limits: LivenessLimits) -> State:
    """Return the state after this time without heartbeat."""
    if unseen_seconds >= LOST_SECONDS:
        return State.LOST
    if unseen_seconds >= limits.stale:
        return State.STALE
    return State.LATE if unseen_seconds >= limits.late else State.LIVE
