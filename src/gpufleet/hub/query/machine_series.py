"""Series of a machine and its devices, for operators."""

from collections.abc import Sequence

from gpufleet.fleet.attribution.bindings import BoundInterval
from gpufleet.hub.query import history
from gpufleet.hub.query.series_sources import fetch_parts, sources_of
from gpufleet.hub.query.targets import MachineLookup, QueryExecutor
from gpufleet.model.api.answer import MachineSeriesAnswer
from gpufleet.model.machine import MachineKind
from gpufleet.model.reading import Provenance
from gpufleet.ports.store import Store


class MachineSeriesQueries:
    """Series of machines."""

    def __init__(
        self, *, store: Store, lookup: MachineLookup, executor: QueryExecutor, stale_after_seconds: float
    ) -> None:
        self._store = store
        self._lookup = lookup
        self._executor = executor
        self._stale_after = stale_after_seconds

    async def series(
        self, machine: str, views: Sequence[str], metrics: Sequence[str], window: history.SeriesWindow
    ) -> MachineSeriesAnswer:
        """Return metrics of a machine and its devices over time, of all its tenants.

        Args:
            machine: id or name.
            views: only these devices, by view key, beside the machine itself; all if empty.
            metrics: names of metrics.
            window: interval and step.

        Raises:
            NotFoundError: if there is no such machine.
            AmbiguousError: if several machines have the name.
            InvalidQueryError: if a metric has no values over time, or if there are too many points.
        """
        history.check_metrics(metrics)
        return await self._executor.run(lambda: self._series(machine, frozenset(views), metrics, window))

    def _series(
        self, name: str, views: frozenset[str], metrics: Sequence[str], window: history.SeriesWindow
    ) -> MachineSeriesAnswer:
        machine = self._lookup.find_one(name)
        samples = self._store.latest(machine.cluster, machine.id)
        devices = len(views or {one.sample.view for one in samples}) + 1
        history.check_parts([(window.start, window.end, devices)], len(metrics), window.step)
        is_guest = machine.machine.kind is MachineKind.GUEST  # its series are from inside
        sources = (Provenance.SLICE_GUEST,) if is_guest else sources_of(samples, window.start)
        interval = BoundInterval(machine.id, views or None, window.start, window.end)
        parts = fetch_parts(self._store, machine.cluster, interval, metrics, window.step, sources, self._stale_after)
        return history.machine_series_answer(machine, parts, window)
