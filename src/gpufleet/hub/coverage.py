"""How many GPUs report, of how many there should be, and who says so."""

from collections.abc import Mapping, Sequence

from gpufleet.model.answer import Coverage
from gpufleet.model.cluster import Cluster
from gpufleet.model.declared import BELIEVED_NS, DeclaredGpus
from gpufleet.model.liveness import Expected
from gpufleet.model.stored import KnownGpus
from gpufleet.model.time import NANOS
from gpufleet.ports import Clock, Registry, Store


class Covering:
    """Counts with a few questions to the store, however many GPUs there are. Everything here blocks."""

    def __init__(self, *, registry: Registry, store: Store, clock: Clock, stale_after_seconds: float) -> None:
        self._registry = registry
        self._store = store
        self._clock = clock
        self._stale_after = stale_after_seconds

    def of(self, cluster: str | None, retired: Sequence[str]) -> tuple[Coverage, ...]:
        """Return the coverage of one cluster, or of all that are not closed.

        `retired` are the ids of their machines of which nothing is expected.
        """
        now, limit = self._clock.now_ns(), int(self._stale_after * NANOS)
        reporting = self._store.reporting_gpus(now - limit, now + limit)  # not what came before the clock was set back
        known = self._store.known_gpus(retired)
        declared = self._store.declared_gpus(now - BELIEVED_NS, retired)
        clusters = {one.id: one for one in self._registry.clusters() if one.closed_at is None}
        names = sorted({*clusters, *reporting}) if cluster is None else [cluster]
        return tuple(_coverage(name, reporting.get(name, 0), clusters, known, declared.get(name, ())) for name in names)


def _coverage(
    name: str,
    reporting: int,
    clusters: Mapping[str, Cluster],
    known: Mapping[str, KnownGpus],
    declared: tuple[DeclaredGpus, ...],
) -> Coverage:
    spec = clusters[name].spec if name in clusters else None
    gpus = known.get(name)
    sources = Expected(
        registration=sum(spec.expected.values()) if spec is not None and spec.expected else None,
        pci=gpus.pci if gpus else None,
        nvml=gpus.nvml if gpus else None,
        kubernetes=sum(one.counted for one in declared) if declared else None,
    )
    shares = sum(one.shares for one in declared)
    best = sources.best(shares)
    return Coverage(
        cluster=name,
        reporting=reporting,
        expected=best[0] if best else None,
        expected_by=best[1] if best else None,
        sources=sources,
        kubernetes=declared,
        kubernetes_shares=shares,
        words=f"{reporting} of {best[0]} expected by {best[1]}" if best else f"{reporting}, expected: not said",
    )
