"""Clusters served by a hub: those in its configuration and those registered with it."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from typing import Protocol, TypeVar

from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.names import similar_names, suggestion_text
from gpufleet.model.cluster import Cluster, ClusterRecord, ClusterSpec
from gpufleet.model.errors import ConflictError, NotFoundError
from gpufleet.model.stored.ledger import MachineCounts
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import ClusterRegistry

T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class ClusterSource(ClusterRegistry, Protocol):
    """The part of the registry that `Clusters` needs."""

    def machine_counts(self) -> MachineCounts:
        """Return the number of machines of each cluster, and the limit; see `ports.MachineRegistry`."""
        ...


class Clusters:
    """The set of served clusters. Use it from the event loop; the registry is queried on threads."""

    def __init__(self, configured: Iterable[str], *, registry: ClusterSource, threads: Executor, clock: Clock) -> None:
        """Load the open clusters from the registry. Blocking; raises RegistryError."""
        self._configured = frozenset(configured)
        self._registry = registry
        self._threads = threads
        self._clock = clock
        self._changing = asyncio.Lock()  # applies changes to the served set in the registry's order
        registered = {one.id for one in registry.clusters() if _is_open(one)}
        self._served = self._configured | registered

    @property
    def served(self) -> tuple[str, ...]:
        """Ids of the served clusters, sorted."""
        return tuple(sorted(self._served))

    def __contains__(self, cluster: object) -> bool:
        return cluster in self._served

    async def put(self, id: str, spec: ClusterSpec) -> tuple[ClusterRecord, bool]:  # noqa: A002 - the term of the domain
        """Register or update a cluster and serve it; return its record and whether it is new.

        Raises:
            QuestionError: if the id is invalid.
        """
        if not _ID.fullmatch(id):
            raise InvalidQueryError(
                "id", "must be 1 to 253 letters, digits, '.', '_' or '-', and start with a letter or digit"
            )
        async with self._changing:
            at = to_datetime(self._clock.now_ns())
            cluster, is_new = await self._in_thread(lambda: self._registry.put_cluster(id, spec, at))
            self._served |= {id}
            counts = await self._in_thread(self._registry.machine_counts)
        return self._record(cluster, counts), is_new

    async def close(self, id: str) -> ClusterRecord:  # noqa: A002
        """Stop accepting batches of a cluster; its data is kept.

        Raises:
            ConflictError: if the configuration names the cluster.
            NotFoundError: with similar names if there is no such cluster.
        """
        if id in self._configured:
            raise ConflictError(f"cluster {id!r} is in the hub's configuration: remove it from `clusters` there")
        async with self._suggesting(id), self._changing:
            at = to_datetime(self._clock.now_ns())
            cluster = await self._in_thread(lambda: self._registry.close_cluster(id, at))
            self._served -= {id}
            counts = await self._in_thread(self._registry.machine_counts)
        return self._record(cluster, counts)

    async def get(self, id: str) -> ClusterRecord:  # noqa: A002
        """Return a cluster's record. Raises NotFoundError with similar names."""
        async with self._suggesting(id):
            return await self._in_thread(
                lambda: self._record(self._registry.cluster(id), self._registry.machine_counts())
            )

    async def list_all(self) -> tuple[ClusterRecord, ...]:
        """Return the records of all clusters ever registered, sorted by id."""
        clusters, counts = await self._in_thread(lambda: (self._registry.clusters(), self._registry.machine_counts()))
        return tuple(self._record(one, counts) for one in clusters)

    @contextlib.asynccontextmanager
    async def _suggesting(self, id: str) -> AsyncIterator[None]:  # noqa: A002
        """Add similar names to the error of an unknown cluster."""
        try:
            yield
        except NotFoundError as error:
            similar = similar_names(id, [one.id for one in await self._in_thread(self._registry.clusters)])
            raise NotFoundError(f"{error}{suggestion_text(similar)}", similar) from error

    def _record(self, cluster: Cluster, counts: MachineCounts) -> ClusterRecord:
        return ClusterRecord(
            cluster=cluster,
            served=cluster.id in self._served,
            configured=cluster.id in self._configured,
            machines=counts.by_cluster.get(cluster.id, 0),
            max_machines=counts.limit,
            machines_ratio=counts.ratios.get(cluster.id, 0.0),
        )

    async def _in_thread(self, query: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, query)


def _is_open(cluster: Cluster) -> bool:
    return cluster.spec is not None and cluster.closed_at is None
