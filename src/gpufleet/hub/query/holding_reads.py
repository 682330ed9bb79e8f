"""Reads of holdings and of the GPUs that contain MIG devices: for one allocation, or for many at once. Blocks."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from gpufleet.fleet.attribution.bindings import BoundInterval, validity
from gpufleet.fleet.attribution.cluster_pods import without_repeated_names
from gpufleet.fleet.attribution.holder_targets import (
    ambiguous_since,
    can_be_ambiguous,
    holder_names,
    holding_query,
    target_name,
)
from gpufleet.fleet.attribution.holding_intervals import Parents
from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS, known_until, may_overlap
from gpufleet.fleet.readings import known_views
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.model.allocation import Allocation, AllocationSpec
from gpufleet.model.holdings import HET_JOB, HolderKind
from gpufleet.model.stored.holdings import HoldingPlace, HoldingQuery, StoredHolding, StoredJob, holding_place
from gpufleet.model.view import ViewKind
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import SampleStore

MAX_HOLDINGS = 100_000
"""Maximum number of holdings that are read for an allocation."""

CHUNK = 500
"""Targets or machines per query for holdings."""


class TooManyHoldingsError(InvalidQueryError):
    """More holdings than a query may read."""


def check_holdings(number: int) -> None:
    """Raise TooManyHoldingsError if there are too many holdings. A part of them does not show every other holder."""
    if number > MAX_HOLDINGS:
        detail = f"matches more than {MAX_HOLDINGS} holdings: shorten the interval, or select a cluster"
        raise TooManyHoldingsError("start", detail)


def target_queries(
    cluster: str, allocations: Sequence[Allocation], start: int, end: int, machines: tuple[str, ...] | None = None
) -> Iterator[HoldingQuery]:
    """Yield the queries for the holdings of targets (on these machines), with many targets per query."""
    by_kind: dict[HolderKind, list[HoldingQuery]] = defaultdict(list)
    for one in allocations:
        query = holding_query(one.spec, start, end, MAX_HOLDINGS)
        if query is not None and query.kind is not None:
            by_kind[query.kind].append(query)
    for kind, queries in by_kind.items():
        for at in range(0, len(queries), CHUNK):
            chunk = queries[at : at + CHUNK]
            ids = tuple(dict.fromkeys(id_ for one in chunk for id_ in one.ids))
            groups = tuple(dict.fromkeys(id_ for one in chunk for id_ in one.groups))
            yield HoldingQuery(
                cluster=cluster, machines=machines, kind=kind, ids=ids, groups=groups, start=start, end=end
            )


def machine_queries(cluster: str, machines: Collection[str], start: int, end: int) -> Iterator[HoldingQuery]:
    """Yield the queries for every holding of some machines, with many machines per query."""
    ordered = sorted(machines)
    for at in range(0, len(ordered), CHUNK):
        yield HoldingQuery(cluster=cluster, machines=tuple(ordered[at : at + CHUNK]), start=start, end=end)


def read_holdings(store: SampleStore, queries: Iterable[HoldingQuery], now: int) -> tuple[StoredHolding, ...]:
    """Return the holdings of several queries, each once. Pods with UID are not repeated by name.

    Args:
        store: the store.
        queries: for holdings.
        now: nanoseconds since 1970 by the hub's clock.

    Raises:
        TooManyHoldingsError: if there are too many.
    """
    found: dict[HoldingPlace, StoredHolding] = {}
    for query in queries:
        limited = msgspec.structs.replace(query, limit=MAX_HOLDINGS + 1)
        found.update({holding_place(one): one for one in store.holdings(limited)})
        check_holdings(len(found))
    return tuple(without_repeated_names(found.values(), now))


def ambiguous_jobs(store: SampleStore, cluster: str, allocations: Iterable[Allocation]) -> dict[str, int]:
    """Return since when the job ids of allocations are those of several SLURM clusters within their validity, by id.

    Allocations whose job ids are those of one SLURM cluster are left out.

    Args:
        store: the store.
        cluster: the cluster of the allocations.
        allocations: of any kind.
    """
    unqualified = [one for one in allocations if can_be_ambiguous(one.spec)]
    jobs = {one for query in target_queries(cluster, unqualified, 0, 0) for one in store.slurm_jobs(query)}
    if len({one.holder.slurm_cluster for one in jobs}) < 2:
        return {}
    by_id: dict[str, list[StoredJob]] = defaultdict(list)
    for job in jobs:
        for id_ in {name.id for name in holder_names(job.holder)}:
            by_id[id_].append(job)
    named = [(one, target_name(one.spec)) for one in unqualified]
    return {
        one.id: since
        for one, name in named
        if name is not None and (since := ambiguous_since(one.spec, by_id.get(name.id, ()), *validity(one))) is not None
    }


class HoldingReads:
    """Reads holdings from the store, for each call."""

    def __init__(self, store: SampleStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def of_target(self, spec: AllocationSpec, start: int, end: int) -> tuple[StoredHolding, ...]:
        """Return the holdings of a target within an interval; others can be among them. None for a machine.

        Raises:
            TooManyHoldingsError: if there are too many.
        """
        query = holding_query(spec, start, end, MAX_HOLDINGS)
        return () if query is None else read_holdings(self._store, [query], self._clock.now_ns())

    def ambiguous_since(self, allocation: Allocation) -> int | None:
        """Return since when the job id of an allocation is that of several SLURM clusters within its validity."""
        return ambiguous_jobs(self._store, allocation.spec.target.cluster, [allocation]).get(allocation.id)

    def of_machines(self, cluster: str, machines: Collection[str], start: int, end: int) -> tuple[StoredHolding, ...]:
        """Return every holding of some machines within an interval. Raises TooManyHoldingsError."""
        query = HoldingQuery(cluster=cluster, machines=tuple(sorted(machines)), start=start, end=end)
        return read_holdings(self._store, [query], self._clock.now_ns())

    def parents(self, cluster: str, machines: Collection[str]) -> Parents:
        """Return the GPUs of the MIG devices of some machines."""
        latest = self._store.latest_of(cluster, sorted(machines)) if machines else {}
        return {
            (machine, key): view.parent
            for machine, samples in latest.items()
            for key, view in known_views(samples).items()
            if view.kind is ViewKind.MIG and view.parent is not None
        }


class SharedReads(HoldingReads):
    """Reads the holdings of many allocations of a cluster at once, and the GPUs of each machine once, for a request.

    What is too much to be read at once, or was not read, is read for each call.
    """

    def __init__(
        self,
        store: SampleStore,
        cluster: str,
        allocations: Sequence[Allocation],
        bound: Sequence[BoundInterval],
        start: int,
        end: int,
        clock: Clock,
    ) -> None:
        """Read the holdings of the allocations' targets, and then all of the machines that have them.

        Args:
            store: the store.
            cluster: the cluster of the allocations.
            allocations: of any kind.
            bound: further machines whose holdings are needed, and when.
            start, end: interval of the request, nanoseconds since 1970, `end` excluded.
            clock: the hub's clock.
        """
        super().__init__(store, clock)
        now = clock.now_ns()
        self._cluster = cluster
        self._start, self._end = max(0, start - HOLDING_TTL_NS), end
        self._span = (0, 0)
        self._known_parents: dict[str, Parents] = {}
        self._by_id: dict[tuple[HolderKind, str], list[StoredHolding]] = defaultdict(list)
        self._by_group: dict[tuple[HolderKind, str], list[StoredHolding]] = defaultdict(list)
        self._by_machine: dict[str, list[StoredHolding]] = {}
        queries = list(target_queries(cluster, allocations, self._start, end))
        self._targets = {(one.kind, id_) for one in queries for id_ in one.ids}
        self._checked = frozenset(one.id for one in allocations)
        self._ambiguous = ambiguous_jobs(store, cluster, allocations)
        try:
            named = read_holdings(store, queries, now)
        except TooManyHoldingsError:
            self._targets = set()
            return
        for one in named:
            holder = one.holding.holder
            self._by_id[holder.kind, holder.id].append(one)
            owners = [owner.name for owner in holder.owners if owner.kind == HET_JOB]
            for group in dict.fromkeys((holder.array_job, *owners)):
                self._by_group[holder.kind, group].append(one)
        places = {one.machine for one in bound} | {one.machine for one in named}
        spans = [(one.start, one.end) for one in bound]
        spans += [(one.holding.since, known_until(one, now) or end) for one in named]
        first = max(self._start, min((first for first, _ in spans), default=end))
        last = min(end, max((last for _, last in spans), default=first))
        try:
            every = read_holdings(store, machine_queries(cluster, places, first, last), now)
        except TooManyHoldingsError:
            return
        self._span = first, last
        self._by_machine = {machine: [] for machine in places}
        for one in every:
            self._by_machine[one.machine].append(one)

    def of_target(self, spec: AllocationSpec, start: int, end: int) -> tuple[StoredHolding, ...]:
        """Return the holdings of a target within an interval; see `HoldingReads`."""
        query = holding_query(spec, start, end, MAX_HOLDINGS)
        if query is None:
            return ()
        kind = query.kind
        is_read = kind is not None and all((kind, id_) in self._targets for id_ in query.ids)
        covers = spec.target.cluster == self._cluster and self._start <= start and end <= self._end
        if kind is None or not is_read or not covers:
            return super().of_target(spec, start, end)
        found = [one for id_ in query.ids for one in self._by_id.get((kind, id_), ())]
        found += [one for id_ in query.groups for one in self._by_group.get((kind, id_), ())]
        return _within(found, start, end)

    def ambiguous_since(self, allocation: Allocation) -> int | None:
        """Return the time from which several SLURM clusters have the job id of an allocation; see `HoldingReads`."""
        if allocation.id not in self._checked:
            return super().ambiguous_since(allocation)
        return self._ambiguous.get(allocation.id)

    def of_machines(self, cluster: str, machines: Collection[str], start: int, end: int) -> tuple[StoredHolding, ...]:
        """Return every holding of some machines within an interval; see `HoldingReads`."""
        covers = cluster == self._cluster and self._span[0] <= start and end <= self._span[1]
        if not covers or not self._by_machine.keys() >= set(machines):
            return super().of_machines(cluster, machines, start, end)
        return _within((one for id_ in machines for one in self._by_machine[id_]), start, end)

    def parents(self, cluster: str, machines: Collection[str]) -> Parents:
        """Return the GPUs of the MIG devices of some machines."""
        if missing := set(machines) - self._known_parents.keys():
            found: dict[str, dict[tuple[str, str], str]] = {id_: {} for id_ in missing}
            for (machine, view), parent in super().parents(cluster, missing).items():
                found[machine][machine, view] = parent
            self._known_parents.update(found)
        return {place: parent for id_ in machines for place, parent in self._known_parents[id_].items()}


def _within(stored: Iterable[StoredHolding], start: int, end: int) -> tuple[StoredHolding, ...]:
    """Return the holdings that overlap an interval, each once, in the order of a query."""
    found = {holding_place(one): one for one in stored if may_overlap(one, start, end)}
    return tuple([found[place] for place in sorted(found)])
