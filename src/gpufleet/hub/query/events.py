"""Event queries: the events visible to an operator, a tenant or an allocation, in pages."""

from collections.abc import Mapping, Sequence

from gpufleet.fleet.attribution import contract, guests, slices
from gpufleet.fleet.attribution.contract import VM_KINDS, listed_ids
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.targets import MachineLookup, QueryExecutor
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import EventRecord, EventsAnswer, MachineRecord
from gpufleet.model.stored.samples import EventQuery, EventSpan, StoredEvent, StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

MAX_ALLOCATIONS = 200
"""Maximum number of a tenant's allocations per query."""


def visible_span(
    allocation: Allocation, machine: MachineRecord, stored: Sequence[StoredSample], start: int, end: int
) -> EventSpan | None:
    """Return the scope visible to the allocation's tenant: its own devices, in its own time. None if it is empty.

    The tenant of a whole machine also sees the machine's own events; the tenant of some devices sees only theirs.

    Args:
        allocation: the allocation.
        machine: its machine.
        stored: the newest samples of that machine.
        start, end: requested interval, in nanoseconds since 1970.
    """
    start, end = _own_time(allocation, start, end)
    if start >= end:
        return None
    # A virtual machine belongs to its tenant as a whole, and reports only about itself.
    listed = None if allocation.spec.kind in VM_KINDS else listed_ids(allocation, machine, stored)
    prefix = f"{machine.cluster}/{machine.id}/"
    views = None if listed is None else frozenset(name.removeprefix(prefix) for name in listed)
    return EventSpan(cluster=machine.cluster, machine=machine.id, views=views, start=start, end=end)


def is_active_within(allocation: Allocation, start: int, end: int) -> bool:
    """Return whether the allocation was in force at any instant of the interval."""
    first, last = _own_time(allocation, start, end)
    return first < last


def event_record(event: StoredEvent, names: Mapping[str, str]) -> EventRecord:
    """Return an event as shown in answers; `names` maps machine ids to names."""
    return EventRecord(
        cluster=event.cluster,
        machine=event.machine,
        node=names.get(event.machine, ""),
        device=event.view,
        at=to_datetime(event.at),
        received_at=to_datetime(event.received_at),
        kind=event.kind,
        code=event.code,
        attributes=event.attributes,
    )


def _own_time(allocation: Allocation, start: int, end: int) -> tuple[int, int]:
    spec = allocation.spec
    ends = [to_ns(at) for at in (spec.valid_to, allocation.closed_at) if at is not None]
    return max(start, to_ns(spec.valid_from) if spec.valid_from is not None else 0), min(end, *ends, end)


class EventQueries:
    """Queries for events: all of them, or those visible to a tenant or an allocation."""

    def __init__(self, *, registry: Registry, store: Store, lookup: MachineLookup, executor: QueryExecutor) -> None:
        self._registry = registry
        self._store = store
        self._lookup = lookup
        self._executor = executor

    async def page(
        self,
        *,
        start: int,
        end: int,
        cluster: str | None = None,
        machine: str | None = None,
        view: str | None = None,
        kinds: Sequence[str] = (),
        allocation: str | None = None,
        codes: Sequence[int] = (),
        requested: PageRequest,
        tenant: str | None = None,
    ) -> EventsAnswer:
        """Return a page of events, newest first.

        Args:
            start, end: nanoseconds since 1970, `end` excluded.
            cluster, machine: only of this cluster, of this machine (id or name).
            view: only of this view, by its key; `machine` for events of the machine itself.
            kinds, codes: only of these kinds, of these codes.
            allocation: only events visible to its tenant: of its devices, in its time.
            requested: the page; a place is (time, id) of an event.
            tenant: only events visible to this tenant.

        Raises:
            NotFoundError: if there is no such allocation (of the tenant).
            InvalidQueryError: if the interval is empty or the tenant has too many allocations.
        """
        if end <= start:
            raise InvalidQueryError("until", "must be after since")

        def fetch() -> EventsAnswer:
            spans = self._spans(cluster, machine, allocation, tenant, start, end)
            query = EventQuery(
                spans=tuple(spans),
                view="" if view == "machine" else view,
                kinds=tuple(kinds),
                codes=tuple(codes),
                before=requested.after,
                limit=requested.limit + 1,
            )
            found = self._store.events(query)
            page = found[: requested.limit]
            names = {one.id: one.machine.name for one in self._registry.machines(cluster)}
            return EventsAnswer(
                events=tuple(event_record(event, names) for event in page),
                next=requested.cursor((page[-1].at, page[-1].id)) if len(found) > requested.limit else None,
            )

        return await self._executor.run(fetch)

    def _spans(
        self, cluster: str | None, machine: str | None, allocation: str | None, tenant: str | None, start: int, end: int
    ) -> list[EventSpan]:
        """Return the visible scopes: everything, or the devices of the tenant or the allocation."""
        ids = None
        if machine is not None:
            ids = {one.id for one in self._lookup.find(cluster, machine)}
        if allocation is None and tenant is None:
            if ids is None:
                return [EventSpan(cluster=cluster, start=start, end=end)]
            return [EventSpan(cluster=cluster, machine=one, start=start, end=end) for one in sorted(ids)]
        mine = (
            [self._registry.allocation(allocation, tenant)]
            if allocation is not None
            else [one for one in self._registry.allocations(tenant) if is_active_within(one, start, end)]
        )
        if len(mine) > MAX_ALLOCATIONS:
            detail = f"{len(mine)} allocations, at most {MAX_ALLOCATIONS}: name one, or shorten the interval"
            raise InvalidQueryError("since", detail)
        spans = []
        for one in mine:
            machines = self._lookup.candidates(one.spec.target)
            located = contract.locate(one, machines).machine
            if one.spec.kind in slices.KINDS:
                located = guests.guest_machine(one, self._lookup.guests(one.spec.target))
            if tenant is not None and self._lookup.conflict_detail(one, machines, start, end, name=False):
                continue  # also allocated to another tenant: neither sees its events
            if located is None or (ids is not None and located.id not in ids) or cluster not in (None, located.cluster):
                continue
            span = visible_span(one, located, self._store.latest(located.cluster, located.id), start, end)
            spans += [span] if span is not None else []
        return spans
