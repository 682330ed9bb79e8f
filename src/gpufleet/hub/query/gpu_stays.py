"""Stays of GPUs in the machines of a cluster, by what the store has of their reports. Blocks."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpufleet.fleet.attribution.bindings import HOST_SOURCES
from gpufleet.fleet.identity import MachineIds
from gpufleet.fleet.readings import STATE
from gpufleet.fleet.usage.absences import HOUR_NS, absences, windows
from gpufleet.fleet.usage.residence import (
    UNBOUNDED,
    Interval,
    indexed_gpus,
    last_reported,
    last_reports,
    possibly_added,
    possibly_moved,
    possibly_replaced,
)
from gpufleet.fleet.usage.stays import bounded_stays, with_indexed, without
from gpufleet.fleet.usage.units import Place
from gpufleet.hub.query.usage_inputs import MAX_SPAN_NS
from gpufleet.model.absence import Reason
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.stored.samples import StoredSample, StoredSeries
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, ViewKind
from gpufleet.ports.store import HistoryStore, Store

_MINUTE_NS = 60 * NANOS
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
        self._read: dict[tuple[str, frozenset[str], int, int], Mapping[str, Collection[int]]] = {}

    def any_within(self, place: Place, start: int, end: int) -> bool:
        """Return whether there is a report in the whole hours of an interval; nanoseconds since 1970.

        Parts of hours are left out, since only hours are kept of times long ago: the result does not change then.
        """
        start = max(start, end - MAX_SPAN_NS)
        first, last = -(-start // HOUR_NS) * HOUR_NS, end // HOUR_NS * HOUR_NS
        if first >= last:
            return False
        return any(_report_times(found, place[1], REPORTED) for found in self._series(place, first, last, last - first))

    def last_within(self, place: Place, start: int, end: int) -> int | None:
        """Return the last report in an interval, or None if there is none; nanoseconds since 1970.

        It is known to the minute, and to the hour where only hourly rollups are left.
        """
        hour = end - end % HOUR_NS
        start = max(start, end - MAX_SPAN_NS)
        start -= start % HOUR_NS
        in_last = self._last_minute(place, max(start, hour), end)
        if in_last is not None or start >= hour:
            return in_last
        newest = self._last_hour(place, start, hour)
        return newest and (self._last_minute(place, newest, newest + HOUR_NS) or newest)

    def read(self, machine: str, views: frozenset[str], start: int, end: int) -> Mapping[str, Collection[int]]:
        """Return the hours with reports of the agent, as `fleet.usage.absences.HourlyReports`."""
        place = machine, views, start, end
        if place not in self._read:
            self._read[place] = self._hours(*place, self._sources[0])
        return self._read[place]

    def imported(self, machine: str, views: frozenset[str], start: int, end: int) -> Collection[int]:
        """Return the hours with reports of other sources, as `fleet.usage.absences.HourlyReports`."""
        found = [self._hours(machine, views, start, end, source) for source in self._sources[1:]]
        return {at for of_views in found for hours in of_views.values() for at in hours}

    def _hours(
        self, machine: str, views: frozenset[str], start: int, end: int, source: Provenance
    ) -> Mapping[str, Collection[int]]:
        found = self._store.series(self._cluster, machine, LISTED, start, end, HOUR_NS, source, views)
        return {view: _report_times(found, view, LISTED) for view in views}

    def _last_hour(self, place: Place, start: int, end: int) -> int | None:
        """Return the last hour with reports in an interval of whole hours."""
        for first, last in windows(-end, -start):
            times, _ = self._times(place, -last, -first, HOUR_NS)
            if times:
                return max(times)
        return None

    def _last_minute(self, place: Place, start: int, end: int) -> int | None:
        """Return the minute of the last report in an interval; None if there is none, or if it is not known."""
        times, is_known = self._times(place, start, end, _MINUTE_NS) if start < end else ((), False)
        return max(times, default=None) if is_known else None

    def _times(self, place: Place, start: int, end: int, step: int) -> tuple[list[int], bool]:
        """Return the steps with reports, and whether they are not those of hours only."""
        found = list(self._series(place, start, end, step))
        times = [at for one in found for at in _report_times(one, place[1], REPORTED)]
        return times, all(one.resolution is not Resolution.HOUR for one in found)

    def _series(self, place: Place, start: int, end: int, step: int) -> Iterator[StoredSeries]:
        """Yield the series of a GPU, of each source."""
        machine, view = place
        for source in self._sources:
            yield self._store.series(self._cluster, machine, REPORTED, start, end, step, source, {view})


def _report_times(stored: StoredSeries, view: str, names: Collection[str]) -> set[int]:
    """Return the starts of the steps in which a GPU was reported. An `ambiguous_zero` is a report of it, too."""
    times = {at for name in names for at, _ in stored.points.get((view, name), ())}
    for name in names:
        reasons = stored.absences.get((view, name), {})
        times.update(at for at, reason in reasons.items() if reason is Reason.AMBIGUOUS_ZERO)
    return times


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
        within: interval; absences of GPUs at other times are left out; nanoseconds since 1970.
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
        stays |= bounded_stays(slots, reported, past.any_within, ids)
        if side is Side.HOST:
            for place, (start, end) in absences(slots, last_reports(every), past, within, now):
                stays[place] = tuple(without(stays.get(place, [(0, UNBOUNDED)]), start, end))
    return complete_stays(store, cluster, every, stays)
