"""Stays of GPUs in the machines of a cluster, by what the store has of their reports. Blocks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product, repeat

from gpufleet.fleet.attribution.bindings import HOST_SOURCES
from gpufleet.fleet.identity import MachineIds
from gpufleet.fleet.readings import STATE
from gpufleet.fleet.usage.residence import (
    UNBOUNDED,
    Interval,
    indexed_gpus,
    last_reported,
    possibly_added,
    possibly_moved,
    possibly_replaced,
)
from gpufleet.fleet.usage.stays import bounded_stays, with_indexed
from gpufleet.fleet.usage.units import Place
from gpufleet.hub.query.usage_inputs import MAX_SPAN_NS
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.stored.samples import StoredSample, StoredSeries
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, ViewKind
from gpufleet.ports.store import HistoryStore, Store

_MINUTE_NS = 60 * NANOS
_HOUR_NS = 3600 * NANOS
_WINDOWS_NS = tuple(days * 24 * _HOUR_NS for days in (1, 8, 64, 400))
"""Intervals of a search, one after the other; the last one is repeated. A series has at most 458 days of hours."""
REPORTED = ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts", "gpu_temperature_celsius")
"""A GPU that is reported has at least one of these readings."""
LISTED = (*REPORTED, STATE)
"""A GPU that a reader lists has at least one of these readings, also if it is lost."""
_SOURCES = {
    Side.HOST: HOST_SOURCES,
    Side.GUEST: (Provenance.SLICE_GUEST,),
}


class PastReports:
    """Looks up the reports of a GPU by a machine of a cluster, on one side, in an interval."""

    def __init__(self, store: HistoryStore, cluster: str, side: Side) -> None:
        self._store = store
        self._cluster = cluster
        self._sources = _SOURCES[side]

    def any_within(self, place: Place, start: int, end: int) -> bool:
        """Return whether there is a report in the whole hours of an interval; nanoseconds since 1970.

        Parts of hours are left out, since only hours are kept of times long ago: the result does not change then.
        """
        start = max(start, end - MAX_SPAN_NS)
        first, last = -(-start // _HOUR_NS) * _HOUR_NS, end // _HOUR_NS * _HOUR_NS
        if first >= last:
            return False
        return any(
            (place[1], name) in found.points
            for found in self._series(place, first, last, last - first)
            for name in REPORTED
        )

    def last_within(self, place: Place, start: int, end: int) -> int | None:
        """Return the last report in an interval, or None if there is none; nanoseconds since 1970.

        It is known to the minute, and to the hour where only hourly rollups are left.
        """
        hour = end - end % _HOUR_NS
        start = max(start, end - MAX_SPAN_NS)
        start -= start % _HOUR_NS
        in_last = self._last_minute(place, max(start, hour), end)
        if in_last is not None or start >= hour:
            return in_last
        newest = self._last_hour(place, start, hour, REPORTED)
        return newest and (self._last_minute(place, newest, newest + _HOUR_NS) or newest)

    def departure(self, place: Place, others: Collection[str], start: int, end: int, now: int) -> Interval | None:
        """Return an hour without a GPU whose machine reported others, as `fleet.usage.stays.Departure`.

        Only whole hours until `now` count, and only hours are kept of times long ago: the result does not change then.
        """
        start -= start % _HOUR_NS
        until = min(end, now) // _HOUR_NS * _HOUR_NS
        last = start if end == UNBOUNDED else self._last_hour(place, start, until, LISTED)
        if last is None:
            return None
        first = self._first_hour(place[0], others, last + _HOUR_NS, until)
        return None if first is None else (first, first + _HOUR_NS)

    def _first_hour(self, machine: str, views: Collection[str], start: int, end: int) -> int | None:
        """Return the first hour in which the closest source of a machine reported any of its GPUs, from whole hours."""
        for first, last in _windows(start, end):
            found = self._store.series(
                self._cluster, machine, REPORTED, first, last, _HOUR_NS, self._sources[0], frozenset(views)
            )
            times = [at for key in product(views, REPORTED) for at, _ in found.points.get(key, ())]
            if times:
                return min(times)
        return None

    def _last_hour(self, place: Place, start: int, end: int, metrics: Sequence[str]) -> int | None:
        """Return the last hour with reports, of whole hours."""
        for first, last in _windows(-end, -start):
            times, _ = self._times(place, -last, -first, _HOUR_NS, metrics)
            if times:
                return max(times)
        return None

    def _last_minute(self, place: Place, start: int, end: int) -> int | None:
        """Return the minute of the last report in an interval; None if there is none, or if it is not known."""
        times, is_known = self._times(place, start, end, _MINUTE_NS) if start < end else ((), False)
        return max(times, default=None) if is_known else None

    def _times(
        self, place: Place, start: int, end: int, step: int, metrics: Sequence[str] = REPORTED
    ) -> tuple[list[int], bool]:
        """Return the steps with reports, and whether they are not those of hours only."""
        found = list(self._series(place, start, end, step, metrics))
        times = [at for one in found for name in metrics for at, _ in one.points.get((place[1], name), ())]
        return times, all(one.resolution is not Resolution.HOUR for one in found)

    def _series(
        self, place: Place, start: int, end: int, step: int, metrics: Sequence[str] = REPORTED
    ) -> Iterator[StoredSeries]:
        """Yield the series of a GPU, of each source."""
        machine, view = place
        for source in self._sources:
            yield self._store.series(self._cluster, machine, metrics, start, end, step, source, {view})


def _windows(start: int, end: int) -> Iterator[Interval]:
    """Yield the parts of an interval in order."""
    for length in chain(_WINDOWS_NS, repeat(_WINDOWS_NS[-1])):
        if start >= end:
            return
        yield start, min(start + length, end)
        start += length


def complete_stays(
    store: HistoryStore,
    cluster: str,
    stored: Mapping[str, Sequence[StoredSample]],
    stays: Mapping[Place, Sequence[Interval]],
) -> dict[Place, tuple[Interval, ...]]:
    """Return stays with those of GPUs that were known by a list index before their machine reported them by name.

    Args:
        store: has the times of reports.
        cluster: the cluster.
        stored: newest samples of machines.
        stays: of GPUs known by name.
    """
    indexed = indexed_gpus(stored)
    machines = sorted({machine for machine, _ in indexed})
    named: dict[Place, int] = {}
    if machines:
        seen = [(one.machine, one.view, one.first) for one in store.slots(cluster, machines)]
        texts = store.texts_of_machines(cluster, machines, "gpu_name")
        for machine, view, at in [*seen, *((one.machine, one.view, one.at) for one in texts)]:
            if view.startswith(f"{ViewKind.GPU}/") and (machine, view) not in indexed:
                named[machine, view] = min(at, named.get((machine, view), at))
    reports = {side: PastReports(store, cluster, side) for side in _SOURCES}
    return with_indexed(
        stays, indexed, named, lambda place, start, end: reports[indexed[place]].any_within(place, start, end)
    )


def stays_of(
    store: Store,
    cluster: str,
    stored: Mapping[str, Sequence[StoredSample]],
    ids: MachineIds,
    within: Interval,
    now: int,
) -> dict[Place, tuple[Interval, ...]]:
    """Return the bounded stays of the GPUs of machines, given their newest samples.

    A GPU also leaves for a machine without an allocation. So the past does not depend on which allocations are in the
    query.

    Args:
        store: has slots and times of reports.
        cluster: the cluster.
        stored: newest samples by id of the machine.
        ids: of the machines of the cluster.
        within: interval in which a GPU can have left its machine for no other one; nanoseconds since 1970.
        now: nanoseconds since 1970.
    """
    own = last_reported(stored)
    shared = store.shared_gpus(cluster) if own else {}
    known = {*stored, *(id_ for _, view in own for id_ in shared.get(view, ()))}
    others = {same for id_ in known for same in ids.of(id_)} - set(stored)
    every = {**stored, **store.latest_of(cluster, sorted(others))} if others else stored
    stays: dict[Place, tuple[Interval, ...]] = {}
    for side in _SOURCES:
        reported = last_reported(every, side)
        changed = {*possibly_moved(reported), *possibly_replaced(every, reported), *possibly_added(reported)}
        read = sorted({same for id_ in changed for same in ids.of(id_)})
        slots = store.slots(cluster, read) if read else ()
        past = PastReports(store, cluster, side)
        stays |= bounded_stays(slots, reported, past.any_within, ids, partial(_departure, past, within, now))
    return complete_stays(store, cluster, every, stays)


def _departure(
    past: PastReports, within: Interval, now: int, place: Place, others: Collection[str], start: int, end: int
) -> Interval | None:
    """Return an hour without a GPU in an interval; None if that does not overlap `within`."""
    return past.departure(place, others, start, end, now) if start < within[1] and within[0] < end else None
