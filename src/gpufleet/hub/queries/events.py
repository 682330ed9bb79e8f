"""Questions about what happened."""

from collections.abc import Sequence

from gpufleet.hub import answers, events, guests, slices
from gpufleet.hub.history import QuestionError
from gpufleet.hub.paging import Asked
from gpufleet.hub.queries.asking import Asking
from gpufleet.hub.queries.whereabouts import Whereabouts
from gpufleet.model.answer import EventsAnswer
from gpufleet.model.stored import EventQuestion, EventSpan
from gpufleet.ports import Registry, Store


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
                events=tuple(events.record_of(event, names) for event in page),
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
            else [one for one in self._registry.allocations(tenant) if events.touches(one, start, end)]
        )
        if len(mine) > events.MAX_ALLOCATIONS:
            most = events.MAX_ALLOCATIONS
            raise QuestionError("since", f"{len(mine)} allocations, more than {most}: ask about one, or less time")
        spans = []
        for one in mine:
            machines = self._whereabouts.meant(one.spec.target)
            home = answers.locate(one, machines).machine
            if one.spec.kind in slices.KINDS:
                home = guests.home(one, self._whereabouts.guests(one.spec.target))
            if tenant is not None and self._whereabouts.contested(one, machines, start, end, name=False):
                continue  # it is another tenant's too: neither is shown anything of it
            if home is None or (ids is not None and home.id not in ids) or cluster not in (None, home.cluster):
                continue
            span = events.span_of(one, home, self._store.latest(home.cluster, home.id), start, end)
            spans += [span] if span is not None else []
        return spans
