"""Devices of a pod, job or virtual machine over time, from the holdings that machines reported. Pure.

- A certain holding gives its holder the device for as long as it is known to last (`fleet.attribution.reported`). A
  holding that is `unknown` now gives it for the certain time before.
- Two holders that have a device exclusively at the same time contradict each other: neither has it in that time.
- If the earlier of them was last reported before the later one began, its machine lost the report of its end. It ended
  when the later one began.
- A device is shared while it is time-sliced or under MPS, or has another holder.
- An exclusive holder of a GPU and one of a MIG device of it contradict each other, too. Two MIG devices of a GPU are
  independent.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from gpufleet.fleet.attribution.bindings import BoundInterval, validity
from gpufleet.fleet.attribution.claims import HeldDevices, devices_overlap
from gpufleet.fleet.attribution.evidence import SHARED
from gpufleet.fleet.attribution.holder_targets import names_holder
from gpufleet.fleet.attribution.reported import by_certainty, is_certain, known_until
from gpufleet.model.allocation import Allocation
from gpufleet.model.holdings import HolderKind, Holding, HoldingVerdict, Share
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.time import LATEST
from gpufleet.model.view import Scope, ViewKind

SPLIT = frozenset({Share.TIMESLICE, Share.MPS})
"""Sharing modes with whole-device readings that are never of a single holder. A DRA claim may have a single holder."""

_KINDS = frozenset(kind.value for kind in ViewKind)

Parents = Mapping[tuple[str, str], str]
"""Key of the view that contains a view, by machine and key. Views without a parent are left out."""


class HeldInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Interval in which an allocation has a device.

    Attributes:
        machine: the hub's machine id.
        view: key of the device.
        start, end: nanoseconds since 1970, `end` excluded.
        scope: `own`, or `shared_device` if others share it.
        since: start of that time with this scope, if `start` is that of a queried interval within it.
    """

    machine: str
    view: str
    start: int
    end: int
    scope: Scope
    since: int


def held_intervals(
    allocation: Allocation,
    stored: Iterable[StoredHolding],
    now: int,
    start: int = 0,
    end: int = LATEST,
    parents: Parents | None = None,
) -> tuple[HeldInterval, ...]:
    """Return the devices of an allocation within an interval and its validity, by machine, device and time.

    Intervals of one device do not overlap.

    Args:
        allocation: of a pod, job or virtual machine.
        stored: every holding of the machines in question that may overlap the interval, of any holder.
        now: nanoseconds since 1970 by the hub's clock.
        start, end: nanoseconds since 1970, `end` excluded.
        parents: of the views of these machines.
    """
    first, last = validity(allocation)
    start, end = max(start, first), min(end, last)
    places: dict[tuple[str, str], list[StoredHolding]] = {}
    for one in (part for whole in stored for part in by_certainty(whole)):
        view = one.holding.view
        is_known = view.partition("/")[0] in _KINDS and one.cluster == allocation.spec.target.cluster
        if is_known and is_certain(one.holding):
            places.setdefault((one.machine, view), []).append(one)
    found: list[HeldInterval] = []
    relatives = _Relatives(parents)
    for (machine, view), every in sorted(places.items()):
        own = [one for one in every if names_holder(allocation.spec, one.holding.holder)]
        if own:
            mine = {id(one) for one in own}
            near = (one for key in relatives.of(machine, view) for one in places.get((machine, key), ()))
            related = [
                one
                for one in near
                if is_exclusive(one.holding) and not names_holder(allocation.spec, one.holding.holder)
            ]
            others = _unrelated(own, [*(one for one in every if id(one) not in mine), *related])
            found += [
                HeldInterval(machine=machine, view=view, start=max(a, start), end=b, scope=scope, since=a)
                for a, b, scope in _own_time(own, others, now, first, end)
                if b > start
            ]
    return tuple(found)


def bound_held_intervals(held: Iterable[HeldInterval]) -> tuple[BoundInterval, ...]:
    """Return the intervals of devices with devices of equal machine, times and scope joined, in order of time."""
    groups: dict[tuple[int, int, str, Scope, int], set[str]] = {}
    for one in held:
        groups.setdefault((one.start, one.end, one.machine, one.scope, one.since), set()).add(one.view)
    return tuple(
        BoundInterval(machine, frozenset(views), start, end, scope=scope, of_host=False, since=since)
        for (start, end, machine, scope, since), views in sorted(groups.items(), key=lambda group: group[0])
    )


def held_devices(
    stored: Iterable[StoredHolding], intervals: Sequence[BoundInterval], now: int, parents: Parents | None = None
) -> tuple[HeldDevices, ...]:
    """Return the holders of the devices of some intervals, also those that are not certain.

    The holder of a GPU is also one of its MIG devices, and the reverse.
    """
    relatives = _Relatives(parents)
    found: list[HeldDevices] = []
    by_machine: dict[str, list[BoundInterval]] = {}
    for interval in intervals:
        by_machine.setdefault(interval.machine, []).append(interval)
    for one in stored:
        holding = one.holding
        until = known_until(one, now)
        devices = frozenset((holding.view, *relatives.of(one.machine, holding.view)))
        for interval in by_machine.get(one.machine, ()):
            start = max(interval.start, holding.since)
            end = min(interval.end, LATEST if until is None else until)
            if start < end and devices_overlap(devices, interval.devices):
                within = BoundInterval(one.machine, devices, start, end)
                found.append(HeldDevices(holding.holder, within, holding.parent))
    return tuple(found)


class _Relatives:
    """Views that contain a view, or that it contains."""

    def __init__(self, parents: Parents | None) -> None:
        self._views: dict[tuple[str, str], list[str]] = {}
        for (machine, view), parent in (parents or {}).items():
            self._views.setdefault((machine, view), []).append(parent)
            self._views.setdefault((machine, parent), []).append(view)

    def of(self, machine: str, view: str) -> Sequence[str]:
        """Return the keys of the parent and the children of a view."""
        return self._views.get((machine, view), ())


def _own_time(
    own: Sequence[StoredHolding], others: Sequence[StoredHolding], now: int, start: int, end: int
) -> Iterator[tuple[int, int, Scope]]:
    """Yield the intervals in which a device is the allocation's, with their scope."""
    edges: dict[int, list[int]] = {}
    for column, holdings, rivals in ((0, own, others), (3, others, own)):
        begins = sorted(one.holding.since for one in rivals if is_exclusive(one.holding))
        for one in holdings:
            a, b = max(one.holding.since, start), min(held_until(one, begins, now), end)
            if a < b:
                counted = (1, int(is_exclusive(one.holding)), int(one.holding.share in SPLIT))
                for at, sign in ((a, 1), (b, -1)):
                    cells = edges.setdefault(at, [0] * 6)
                    for offset, count in enumerate(counted):
                        cells[column + offset] += sign * count
    counts = [0] * 6
    before: tuple[int, Scope] | None = None  # start and scope of the interval that has begun
    for at in sorted(edges):
        counts = [count + change for count, change in zip(counts, edges[at], strict=True)]
        mine, exclusive, split, theirs, their_exclusive, _ = counts
        scope = None
        if mine and not (exclusive and their_exclusive):
            scope = Scope.SHARED_DEVICE if split or theirs else Scope.OWN
        if before is not None and scope is before[1]:
            continue
        if before is not None:
            yield before[0], at, before[1]
        before = None if scope is None else (at, scope)


def held_until(one: StoredHolding, rivals: Sequence[int], now: int) -> int:
    """Return the end of a holding; `rivals` are the starts of others' exclusive holdings of the device, in order."""
    holding = one.holding
    until = known_until(one, now)
    end = LATEST if until is None else until
    if holding.until is None and is_exclusive(holding):
        later = bisect_right(rivals, max(holding.since, one.reported_at))
        if later < len(rivals):
            end = min(end, rivals[later])
    return end


def is_exclusive(holding: Holding) -> bool:
    """Return whether a holding excludes other holders: it is declared for its holder alone, or was contradicted.

    The verdict decides, not the method: an undeclared process with the verdict `conflict` or `unknown` excludes a
    declared holder. Two candidates contradict each other, also while no source confirms them.
    """
    return holding.verdict is not HoldingVerdict.OBSERVED_ONLY and holding.share not in SHARED


def _unrelated(own: Sequence[StoredHolding], others: Sequence[StoredHolding]) -> list[StoredHolding]:
    """Return the holdings of other holders, except a virtual machine of an own launcher pod, and the reverse."""
    holders = {(one.holding.holder.kind, one.holding.holder.id) for one in own}
    parents = _parents(own)
    return [
        one
        for one in others
        if (one.holding.holder.kind, one.holding.holder.id) not in parents and not _parents([one]) & holders
    ]


def _parents(holdings: Iterable[StoredHolding]) -> AbstractSet[tuple[HolderKind, str]]:
    return {(one.holding.parent.kind, one.holding.parent.id) for one in holdings if one.holding.parent is not None}
