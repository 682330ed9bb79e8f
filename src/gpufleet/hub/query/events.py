"""Event queries: the events visible to an operator, a tenant or an allocation, in pages."""

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpufleet.fleet.attribution.bindings import validity
from gpufleet.hub.query.guest_turns import GuestTurns
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.holding_reads import TooManyHoldingsError
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.targets import MachineLookup, QueryExecutor
from gpufleet.model.allocation import VM_KINDS, WORKLOAD_KINDS, Allocation
from gpufleet.model.api.answer import EventRecord, EventsAnswer
from gpufleet.model.catalogue import Lane
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES
from gpufleet.model.stored.ledger import NameInterval
from gpufleet.model.stored.samples import EventQuery, EventSpan, StoredEvent
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Scope
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

MAX_ALLOCATIONS = 200
"""Maximum number of a tenant's allocations per query."""

MAX_SPANS = 2000
"""Maximum number of intervals of devices per query."""

DURATION = "seconds"
"""Attribute of an event with the duration of what ended."""

EARLIER = frozenset({"from", "before"})
"""Attributes of an event with a value that was read before it."""

EARLIER_NS = int(MISSED_PASSES * LANE_SECONDS[Lane.STATIC] * NANOS)
"""Time before an event in which such a value can have been read for the last time."""


def is_active_within(allocation: Allocation, start: int, end: int) -> bool:
    """Return whether the allocation was in force at any instant of the interval."""
    first, last = validity(allocation)
    return max(start, first) < min(end, last)


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


class _VisibleSpan(NamedTuple):
    """Part of the queried time in which an allocation has devices.

    Attributes:
        span: the visible scope.
        is_shared: whether others shared its devices.
        name: the machine's name in it; None for its present name.
        since: start of the time in which it has the devices, nanoseconds since 1970.
    """

    span: EventSpan
    is_shared: bool = False
    name: str | None = None
    since: int = 0


def _visible_event(event: StoredEvent, spans: Sequence[_VisibleSpan]) -> StoredEvent:
    """Return an event without attributes that name other holders of its device, or reach back before the allocation.

    An event that is visible only as one of a shared device has none.
    """
    covering = [one for one in spans if _covers(one.span, event)]
    if all(one.is_shared for one in covering):
        return msgspec.structs.replace(event, attributes={})
    had = event.at - min(one.since for one in covering)
    hidden = {DURATION} if _is_longer(event.attributes.get(DURATION, ""), had) else set()
    if had < EARLIER_NS:
        hidden |= EARLIER
    if hidden.isdisjoint(event.attributes):
        return event
    return msgspec.structs.replace(event, attributes={k: v for k, v in event.attributes.items() if k not in hidden})


def _is_longer(seconds: str, limit: int) -> bool:
    """Return whether a duration is longer than a number of nanoseconds, or is no number."""
    try:
        return bool(seconds) and not float(seconds) * NANOS <= limit
    except ValueError:
        return True


def _given_names(event: StoredEvent, spans: Sequence[_VisibleSpan]) -> dict[str, str]:
    """Return the machine of an event with its name in the scope of the event; empty if its present name counts."""
    name = next((one.name for one in spans if one.name is not None and _covers(one.span, event)), None)
    return {} if name is None else {event.machine: name}


def _is_named(one: _VisibleSpan, name_or_id: str | None, present: Container[str | None]) -> bool:
    """Return whether a scope is of a machine with this id, or with this name in the scope.

    The present name of a machine does not count where it is not shown: a tenant could guess it.
    """
    if name_or_id == one.span.machine:
        return True
    return one.span.machine in present if one.name is None else bool(one.name) and one.name == name_or_id


def _covers(span: EventSpan, event: StoredEvent) -> bool:
    return (
        span.cluster in (None, event.cluster)
        and span.machine in (None, event.machine)
        and (span.views is None or event.view in span.views)
        and span.start <= event.at < span.end
    )


class EventQueries:
    """Queries for events: all of them, or those visible to a tenant or an allocation."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        lookup: MachineLookup,
        turns: GuestTurns,
        executor: QueryExecutor,
        bind_pending: Callable[[], Awaitable[None]],
    ) -> None:
        self._bind_pending = bind_pending
        self._registry = registry
        self._store = store
        self._lookup = lookup
        self._turns = turns
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
                spans=tuple(one.span for one in spans),
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
                events=tuple(
                    event_record(_visible_event(event, spans), {**names, **_given_names(event, spans)})
                    for event in page
                ),
                next=requested.cursor((page[-1].at, page[-1].id)) if len(found) > requested.limit else None,
            )

        if allocation is not None or tenant is not None:
            await self._bind_pending()
        return await self._executor.run(fetch)

    def _spans(
        self, cluster: str | None, machine: str | None, allocation: str | None, tenant: str | None, start: int, end: int
    ) -> list[_VisibleSpan]:
        """Return the visible scopes: everything, or the devices of the tenant or the allocation."""
        ids = None
        if machine is not None:
            ids = {one.id for one in self._lookup.find(cluster, machine)}
        if allocation is None and tenant is None:
            if ids is None:
                return [_VisibleSpan(EventSpan(cluster=cluster, start=start, end=end))]
            return [_VisibleSpan(EventSpan(cluster=cluster, machine=one, start=start, end=end)) for one in sorted(ids)]
        mine = (
            [self._registry.allocation(allocation, tenant)]
            if allocation is not None
            else [one for one in self._registry.allocations(tenant) if is_active_within(one, start, end)]
        )
        if len(mine) > MAX_ALLOCATIONS:
            detail = f"{len(mine)} allocations, at most {MAX_ALLOCATIONS}: name one, or shorten the interval"
            raise InvalidQueryError("since", detail)
        spans: list[_VisibleSpan] = []
        lookups = self._lookup.for_allocations(mine, start, end)
        for one in mine:
            lookup = lookups[one.spec.target.cluster]
            try:
                if tenant is not None and lookup.conflict_detail(one, start, end, name=False):
                    continue  # also allocated to another tenant: neither sees its events
                spans += self._visible(lookup, one, start, end, for_tenant=tenant is not None)
            except TooManyHoldingsError:
                detail = f"allocation {one.id} has too many holdings in this interval: shorten it"
                raise InvalidQueryError("since", detail) from None
        if len(spans) > MAX_SPANS:
            detail = f"{len(spans)} intervals of devices, at most {MAX_SPANS}: shorten the interval"
            raise InvalidQueryError("since", detail)
        return [
            one
            for one in spans
            if (ids is None or _is_named(one, machine, ids)) and (cluster is None or one.span.cluster == cluster)
        ]

    def _visible(
        self, lookup: MachineLookup, allocation: Allocation, start: int, end: int, *, for_tenant: bool
    ) -> list[_VisibleSpan]:
        """Return the scopes visible to an allocation's tenant: its own devices, in its own time.

        The tenant of a whole machine also sees the machine's own events; the tenant of some devices sees only theirs.
        A device that others share has events without attributes, since these can name another holder's processes.
        An event has the name by which the allocation has its machine: the present one can be of another tenant's time.
        That name is known of the machine that the target means now. Tenants see no name of an earlier one. An event of
        a pod, job or virtual machine has the name that its machine had at the time.
        A virtual machine belongs to its tenant as a whole, and reports only about itself. Time in which several guests
        with its UUID were reported at once has no visible events.
        """
        cluster = allocation.spec.target.cluster
        if allocation.spec.kind in WORKLOAD_KINDS:
            return [
                span
                for one in lookup.intervals_of(allocation, start, end)
                for span in self._named(
                    EventSpan(cluster=cluster, machine=one.machine, views=one.devices, start=one.start, end=one.end),
                    is_shared=one.scope is Scope.SHARED_DEVICE,
                    since=one.since,
                )
            ]
        if allocation.spec.kind not in VM_KINDS:
            given, bound = allocation.spec.target.machine, [one.machine for one in allocation.bindings[-1:]]

            def name(machine: str) -> str | None:
                if machine in bound and (for_tenant or given != machine):
                    return given
                return "" if for_tenant and allocation.bindings else None

            return [
                _VisibleSpan(
                    EventSpan(cluster=cluster, machine=one.machine, views=one.devices, start=one.start, end=one.end),
                    name=name(one.machine),
                    since=one.since,
                )
                for one in lookup.intervals_of(allocation, start, end)
            ]
        since, last = validity(allocation)
        first, last = max(start, since), min(end, last)
        if first >= last:
            return []
        found = self._turns.of(allocation, lookup.guests(allocation.spec.target)).within(first, last)
        return [
            span
            for id_, intervals in found.turns.items()
            for begin, until in intervals
            for span in self._named(
                EventSpan(cluster=cluster, machine=id_, views=None, start=begin, end=until), since=since
            )
        ]

    def _named(self, span: EventSpan, *, since: int, is_shared: bool = False) -> list[_VisibleSpan]:
        """Return a scope of one machine, cut into those with one name of it each: its id if the name is not known."""
        id_ = span.machine or ""
        names = self._registry.past_names(id_, span.start, span.end) or (NameInterval(None, span.start, span.end),)
        return [
            _VisibleSpan(msgspec.structs.replace(span, start=one.start, end=one.end), is_shared, one.name or id_, since)
            for one in names
        ]
