"""XIDs of GPUs at every step of an interval in the past. Pure."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from gpufleet.fleet.facts.metrics import BACK_SECONDS, EVENT_SECONDS, is_loss, reset_after
from gpufleet.model.event import EventKind
from gpufleet.model.stored.samples import StoredEvent
from gpufleet.model.time import NANOS

XidCounts = Mapping[int, Mapping[int, int]]
"""Row to XID to its number."""


def past_xids(
    views: Sequence[str],
    steps: Sequence[int],
    events: Iterable[StoredEvent],
    boots: Iterable[int],
    works: Mapping[str, Sequence[int]],
) -> XidCounts:
    """Return the XIDs since the last reset, within 24 h, of each row with some.

    Args:
        views: view keys of the GPUs. Rows are numbered by step, then by GPU.
        steps: time of each step, nanoseconds since 1970. Only earlier events count.
        events: events of the machine, of the kinds `XID_EVENTS`.
        boots: times of boots of the machine, nanoseconds since 1970.
        works: view key to the times at which the GPU was `ok`, ascending. A GPU that works after a loss had a reset.
    """
    every = sorted(events, key=lambda one: one.at)
    of_machine = [*((at, at) for at in boots), *_resets(one for one in every if one.view is None)]
    counts: dict[int, Mapping[int, int]] = {}
    for place, view in enumerate(views):
        own = [one for one in every if one.view == view]
        ends = [*of_machine, *_resets(own)]
        losses = [one.at for one in own if is_loss(one.kind, one.code)]
        ends += [(back, at) for at in losses if (back := _next(works.get(view, ()), at + BACK_SECONDS * NANOS))]
        xids = [one for one in own if one.kind == EventKind.XID]
        for step, codes in _codes_at(steps, xids, sorted(ends)):
            counts[step * len(views) + place] = codes
    return counts


def _resets(events: Iterable[StoredEvent]) -> list[tuple[int, int]]:
    """Return when each reset that an event proves is known, and the time after which it was."""
    known = ((one.at, reset_after(one.kind, one.code, one.at)) for one in events)
    return [(at, after) for at, after in known if after is not None]


def _next(times: Sequence[int], at: int) -> int | None:
    """Return the first of ascending times from an instant on."""
    place = bisect_left(times, at)
    return times[place] if place < len(times) else None


def _codes_at(
    steps: Sequence[int], xids: Sequence[StoredEvent], ends: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, Mapping[int, int]]]:
    """Yield the number of each step with XIDs, and their codes.

    Args:
        steps: their times.
        xids: in order of time.
        ends: from when on XIDs are over, and the time up to which they are, in order.
    """
    times = [one.at for one in xids]
    known, until = [at for at, _ in ends], list(accumulate((at for _, at in ends), max))
    for number, now in enumerate(steps if xids else ()):
        end = bisect_left(known, now)
        since = max(now - int(EVENT_SECONDS * NANOS), until[end - 1] if end else 0)
        codes = Counter(one.code for one in xids[bisect_right(times, since) : bisect_left(times, now)])
        if codes:
            yield number, codes
