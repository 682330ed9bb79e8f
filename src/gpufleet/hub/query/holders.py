"""Holder queries: pages of the holders of all devices, now or in an interval."""

from collections.abc import Callable, Collection, Sequence
from itertools import groupby

import msgspec

from gpufleet.fleet.attribution.claims import Claims
from gpufleet.fleet.attribution.reported import known_until
from gpufleet.hub.liveness.states import LivenessSnapshot
from gpufleet.hub.query.claim_holders import ClaimHolders
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.fleet import FleetPages
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.holder_records import holder_record
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.targets import MachineLookup, QueryExecutor
from gpufleet.model.api.answer import GpuRecord, MachineRecord
from gpufleet.model.api.holders import HolderAllocation, HolderPage
from gpufleet.model.holdings import HolderKind
from gpufleet.model.stored.holdings import HoldingPlace, HoldingQuery, StoredHolding, holding_place
from gpufleet.model.time import LATEST
from gpufleet.ports.clock import Clock
from gpufleet.ports.store import SampleStore

MACHINES_PER_PAGE = 200
"""Maximum machines per page: the readings of all their devices are read."""


class HolderFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of holders.

    Attributes:
        machine: only of this machine, by id or name.
        cluster, kind, ids, namespace, name, user, account, queue: as in `HoldingQuery`.
        interval: only in this interval (start, end), nanoseconds since 1970, the end excluded; None for those that
            last now.
    """

    machine: str | None = None
    cluster: str | None = None
    kind: HolderKind | None = None
    ids: tuple[str, ...] = ()
    namespace: str | None = None
    name: str | None = None
    user: str | None = None
    account: str | None = None
    queue: str | None = None
    interval: tuple[int, int] | None = None


class HolderQueries:
    """Queries for the holders of devices."""

    def __init__(
        self,
        *,
        store: SampleStore,
        claims: Claims,
        lookup: MachineLookup,
        pages: FleetPages,
        joins: ClusterJoins,
        claimed: ClaimHolders,
        executor: QueryExecutor,
        clock: Clock,
        instant: Callable[[], LivenessSnapshot],
    ) -> None:
        self._claimed = claimed
        self._store = store
        self._claims = claims
        self._lookup = lookup
        self._pages = pages
        self._joins = joins
        self._executor = executor
        self._clock = clock
        self._instant = instant

    async def page(self, selected: HolderFilter, requested: PageRequest) -> HolderPage:
        """Return a page of holders, by cluster, machine, device and holder.

        Args:
            selected: which holders.
            requested: the page; a place is that of `holding_place`.

        Raises:
            InvalidQueryError: if the interval is empty.
        """
        if selected.interval is not None and selected.interval[1] <= selected.interval[0]:
            raise InvalidQueryError("end", "must be after start")
        instant = self._instant()
        return await self._executor.run(lambda: self._page(selected, requested, instant))

    def _page(self, selected: HolderFilter, requested: PageRequest, instant: LivenessSnapshot) -> HolderPage:
        now = self._clock.now_ns()
        machines = None
        if selected.machine is not None:
            machines = tuple(sorted(one.id for one in self._lookup.find(selected.cluster, selected.machine)))
        start, end = selected.interval or (now, LATEST)
        query = HoldingQuery(
            cluster=selected.cluster,
            machines=machines,
            kind=selected.kind,
            ids=selected.ids,
            namespace=selected.namespace,
            name=selected.name,
            user=selected.user,
            account=selected.account,
            queue=selected.queue,
            start=start,
            end=end,
            after=requested.after,
            limit=requested.limit + 1,
        )
        read = {holding_place(one): one for one in (self._store.holdings(query) if machines != () else ())}
        is_present = selected.interval is None
        claimed = self._claimed_by(selected, machines) if is_present else {}
        after = requested.after
        read = {place: one for place, one in claimed.items() if after is None or place > after} | read
        places = _cut(sorted(read), requested.limit)
        page = {place: read[place] for place in places}
        page = self._with_claims(page, claimed) if is_present else page
        lasting = [one for one in page.values() if _is_selected(one, selected.interval, now)]
        found = [one for one in self._joins.complete(lasting) if _has_texts(one, selected)]
        machines_of = self._machines(found, instant)
        gpus = self._gpus(tuple(machines_of.values()), instant)
        items = tuple(
            holder_record(
                one,
                machines_of.get(one.machine),
                gpus.get(f"{one.cluster}/{one.machine}/{one.holding.view}"),
                self._allocations(one, now),
                now,
            )
            for one in found
        )
        following = requested.cursor(places[-1]) if len(places) < len(read) else None
        return HolderPage(items=items, next=following)

    def _claimed_by(
        self, selected: HolderFilter, machines: tuple[str, ...] | None
    ) -> dict[HoldingPlace, StoredHolding]:
        """Return the selected present holdings by ResourceClaims. Their holders are pods."""
        if selected.kind not in (None, HolderKind.POD) or selected.user is not None or selected.account is not None:
            return {}
        clusters = self._lookup.clusters() if selected.cluster is None else [selected.cluster]
        every = [one for own in self._claimed.of_clusters(clusters).values() for each in own.values() for one in each]
        return {
            holding_place(one): one
            for one in every
            if (machines is None or one.machine in machines)
            and (not selected.ids or one.holding.holder.id in selected.ids)
            and _has_texts(one, selected)
        }

    def _with_claims(
        self, page: dict[HoldingPlace, StoredHolding], claimed: Collection[HoldingPlace]
    ) -> dict[HoldingPlace, StoredHolding]:
        """Return the holdings of a page, joined with those by claims of their machines.

        A holding by a claim is left out if its machine reports the holder under another place: with a container.
        """
        by_cluster: dict[str, set[str]] = {}
        for one in page.values():
            by_cluster.setdefault(one.cluster, set()).add(one.machine)
        joined: dict[HoldingPlace, StoredHolding] = {}
        affected: set[str] = set()
        for cluster, ids in by_cluster.items():
            of_claims = sorted(ids & self._claimed.of_cluster(cluster).keys())
            affected.update(of_claims)
            for own in (self._pages.joined_holdings(cluster, of_claims) if of_claims else {}).values():
                joined.update({holding_place(one): one for one in own})
        return {
            place: joined.get(place, one)
            for place, one in page.items()
            if place in joined or place not in claimed or one.machine not in affected
        }

    def _allocations(self, stored: StoredHolding, now: int) -> list[HolderAllocation]:
        """Return the allocations that name the holder or its parent during the holding."""
        one, until = stored.holding, known_until(stored, now)
        end = max(now if until is None else until, one.since) + 1
        named = [
            allocation
            for holder in (one.holder, one.parent)
            if holder is not None
            for allocation in self._claims.naming(stored.cluster, holder, one.since, end)
        ]
        tenants = {allocation.id: allocation.spec.tenant for allocation in named}
        return [HolderAllocation(id=id_, tenant=tenant) for id_, tenant in tenants.items()]

    def _machines(self, found: Sequence[StoredHolding], instant: LivenessSnapshot) -> dict[str, MachineRecord]:
        """Return the machines of holdings, by id, in order of cluster."""
        known = [
            machine
            for cluster, group in groupby(found, key=lambda one: one.cluster)
            for machine in self._lookup.with_ids(cluster, {one.machine for one in group})
        ]
        return {one.id: one for one in self._pages.with_liveness(known, instant)}

    def _gpus(self, machines: Sequence[MachineRecord], instant: LivenessSnapshot) -> dict[str, GpuRecord]:
        """Return the views of machines by id, with their present holders."""
        return {one.device.id: one for one in self._pages.gpus_of(machines, instant)}


def _cut(places: Sequence[HoldingPlace], limit: int) -> Sequence[HoldingPlace]:
    """Return the first places, up to a number of holdings and of machines."""
    machines: set[str] = set()
    for count, (_, machine, *_) in enumerate(places[:limit]):
        machines.add(machine)
        if len(machines) > MACHINES_PER_PAGE:
            return places[:count]
    return places[:limit]


def _has_texts(stored: StoredHolding, selected: HolderFilter) -> bool:
    """Return whether the completed holder has the selected texts.

    The store finds a pod by any report of its cluster.
    """
    holder = stored.holding.holder
    pairs = ((selected.namespace, holder.namespace), (selected.name, holder.name), (selected.queue, holder.queue))
    return all(wanted in (None, text) for wanted, text in pairs)


def _is_selected(stored: StoredHolding, interval: tuple[int, int] | None, now: int) -> bool:
    """Return whether the holding lasts now, or is known to have lasted in the interval.

    The store selects by the reported end. A holding that was not repeated in time ends at its last report.
    """
    until = known_until(stored, now)
    return until is None or (interval is not None and until > interval[0])
