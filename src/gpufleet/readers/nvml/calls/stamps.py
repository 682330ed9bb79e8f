"""Time stamps of samples that the driver keeps in a ring, and gives from a time stamp on.

They are microseconds since 1970 by the machine's clock. Where that was set back, the ring holds samples of times that
have not come: they are of before the step, and not to be taken for the newest.
"""

import time

from gpufleet.readers.nvml.context import Context

AHEAD_US = 5_000_000
"""So far ahead of the clock a stamp may be."""


def latest() -> int:
    """Return the greatest stamp that a sample of now can have."""
    return time.time_ns() // 1000 + AHEAD_US


def last_seen(context: Context, function: str) -> int:
    """Return the stamp of the newest sample that was taken; 0 for none, or where the clock was set back since."""
    seen = context.memory.seen.get(function, 0)
    return seen if seen <= latest() else 0
