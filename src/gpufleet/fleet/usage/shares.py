"""Shares of a device that its holders have over time, from the holdings that machines reported. Pure.

- The holders that have a device at one time share it in proportion to their replicas (time-slicing, MPS). A holder
  without a reported number of replicas counts as one replica.
- Holdings that are certain exclude all others. The time of a holding and its end are those of
  `fleet.attribution.holding_intervals`.
- If no holding is certain, the holders that their source declared last have the device: not confirmed.
- Holders that contradict each other are disputed: together they have the device, and none of them has a known share.
- A virtual machine and its launcher pod are one holder: the pod.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from gpufleet.fleet.attribution.bindings import validity
from gpufleet.fleet.attribution.holder_targets import holder_names, names_holder, target_name
from gpufleet.fleet.attribution.holding_intervals import SPLIT, held_until, is_exclusive
from gpufleet.fleet.attribution.reported import by_certainty, is_certain, known_until
from gpufleet.fleet.usage.units import Place
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.view import ViewKind

_KINDS = frozenset(kind.value for kind in ViewKind)

HolderKey = tuple[HolderKind, str]
"""Kind and id of a holder in a cluster; `SLURM_CLUSTER/ID` of a job of a known SLURM cluster."""


class HolderShare(NamedTuple):
    """Share of a device: the fraction of its time, and the number of replicas of a time-sliced or MPS device."""

    fraction: float
    replicas: int


class ShareInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Interval in which the holders of a device do not change.

    Attributes:
        start, end: nanoseconds since 1970, `end` excluded.
        shares: holder to its share; the fractions add up to 1. Empty if no share is known.
        disputed: holders that contradict each other.
        is_confirmed: whether the holdings are certain.
        excluded: holders that may have the device, and why they do not count.
    """

    start: int
    end: int
    shares: Mapping[HolderKey, HolderShare] = {}
    disputed: frozenset[HolderKey] = frozenset()
    is_confirmed: bool = True
    excluded: Mapping[HolderKey, Reason] = {}

    @property
    def absent(self) -> Reason | None:
        """Return why no holder is known, or None if one is."""
        if self.shares:
            return None
        return Reason.AMBIGUOUS_TARGET if self.disputed else min(self.excluded.values())


class TargetIndex:
    """Allocations of pods and jobs of a cluster, by the holders that their targets mean."""

    def __init__(self, allocations: Iterable[Allocation]) -> None:
        self._by_name: dict[HolderKey, list[Allocation]] = {}
        for one in allocations:
            name = target_name(one.spec)
            if name is not None:
                self._by_name.setdefault((name.kind, name.id), []).append(one)

    def naming(self, holder: Holder) -> list[Allocation]:
        """Return the allocations that name a holder."""
        names = dict.fromkeys((name.kind, name.id) for name in holder_names(holder))
        found = {one.id: one for name in names for one in self._by_name.get(name, ())}
        return [one for one in found.values() if names_holder(one.spec, holder)]


class WorkloadShare(msgspec.Struct, frozen=True, kw_only=True):
    """Interval in which an allocation has a share of a device by one holder, or may have one.

    Attributes:
        place: machine and view.
        holder: pod or job.
        share: None if it is unknown.
        is_confirmed: whether the holding is certain.
        absent: why the share is unknown.
        start, end: nanoseconds since 1970, `end` excluded.
    """

    place: Place
    holder: HolderKey
    share: HolderShare | None
    is_confirmed: bool
    absent: Reason | None
    start: int
    end: int


class _Named(NamedTuple):
    """Interval in which a holder has a device, and the allocations that name it: later jobs can have its id."""

    start: int
    end: int
    allocations: Sequence[Allocation]


def holder_key(holder: Holder) -> HolderKey:
    """Return the key of a holder."""
    return holder.kind, f"{holder.slurm_cluster}/{holder.id}" if holder.slurm_cluster else holder.id


def by_place(stored: Iterable[StoredHolding]) -> dict[Place, list[StoredHolding]]:
    """Return the holdings of each device, by machine and view; those of unknown kinds of views are left out.

    A job without SLURM cluster has that of the job with its id on the same device: an import reports none.
    """
    found: dict[Place, list[StoredHolding]] = {}
    for one in stored:
        if one.holding.view.partition("/")[0] in _KINDS:
            found.setdefault((one.machine, one.holding.view), []).append(one)
    return {place: _with_slurm_clusters(own) for place, own in found.items()}


def _with_slurm_clusters(stored: list[StoredHolding]) -> list[StoredHolding]:
    clusters: dict[str, set[str]] = {}
    for one in stored:
        if one.holding.holder.slurm_cluster:
            clusters.setdefault(one.holding.holder.id, set()).add(one.holding.holder.slurm_cluster)
    return [_with_slurm_cluster(one, clusters) for one in stored] if clusters else stored


def _with_slurm_cluster(stored: StoredHolding, clusters: Mapping[str, Collection[str]]) -> StoredHolding:
    holding, holder = stored.holding, stored.holding.holder
    own = clusters.get(holder.id, ())
    if holder.kind is not HolderKind.JOB or holder.slurm_cluster or len(own) != 1:
        return stored
    holder = msgspec.structs.replace(holder, slurm_cluster=next(iter(own)))
    return msgspec.structs.replace(stored, holding=msgspec.structs.replace(holding, holder=holder))


def share_intervals(stored: Sequence[StoredHolding], now: int, start: int, end: int) -> list[ShareInterval]:
    """Return the holders of a device within an interval, in order of time; time without any holding is left out.

    Args:
        stored: every holding of the device that may overlap the interval.
        now: nanoseconds since 1970 by the hub's clock.
        start, end: nanoseconds since 1970, `end` excluded.
    """
    stored = [part for one in stored for part in by_certainty(one)]
    rivals = sorted(
        (one.holding.since, holder_key(one.holding.holder))
        for one in stored
        if is_certain(one.holding) and is_exclusive(one.holding)
    )
    parents = {
        (holder_key(one.holding.holder), holder_key(one.holding.parent))
        for one in stored
        if one.holding.parent is not None
    }
    related = parents | {(parent, child) for child, parent in parents}
    edges: dict[int, tuple[list[int], list[int]]] = {}
    for number, one in enumerate(stored):
        first, last = max(start, one.holding.since), min(end, held_until(one, _next_rival(one, rivals, related), now))
        if first < last:
            edges.setdefault(first, ([], []))[0].append(number)
            edges.setdefault(last, ([], []))[1].append(number)
    present: set[int] = set()
    found: list[ShareInterval] = []
    for first, last in pairwise(sorted(edges)):
        begun, ended = edges[first]
        present.difference_update(ended)
        present.update(begun)
        if not present:
            continue
        interval = _shares([stored[number].holding for number in sorted(present)], first, last)
        if found and found[-1].end == first and msgspec.structs.replace(found[-1], start=first, end=last) == interval:
            interval = msgspec.structs.replace(interval, start=found.pop().start)
        found.append(interval)
    return found


def workload_shares(
    allocations: Iterable[Allocation], stored: Iterable[StoredHolding], now: int, start: int, end: int
) -> dict[str, list[WorkloadShare]]:
    """Return the shares of devices that the allocations of pods and jobs of a cluster have within an interval, by id.

    Args:
        allocations: of one cluster; each has its shares within its validity.
        stored: every holding of the machines in question that may overlap the interval, of any holder.
        now: nanoseconds since 1970 by the hub's clock.
        start, end: nanoseconds since 1970, `end` excluded.
    """
    index = TargetIndex(allocations)
    found: dict[str, list[WorkloadShare]] = defaultdict(list)
    for place, own in sorted(by_place(stored).items()):
        named: dict[HolderKey, list[_Named]] = defaultdict(list)
        for one in own:
            until = known_until(one, now)
            allocated = index.naming(one.holding.holder)
            named[holder_key(one.holding.holder)].append(
                _Named(one.holding.since, end if until is None else until, allocated)
            )
        if any(one.allocations for many in named.values() for one in many):
            for interval in share_intervals(own, now, start, end):
                _add_shares(found, place, interval, named)
    return found


def _add_shares(
    found: dict[str, list[WorkloadShare]],
    place: Place,
    interval: ShareInterval,
    named: Mapping[HolderKey, Sequence[_Named]],
) -> None:
    """Add the shares of an interval to the allocations that name its holders."""
    by_key = {
        key: {
            allocation.id: allocation
            for one in named.get(key, ())
            if one.start < interval.end and one.end > interval.start
            for allocation in one.allocations
        }
        for key in (*interval.shares, *interval.disputed, *interval.excluded)
    }
    for key, allocations in by_key.items():
        for one in allocations.values():
            own = interval.shares.get(key)
            if key in interval.disputed and all(one.id in by_key[other] for other in interval.disputed):
                own = HolderShare(1.0 / len(interval.disputed), 0)
            first, last = validity(one)
            first, last = max(first, interval.start), min(last, interval.end)
            if first < last:
                found[one.id].append(
                    WorkloadShare(
                        place=place,
                        holder=key,
                        share=own,
                        is_confirmed=interval.is_confirmed,
                        absent=None if own is not None else interval.excluded.get(key, Reason.AMBIGUOUS_TARGET),
                        start=first,
                        end=last,
                    )
                )


def _next_rival(
    one: StoredHolding, rivals: Sequence[tuple[int, HolderKey]], related: Collection[tuple[HolderKey, HolderKey]]
) -> tuple[int, ...]:
    """Return the first start of an exclusive holding of another holder after the last report of an open one."""
    holding = one.holding
    if holding.until is not None or not is_exclusive(holding):
        return ()
    key = holder_key(holding.holder)
    later = bisect_right(rivals, max(holding.since, one.reported_at), key=lambda rival: rival[0])
    for number in range(later, len(rivals)):
        since, other = rivals[number]
        if other != key and (key, other) not in related:
            return (since,)
    return ()


def _shares(present: Sequence[Holding], start: int, end: int) -> ShareInterval:
    """Return the shares of the holdings that are present in an interval."""
    certain = [one for one in present if is_certain(one)]
    own = certain or present
    if not certain and any(one.verdict is not HoldingVerdict.UNKNOWN for one in present):
        own = []
    shared, disputed = _divided(own)
    counted = {*shared, *disputed, *(holder_key(one.parent) for one in own if one.parent is not None)}
    excluded = {
        holder_key(one.holder): _EXCLUDED.get(one.verdict, Reason.NOT_ATTRIBUTED)
        for one in present
        if holder_key(one.holder) not in counted
    }
    return ShareInterval(
        start=start, end=end, shares=shared, disputed=disputed, is_confirmed=bool(certain), excluded=excluded
    )


_EXCLUDED = {HoldingVerdict.CONFLICT: Reason.AMBIGUOUS_TARGET}
"""Why a holding does not count, by its verdict; all others are not attributed."""


def _divided(holdings: Iterable[Holding]) -> tuple[dict[HolderKey, HolderShare], frozenset[HolderKey]]:
    """Return the shares of holders of a device, or the holders that contradict each other."""
    own: dict[HolderKey, list[Holding]] = {}
    for one in holdings:
        own.setdefault(holder_key(one.holder), []).append(one)
    for parent in {holder_key(one.parent) for many in own.values() for one in many if one.parent is not None}:
        if len(own) > 1:
            own.pop(parent, None)
    if len(own) > 1 and sum(any(map(is_exclusive, many)) for many in own.values()) > 1:
        return {}, frozenset(own)
    replicas = {key: sum(one.replicas for one in many if one.share in SPLIT) for key, many in own.items()}
    total = sum(max(1, number) for number in replicas.values())
    return {key: HolderShare(max(1, number) / total, number) for key, number in replicas.items()}, frozenset()
