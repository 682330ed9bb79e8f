"""How a reader is doing, and what a sender says of itself."""

import enum

import msgspec

from gpufleet.model.catalogue.metric import Lane


class ReaderState(enum.StrEnum):
    """What the last pass of a reader's lane came to. A name that a newer build has and this one not is `UNKNOWN`."""

    OK = "ok"
    PARTIAL = "partial"  # some devices answered, some did not
    FAILED = "failed"
    NEVER = "never"  # not completed a pass yet
    UNKNOWN = "unknown"  # a newer build has a name for it that this one does not know

    @classmethod
    def _missing_(cls, value: object) -> "ReaderState | None":
        return cls.UNKNOWN if isinstance(value, str) else None


class ReaderStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One lane of one reader on one machine.

    Attributes:
        reader, lane: which.
        state: what the last pass came to.
        interval_seconds: how often it is meant to run.
        last_attempt: nanoseconds since 1970 when the last pass began, or None.
        last_success: when a pass last ended ok or partial, or None.
        duration_seconds: how long the last pass took.
        failures: passes in a row that failed.
        error_class: short class of the last error for counting (`timeout`, a `Reason`, an exception's
            name); empty after success.
        last_error: the words of the last error, the driver's own where there are any; kept until a
            pass succeeds.
    """

    reader: str
    lane: Lane
    state: ReaderState
    interval_seconds: float
    last_attempt: int | None = None
    last_success: int | None = None
    duration_seconds: float = 0.0
    failures: int = 0
    error_class: str = ""
    last_error: str = ""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sender's word that it lives, sent even when there is no data.

    Attributes:
        interval_seconds: when the next one may be expected.
        version: of gpufleet.
        started_at: nanoseconds since 1970 when the process started.
        config_hash: of the configuration in force.
        queue_records, queue_bytes: what waits in the spool.
        oldest_unsent: nanoseconds since 1970 of the oldest unsent measurement, or None.
        dropped_total: records dropped since the epoch began.
        answered_at: of a target that is asked and does not speak by itself: nanoseconds since 1970, by the clock of who
            asks, when it last answered; 0 where it never did. None for everyone else.
    """

    interval_seconds: float
    version: str
    started_at: int
    config_hash: str = ""
    queue_records: int = 0
    queue_bytes: int = 0
    oldest_unsent: int | None = None
    dropped_total: int = 0
    answered_at: int | None = None
