"""The order of a sender's reports, by the hub's clock: the sender's may be set back, and late word is not new. Pure."""

import bisect

from gpufleet.model.ledger import Ranges

STEP_NS = 1000
"""Between the places of two neighbouring numbers: so many instants of one batch can be told apart."""

GAPS_KEPT = 64
"""Gaps whose ends are remembered, the highest. What still arrives for a lower one is older than everything."""

LONGEST_GAP = 10**9
"""Numbers of one gap that have a place of their own."""


class Order:
    """Places of the numbers of one run: they grow with the numbers, in whatever order those arrive.

    A number in a gap lies below the one that ended the gap, by one step a number.

    Attributes:
        gaps: numbers that ended a gap, with their places, lowest first.
        top: the highest number with its place, or None.
    """

    def __init__(self, gaps: Ranges = (), top: tuple[int, int] | None = None) -> None:
        """Take what an earlier order's attributes were."""
        self.gaps = gaps
        self.top = top

    def place(self, number: int, at: int | None) -> int:
        """Return a number's place, in nanoseconds since 1970, and remember it if it is the highest.

        Args:
            number: of the run.
            at: the least place that news may have, or None for backlog.
        """
        if self.top is None or number > self.top[0]:
            return self._append(number, at)
        upper = bisect.bisect_left(self.gaps, (number, 0))
        if upper == len(self.gaps):
            return self.top[1]
        end, place = self.gaps[upper]
        if upper == 0 and len(self.gaps) == GAPS_KEPT:
            return min(number, LONGEST_GAP) * STEP_NS  # perhaps of a gap that was forgotten
        return max(1, place - min(end - number, LONGEST_GAP) * STEP_NS)

    def _append(self, number: int, at: int | None) -> int:
        if self.top is None:
            ahead, place = number, at or min(number, LONGEST_GAP) * STEP_NS
        else:
            ahead = number - self.top[0]
            place = max(at or 0, self.top[1] + min(ahead, LONGEST_GAP) * STEP_NS)
        if ahead > 1:
            self.gaps = (*self.gaps, (number, place))[-GAPS_KEPT:]
        self.top = (number, place)
        return place
