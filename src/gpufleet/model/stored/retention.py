"""For how long what was measured is kept, at which resolution, and for how long one reading speaks."""

import enum

import msgspec

from gpufleet.model.catalogue.metric import Lane


class Resolution(enum.StrEnum):
    """What an answer over time was made of: the coarsest, where it was made of several."""

    RAW = "raw"  # every sample
    MINUTE = "1m"
    HOUR = "1h"


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Days after which rows go, by the time at which they were measured.

    Attributes:
        raw_days: every sample, values with dimensions, lists of processes; 0 keeps them for ever.
        minute_days: 1-minute rollups; 0 makes none.
        hour_days: 1-hour rollups, and the hours of usage; 0 keeps them for ever.
    """

    raw_days: int = 30
    minute_days: int = 90
    hour_days: int = 1100

    @property
    def keeps_minutes(self) -> bool:
        """Whether minutes are made at all."""
        return self.minute_days > 0


LONGEST_DAYS = 36_500
"""What is kept for ever where 0 means something else; so is everything that should stay for more than 50 years."""

FOR_EVER = Retention(raw_days=0, minute_days=LONGEST_DAYS, hour_days=0)


SPEAKS_SECONDS = {Lane.FAST: 120, Lane.SLOW: 300, Lane.STATIC: 1500, Lane.EVENT: 120}
"""A reading speaks until the next sample of its lane, and for so long at most; after that nothing is known."""

APART_SECONDS = 1500
"""Between two readings of a counter that are further apart, nothing is known of when it grew."""
