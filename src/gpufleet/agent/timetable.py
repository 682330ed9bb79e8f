"""When each lane of a reader is due. Pure: the instants are given."""

import math
from collections.abc import Mapping

from gpufleet.model.catalogue.metric import Lane

FIRST_PASS_ORDER = (Lane.STATIC, Lane.SLOW, Lane.FAST, Lane.EVENT)
"""Lanes that are due together run in this order: identity before what changes."""


class Timetable:
    """Every lane is due at once, and then at whole intervals from the start: late passes do not move later ones.

    An instant that is missed, because a pass took longer than its interval, is not made up for.
    """

    def __init__(self, intervals: Mapping[Lane, float], start: float) -> None:
        """Take the seconds between passes of each lane, and the start by the monotonic clock."""
        self._intervals = dict(intervals)
        self._start = start
        self._due = {lane: start for lane in FIRST_PASS_ORDER if lane in intervals}

    def next(self) -> tuple[float, Lane]:
        """Return the earliest instant at which a lane is due, and that lane."""
        lane = min(self._due, key=lambda candidate: self._due[candidate])
        return self._due[lane], lane

    def done(self, lane: Lane, now: float) -> None:
        """Say that a pass of the lane ended at `now`."""
        interval = self._intervals[lane]
        self._due[lane] = self._start + interval * (math.floor((now - self._start) / interval) + 1)
