"""Time stamps of samples that the driver keeps in a ring, and gives from a time stamp on.

They are microseconds since 1970 by the machine's clock. Where that was set back, the ring holds samples of times that
have not come: they are of before the step, and not to be taken for the newest. And it holds samples of long ago, of who
has rested since: what is told of a pass is not to be taken from those.
"""

import time

from gpufleet.readers.nvml.context import Context

AHEAD_US = 5_000_000
"""So far ahead of the clock a stamp may be."""

LOOK_BACK_US = 10_000_000
"""So old a sample may be and still be of now: the fast lane's default interval. The driver adds some a second."""


def latest() -> int:
    """Return the greatest stamp that a sample of now can have."""
    return time.time_ns() // 1000 + AHEAD_US


def last_seen(context: Context, function: str) -> int:
    """Return the stamp that samples of now are newer than: the newest taken, or `LOOK_BACK_US` ago if that is later."""
    seen = context.memory.seen.get(function, 0)
    return max(seen if seen <= latest() else 0, time.time_ns() // 1000 - LOOK_BACK_US)
