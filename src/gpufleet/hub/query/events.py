"""Questions about what happened.

Questions about events: who may see which, and pages of them. Pure.
"""

from collections.abc import Mapping, Sequence

from gpufleet.fleet.attribution import contract, guests, slices
from gpufleet.fleet.attribution.contract import VM_KINDS, listed_ids
from gpufleet.hub.query.history import QuestionError
from gpufleet.hub.query.paging import Asked
from gpufleet.hub.query.targets import Asking, Whereabouts
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import EventRecord, EventsAnswer, MachineRecord
from gpufleet.model.stored.samples import EventQuestion, EventSpan, StoredEvent, StoredSample
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

MAX_ALLOCATIONS = 200
"""Allocations of a tenant that one question can be about."""


def span_of(
    allocation: Allocation, machine: MachineRecord, stored: Sequence[StoredSample], start: int, end: int
) -> EventSpan | None:
    """Return what the allocation's tenant may see: its own devices, in its own time; None if that is nothing.

    Who has the whole machine also sees the machine's own events; who has some of its devices sees theirs alone.

    Args:
        allocation: whose.
        machine: where it is.
        stored: the newest samples of that machine.
        start, end: what was asked for, in nanoseconds since 1970.
    """
    start, end = _own_time(allocation, start, end)
    if start >= end:
        return None
    # A virtual machine is its tenant's as a whole, and what it tells is of itself.
    listed = None if allocation.spec.kind in VM_KINDS else listed_ids(allocation, machine, stored)
    prefix = f"{machine.cluster}/{machine.id}/"
    views = None if listed is None else frozenset(name.removeprefix(prefix) for name in listed)
    return EventSpan(cluster=machine.cluster, machine=machine.id, views=views, start=start, end=end)


def touches(allocation: Allocation, start: int, end: int) -> bool:
    """Whether the allocation was in force at any instant of the time."""
    first, last = _own_time(allocation, start, end)
    return first < last


def record_of(event: StoredEvent, names: Mapping[str, str]) -> EventRecord:
    """Return an event as answers show it; `names` is the machines' ids to their names."""
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
    """Answers with events: all of them, or what a tenant or the holder of an allocation may see."""

    def __init__(self, *, registry: Registry, store: Store, whereabouts: Whereabouts, asking: Asking) -> None:
        self._registry = registry
        self._store = store
        self._whereabouts = whereabouts
        self._asking = asking

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
        asked: Asked,
        tenant: str | None = None,
    ) -> EventsAnswer:
        """Return a page of events, the newest first.

        Args:
            start, end: nanoseconds since 1970, `end` excluded.
            cluster, machine: only of this cluster, of this machine (id or name).
            view: only of this view, by its key; `machine` for the machines' own.
            kinds, codes: only of these kinds, of these codes.
            allocation: only what its holder may see: its devices, in its time.
            asked: which page; a place is an event's time and id.
            tenant: only what this tenant may see.

        Raises:
            NotFoundError: if there is no such allocation (of the tenant).
            QuestionError: if the question cannot be meant.
        """
        if end <= start:
            raise QuestionError("until", "must be after since")

        def ask() -> EventsAnswer:
            spans = self._spans(cluster, machine, allocation, tenant, start, end)
            question = EventQuestion(
                spans=tuple(spans),
                view="" if view == "machine" else view,
                kinds=tuple(kinds),
                codes=tuple(codes),
                before=asked.after,
                limit=asked.limit + 1,
            )
            found = self._store.events(question)
            page = found[: asked.limit]
            names = {one.id: one.machine.name for one in self._registry.machines(cluster)}
            return EventsAnswer(
                events=tuple(record_of(event, names) for event in page),
                next=asked.cursor((page[-1].at, page[-1].id)) if len(found) > asked.limit else None,
            )

        return await self._asking.ask(ask)

    def _spans(
        self, cluster: str | None, machine: str | None, allocation: str | None, tenant: str | None, start: int, end: int
    ) -> list[EventSpan]:
        """Return what may be seen of what is asked: everything, or what the tenant or the allocation has."""
        ids = None
        if machine is not None:
            ids = {one.id for one in self._whereabouts.called(cluster, machine)}
        if allocation is None and tenant is None:
            if ids is None:
                return [EventSpan(cluster=cluster, start=start, end=end)]
            return [EventSpan(cluster=cluster, machine=one, start=start, end=end) for one in sorted(ids)]
        mine = (
            [self._registry.allocation(allocation, tenant)]
            if allocation is not None
            else [one for one in self._registry.allocations(tenant) if touches(one, start, end)]
        )
        if len(mine) > MAX_ALLOCATIONS:
            most = MAX_ALLOCATIONS
            raise QuestionError("since", f"{len(mine)} allocations, more than {most}: ask about one, or less time")
        spans = []
        for one in mine:
            machines = self._whereabouts.meant(one.spec.target)
            home = contract.locate(one, machines).machine
            if one.spec.kind in slices.KINDS:
                home = guests.home(one, self._whereabouts.guests(one.spec.target))
            if tenant is not None and self._whereabouts.contested(one, machines, start, end, name=False):
                continue  # it is another tenant's too: neither is shown anything of it
            if home is None or (ids is not None and home.id not in ids) or cluster not in (None, home.cluster):
                continue
            span = span_of(one, home, self._store.latest(home.cluster, home.id), start, end)
            spans += [span] if span is not None else []
        return spans
