"""XIDs of GPUs at every step of an interval in the past. Pure."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpufleet.fleet.facts.metrics import EVENT_SECONDS, is_reset
from gpufleet.model.event import EventKind
from gpufleet.model.stored.samples import StoredEvent
from gpufleet.model.time import NANOS

XidCounts = Mapping[int, Mapping[int, int]]
"""Row to XID to its number."""


def past_xids(
    views: Sequence[str], steps: Sequence[int], events: Iterable[StoredEvent], boots: Iterable[int]
) -> XidCounts:
    """Return the XIDs since the last reset, within 24 h, of each row with some.

    Args:
        views: view keys of the GPUs. Rows are numbered by step, then by GPU.
        steps: time of each step, nanoseconds since 1970. Only earlier events count.
        events: events of the machine, of the kinds `XID_EVENTS`.
        boots: times of boots of the machine, nanoseconds since 1970.
    """
    every = sorted(events, key=lambda one: one.at)
    of_machine = [*boots, *(one.at for one in every if is_reset(one.kind, one.code) and one.view is None)]
    counts: dict[int, Mapping[int, int]] = {}
    for place, view in enumerate(views):
        own = [one for one in every if one.view == view]
        resets = sorted([*of_machine, *(one.at for one in own if is_reset(one.kind, one.code))])
        xids = [one for one in own if one.kind == EventKind.XID]
        for step, codes in _codes_at(steps, xids, resets):
            counts[step * len(views) + place] = codes
    return counts


def _codes_at(
    steps: Sequence[int], xids: Sequence[StoredEvent], resets: Sequence[int]
) -> Iterator[tuple[int, Mapping[int, int]]]:
    """Yield the number of each step with XIDs, and their codes. `xids` and `resets` are in order of time."""
    times = [one.at for one in xids]
    for number, now in enumerate(steps if xids else ()):
        reset = bisect_left(resets, now)
        since = max(now - int(EVENT_SECONDS * NANOS), resets[reset - 1] if reset else 0)
        codes = Counter(one.code for one in xids[bisect_right(times, since) : bisect_left(times, now)])
        if codes:
            yield number, codes
