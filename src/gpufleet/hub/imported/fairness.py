"""What is scarce, shared out: nobody gets more than another who wants more, and nothing is left that somebody wants."""

from collections.abc import Iterable


def fair_share(wants: Iterable[int], room: int) -> int:
    """Return the most that each gets, so that all together get `room` at most; `room` where all get what they want."""
    left, in_order = room, sorted(wants)
    for number, want in enumerate(in_order):
        share = left // (len(in_order) - number)
        if want > share:
            return share
        left -= want
    return room
