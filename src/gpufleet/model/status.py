"""Status and intervals of readers, and heartbeats of senders."""

import enum

import msgspec

from gpufleet.model.catalogue.metric import Lane

MISSED_PASSES = 3
"""Passes of a lane that may be missed before its values are stale."""

LANE_SECONDS = {Lane.FAST: 10.0, Lane.SLOW: 60.0, Lane.STATIC: 600.0, Lane.EVENT: 10.0}
"""Default intervals of lanes whose reader has not declared its own."""


class ReaderState(enum.StrEnum):
    """Result of the last pass of a reader's lane. A name from a newer build decodes as `UNKNOWN`."""

    OK = "ok"
    PARTIAL = "partial"  # some devices answered, some did not
    FAILED = "failed"
    NEVER = "never"  # no pass completed yet
    UNKNOWN = "unknown"  # a state of a newer build that this build does not know

    @classmethod
    def _missing_(cls, value: object) -> "ReaderState | None":
        return cls.UNKNOWN if isinstance(value, str) else None


class ReaderStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Status of one lane of one reader on one machine.

    Attributes:
        reader, lane: names of both.
        state: result of the last pass.
        interval_seconds: configured interval, or None if none is: nothing reads a capture at intervals.
        last_attempt: nanoseconds since 1970 when the last attempt to read began, or None. A pass without an attempt of
            its own, as in a backoff, has the result and the time of the attempt before.
        last_success: when a pass last ended ok or partial, or None.
        duration_seconds: duration of the last pass, or None if it was not measured.
        failures: consecutive failed passes.
        error_class: short class of the last error for counting (`timeout`, a `Reason`, an exception's
            name); empty after success. On a machine without GPU the state is ok, and class and message stay.
        last_error: message of the last error, the driver's own if it has one; kept until a pass
            succeeds.
    """

    reader: str
    lane: Lane
    state: ReaderState
    interval_seconds: float | None = None
    last_attempt: int | None = None
    last_success: int | None = None
    duration_seconds: float | None = None
    failures: int = 0
    error_class: str = ""
    last_error: str = ""


def lane_interval(status: ReaderStatus) -> float:
    """Return the interval of a reader's lane in seconds, or the default of the lane if none is configured."""
    return LANE_SECONDS[status.lane] if status.interval_seconds is None else status.interval_seconds


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Heartbeat of a sender, sent even without data.

    Attributes:
        interval_seconds: interval to the next heartbeat.
        version: gpufleet version.
        started_at: nanoseconds since 1970 when the process started.
        config_hash: hash of the active configuration.
        queue_records, queue_bytes: backlog in the spool; None if it cannot be opened.
        oldest_unsent: nanoseconds since 1970 of the oldest unsent measurement, or None.
        dropped_total: records dropped since the spool was created; None if it cannot be opened.
        answered_at: time of the last response of a scraped target, nanoseconds since 1970 by the scraper's clock; 0 if
            there was none. None for senders that post themselves.
    """

    interval_seconds: float
    version: str
    started_at: int
    config_hash: str = ""
    queue_records: int | None = 0
    queue_bytes: int | None = 0
    oldest_unsent: int | None = None
    dropped_total: int | None = 0
    answered_at: int | None = None
