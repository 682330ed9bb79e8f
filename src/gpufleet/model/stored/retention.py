"""Retention by resolution, and the validity of a reading in aggregates."""

import enum

import msgspec

from gpufleet.model.catalogue.metric import Lane


class Resolution(enum.StrEnum):
    """Resolution of an answer over time; the coarsest if several contributed."""

    RAW = "raw"  # every sample
    MINUTE = "1m"
    HOUR = "1h"


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Days after which rows expire, by the time of measurement; holdings by the time of their last report.

    Attributes:
        raw_days: samples, values with dimensions, process lists; 0 keeps them permanently.
        rollup_1m_days: 1-minute rollups; 0 disables them.
        rollup_1h_days: 1-hour rollups, hourly usage and holdings; 0 keeps them permanently.
    """

    raw_days: int = 30
    rollup_1m_days: int = 90
    rollup_1h_days: int = 1100

    @property
    def keeps_minutes(self) -> bool:
        """Return whether 1-minute rollups are enabled."""
        return self.rollup_1m_days > 0


UNLIMITED_DAYS = 36_500
"""Days that count as unlimited: more than 50 years are kept permanently."""

UNLIMITED = Retention(raw_days=0, rollup_1m_days=UNLIMITED_DAYS, rollup_1h_days=0)


READING_VALID_SECONDS = {Lane.FAST: 120, Lane.SLOW: 300, Lane.STATIC: 1500, Lane.EVENT: 120}
"""Seconds by lane for which a reading holds if no newer sample of its lane follows; after that nothing is known."""

MAX_COUNTER_GAP_SECONDS = 1500
"""Longest time between two readings of a counter over which its increase is distributed."""
