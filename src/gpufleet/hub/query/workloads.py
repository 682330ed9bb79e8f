"""Queries for allocations of pods and jobs. Blocks."""

from collections.abc import Iterable, Sequence

from gpufleet.fleet.attribution import visibility, workloads
from gpufleet.fleet.attribution.bindings import validity
from gpufleet.fleet.attribution.guests import MachineSamples
from gpufleet.fleet.attribution.holder_targets import names_holder
from gpufleet.fleet.attribution.holding_intervals import HeldInterval
from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.hub.query import history
from gpufleet.hub.query.series_sources import fetch_host_parts
from gpufleet.hub.query.targets import MachineLookup
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import AllocationAnswer, MachineRecord, SeriesAnswer
from gpufleet.model.catalogue.events import XID_ALL, XID_LAST, XID_LAST_AT, XID_SINCE
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import HistoryStore, Store

_PRECISION_NS = 2_000
"""Precision of times of XIDs: they are seconds in floating point, and are compared with microseconds."""


class WorkloadQueries:
    """Answers for pods and jobs from the devices that holdings name."""

    def __init__(self, *, store: Store, lookup: MachineLookup, clock: Clock, stale_after_seconds: float) -> None:
        self._store = store
        self._lookup = lookup
        self._clock = clock
        self._stale_after = stale_after_seconds

    def answer(self, allocation: Allocation, now: int) -> AllocationAnswer:
        """Return the current metrics of a pod or job.

        Only holdings of the last `HOLDING_TTL_NS` are read, and older values are not shown. If there are none, the
        reason has the end of the newest past holding. Earlier holdings are read if a device has an XID from then.

        Raises:
            TooManyHoldingsError: if there are too many holdings.
        """
        cluster = allocation.spec.target.cluster
        first = validity(allocation)[0]
        found = self._lookup.holdings(allocation, max(first, now - HOLDING_TTL_NS), now + 1)
        stored = found.stored or self._lookup.newest_holdings(allocation, first, now + 1)
        held = [one for one in found.intervals if one.start <= now < one.end]
        machines = self._lookup.with_samples(cluster, {one.machine for one in held})
        latest_start = {id_: max(one.start for one in held if one.machine == id_) for id_ in {h.machine for h in held}}
        return workloads.answer(
            allocation,
            held,
            stored,
            machines,
            now,
            own_xids={
                one.machine.id: own_xids(self._store, one.machine, one.stored, latest_start[one.machine.id])
                for one in machines
            },
            xids_since=self._xids_since(allocation, held, machines, now),
            stale_after_seconds=self._stale_after,
            any_holder=bool(stored) or self._lookup.has_holders(cluster),
            is_ambiguous=found.is_ambiguous,
        )

    def _xids_since(
        self, allocation: Allocation, held: Iterable[HeldInterval], machines: Iterable[MachineSamples], now: int
    ) -> dict[tuple[str, str], int]:
        """Return the start of each present holding by machine and view key; empty if no XID can precede `held`.

        Args:
            allocation: the allocation.
            held: its present devices; they may begin later than the holdings.
            machines: the machines that have the devices.
            now: nanoseconds since 1970 by the hub's clock.
        """
        earlier = {(one.machine, one.view): (one.since, one.start) for one in held if one.since < one.start}
        times = [
            max(span[0], int(at * NANOS) - _PRECISION_NS)
            for machine in machines
            for one in machine.stored
            if one.sample.view is not None
            and (span := earlier.get((machine.machine.id, one.sample.view.key))) is not None
            for xid, time in ((XID_LAST, XID_LAST_AT), (XID_ALL, XID_SINCE))
            if isinstance(code := one.sample.values.get(xid), int)
            and code
            and isinstance(at := one.sample.values.get(time), int | float)
            and span[0] <= at * NANOS < span[1]
        ]
        if not times:
            return {}
        found = self._lookup.holdings(allocation, min(times), now + 1).intervals
        return {(one.machine, one.view): one.start for one in found if one.start <= now < one.end}

    def series(self, allocation: Allocation, metrics: Sequence[str], own: history.SeriesWindow) -> SeriesAnswer:
        """Return the series of each device, within the time in which the pod or job had it.

        Args:
            allocation: of one of `WORKLOAD_KINDS`.
            metrics: names of metrics.
            own: window within the validity of the allocation.

        Raises:
            InvalidQueryError: if there are too many devices or points.
        """
        cluster = allocation.spec.target.cluster
        intervals = self._lookup.intervals_of(allocation, own.start, own.end)
        if not intervals:
            return self._without_devices(allocation, own)
        history.check_parts([(one.start, one.end, len(one.devices or ())) for one in intervals], len(metrics), own.step)
        parts = fetch_host_parts(self._store, cluster, intervals, metrics, own.step, self._stale_after)
        return history.series_answer(allocation, parts, own)

    def _without_devices(self, allocation: Allocation, own: history.SeriesWindow) -> SeriesAnswer:
        found = self._lookup.holdings(allocation, own.start, own.end)
        known = [one for one in found.stored if names_holder(allocation.spec, one.holding.holder)]
        any_holder = bool(known) or self._lookup.has_holders(allocation.spec.target.cluster)
        why = workloads.not_held_reason(
            allocation, known, self._clock.now_ns(), any_holder=any_holder, is_ambiguous=found.is_ambiguous
        )
        return history.empty_series(allocation, *why, own)


def own_xids(store: HistoryStore, machine: MachineRecord, stored: Sequence[StoredSample], since: int) -> dict[str, int]:
    """Return the newest XID without time by view key, if it is known to have occurred since an instant.

    Only imported pages have XIDs without time.

    Args:
        store: has the history of the machine.
        machine: the machine.
        stored: its newest samples.
        since: nanoseconds since 1970; nothing is known of the time before if it is 0.
    """
    found = {
        one.sample.view.key: one.sample.measured_at
        for one in stored
        if one.sample.provenance is Provenance.IMPORTED
        and one.sample.view is not None
        and one.sample.measured_at >= since > 0
        and visibility.untimed_xid(one.sample.values) is not None
    }
    if not found:
        return {}
    start, end = min(found.values()), max(found.values()) + 1
    series = store.series(
        machine.cluster, machine.id, [XID_LAST], start, end, end - start, Provenance.IMPORTED, frozenset(found), since
    )
    newest = {view: points[-1][1] for (view, _), points in series.points.items() if points}
    return {view: code for view, code in newest.items() if view is not None and isinstance(code, int)}
