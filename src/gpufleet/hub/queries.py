"""Questions to the hub: they fetch what the pure answers need, off the event loop."""

import asyncio
import datetime as dt
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from gpufleet.hub import answers, events, guests, history, processes, slices
from gpufleet.hub.claims import Claims, share
from gpufleet.hub.freshness import Freshness
from gpufleet.hub.history import QuestionError
from gpufleet.hub.lists import Lists
from gpufleet.hub.liveness.judging import Instant
from gpufleet.hub.paging import Asked
from gpufleet.hub.putting import canonical, check_id, check_spec
from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation, AllocationSpec, Target
from gpufleet.model.answer import (
    AllocationAnswer,
    EventsAnswer,
    GpuPage,
    GpuRecord,
    MachinePage,
    MachineRecord,
    NodePage,
    ProcessesAnswer,
    SeriesAnswer,
)
from gpufleet.model.errors import ConflictError, NotFoundError
from gpufleet.model.machine import MachineKind
from gpufleet.model.provenance import Provenance
from gpufleet.model.stored import EventQuestion, EventSpan, ProcessQuestion
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import ViewKind, normalise_uuid
from gpufleet.ports import Clock, Registry, Store

T = TypeVar("T")


class AmbiguousError(ConflictError):
    """More than one thing is meant; `candidates` are their ids."""

    def __init__(self, words: str, candidates: Sequence[str]) -> None:
        self.candidates = tuple(candidates)
        super().__init__(words)


class Queries:
    """Answers questions. Store and registry block, so they are asked on the readers' threads."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        claims: Claims,
        threads: ThreadPoolExecutor,
        clock: Clock,
        clusters: Container[str],
        stale_after_seconds: float,
        instant: Callable[[], Instant],
    ) -> None:
        self._instant = instant
        self._registry = registry
        self._store = store
        self._claims = claims
        self._lists = Lists(registry=registry, store=store, clock=clock, stale_after_seconds=stale_after_seconds)
        self._putting = asyncio.Lock()  # what is looked at before an allocation is kept stays so until it is
        self._threads = threads
        self._clock = clock
        self._clusters = clusters
        self._stale_after = stale_after_seconds

    def now_ns(self) -> int:
        """Return the hub's now, in nanoseconds since 1970."""
        return self._clock.now_ns()

    async def put_allocation(self, id: str, spec: AllocationSpec) -> tuple[Allocation, bool]:  # noqa: A002
        """Keep an allocation and return it, and whether it is new.

        Raises:
            QuestionError: if the spec cannot be meant.
            ConflictError: if it is closed, or another tenant has the machine at some time of it.
        """
        check_id(id)
        check_spec(spec, self._clusters)
        spec = canonical(spec)
        async with self._putting:
            at = to_datetime(self._clock.now_ns())
            allocation, is_new = await self._ask(lambda: self._put_allocation(id, spec, at))
            self._claims.keep(allocation)
        return allocation, is_new

    async def close_allocation(self, id: str) -> Allocation:  # noqa: A002
        """Close an allocation. Raises NotFoundError."""
        async with self._putting:
            at = to_datetime(self._clock.now_ns())
            allocation = await self._ask(lambda: self._registry.close_allocation(id, at))
            self._claims.keep(allocation)
        return allocation

    async def allocation(self, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002
        """Return an allocation. Raises NotFoundError, also if it is not the tenant's, where one is given."""
        return await self._ask(lambda: self._registry.allocation(id, tenant))

    async def allocations(self, tenant: str | None = None) -> tuple[Allocation, ...]:
        """Return every allocation, or those of one tenant."""
        return await self._ask(lambda: self._registry.allocations(tenant))

    async def allocation_metrics(self, id: str, tenant: str | None = None) -> AllocationAnswer:  # noqa: A002
        """Answer what an allocation is doing. Raises NotFoundError as `allocation`."""
        return await self._ask(lambda: self._allocation_metrics(id, tenant))

    async def allocation_series(
        self,
        id: str,  # noqa: A002
        metrics: Sequence[str],
        asked: history.Window,
        tenant: str | None = None,
    ) -> SeriesAnswer:
        """Answer what an allocation did.

        Raises:
            NotFoundError: as `allocation`.
            QuestionError: if a metric has no values over time.
        """
        history.check_metrics(metrics)
        return await self._ask(lambda: self._allocation_series(id, metrics, asked, tenant))

    async def machines(self, cluster: str | None, page: Asked) -> MachinePage:
        """Return a page of the machines, or of those of one cluster."""
        instant = self._instant()
        return await self._ask(lambda: self._lists.machines(cluster, page, instant))

    async def machine(self, id: str) -> MachineRecord:  # noqa: A002
        """Return one machine. Raises NotFoundError."""
        instant = self._instant()
        return await self._ask(lambda: self._lists.complete([self._registry.machine(id)], instant)[0])

    async def retire_machine(self, id: str) -> MachineRecord:  # noqa: A002
        """Keep that a machine is gone; what is heard of it later brings it back. Raises NotFoundError."""
        at, instant = self._clock.now_ns(), self._instant()
        return await self._ask(lambda: self._lists.complete([self._registry.retire_machine(id, at)], instant)[0])

    async def nodes(self, cluster: str | None, page: Asked) -> NodePage:
        """Return a page of the machines of kind node, with how they are doing."""
        instant = self._instant()
        return await self._ask(lambda: self._lists.nodes(cluster, page, instant))

    async def gpus(self, cluster: str | None, machine: str | None, page: Asked) -> GpuPage:
        """Return a page of the views of every machine, or every view of one."""
        instant = self._instant()
        return await self._ask(lambda: self._lists.gpus(cluster, machine, page, instant))

    async def gpu(self, id: str) -> GpuRecord:  # noqa: A002
        """Return one view by id, or by the UUID of the device where only one view has it.

        Raises:
            NotFoundError: if there is no such view.
            AmbiguousError: if several views have this UUID.
        """
        instant = self._instant()
        return await self._ask(lambda: self._gpu(id, instant))

    async def events(
        self,
        *,
        start: int,
        end: int,
        cluster: str | None = None,
        machine: str | None = None,
        view: str | None = None,
        kinds: Sequence[str] = (),
        allocation: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
        tenant: str | None = None,
    ) -> EventsAnswer:
        """Return a page of events, the newest first.

        Args:
            start, end: nanoseconds since 1970, `end` excluded.
            cluster, machine: only of this cluster, of this machine (id or name).
            view: only of this view, by its key; `machine` for the machines' own.
            kinds: only of these kinds.
            allocation: only what its holder may see: its devices, in its time.
            cursor: `next` of the page before.
            limit: most events of a page.
            tenant: only what this tenant may see.

        Raises:
            NotFoundError: if there is no such allocation (of the tenant), or no such machine.
            QuestionError: if the question cannot be meant.
        """
        if not 1 <= limit <= events.MAX_LIMIT:
            raise QuestionError("limit", f"must be from 1 to {events.MAX_LIMIT}")
        if end <= start:
            raise QuestionError("until", "must be after since")
        before = events.parse_cursor(cursor) if cursor is not None else None

        def ask() -> EventsAnswer:
            spans = self._event_spans(cluster, machine, allocation, tenant, start, end)
            question = EventQuestion(
                spans=tuple(spans),
                view="" if view == "machine" else view,
                kinds=tuple(kinds),
                before=before,
                limit=limit + 1,
            )
            found = self._store.events(question)
            page = found[:limit]
            names = {one.id: one.machine.name for one in self._registry.machines(cluster)}
            return EventsAnswer(
                events=tuple(events.record_of(event, names) for event in page),
                next=events.cursor_after(page[-1]) if len(found) > limit else None,
            )

        return await self._ask(ask)

    async def processes(self, machine: str, view: str | None, at: int | None) -> ProcessesAnswer:
        """Return who uses the devices of a machine (id or name), now or at an instant.

        Args:
            machine: id or name.
            view: only this view, by its key.
            at: nanoseconds since 1970; None for now.

        Raises:
            NotFoundError: if there is no such machine.
            AmbiguousError: if several machines have the name.
        """
        now = self._clock.now_ns() if at is None else at

        def ask() -> ProcessesAnswer:
            one = self._one_called(machine)
            start = max(0, now - int(processes.LOOK_BACK_SECONDS * NANOS))
            question = ProcessQuestion(cluster=one.cluster, machine=one.id, view=view, start=start, end=now + 1)
            stored = self._store.processes(question)
            return processes.answer(one, stored, now, stale_after_seconds=self._stale_after)

        return await self._ask(ask)

    async def ready(self) -> None:
        """Ask the registry and the store something small.

        Raises:
            RegistryError, StoreError: if one of them does not answer.
        """
        await self._ask(self._registry.clusters)
        await self._ask(lambda: self._store.readers("", ""))

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)

    def _put_allocation(self, id: str, spec: AllocationSpec, at: dt.datetime) -> tuple[Allocation, bool]:  # noqa: A002
        meant = msgspec.structs.replace(spec, valid_from=spec.valid_from or self._valid_from(id) or at)
        one = Allocation(id=id, generation=1, spec=meant, created_at=at)
        machines = self._meant(spec.target)
        devices = None if spec.devices is None else frozenset(spec.devices)
        for other in self._claims.rivals(one, machines, 0, history.LATEST):
            theirs = other.spec.devices
            of_vm = spec.kind in slices.KINDS  # all of it is one tenant's, whichever devices are listed
            if of_vm or share(devices, None if theirs is None else frozenset(theirs)):
                called = f"virtual machine {spec.target.vm_uuid}" if of_vm else f"machine {spec.target.machine!r}"
                raise ConflictError(
                    f"{called} is another tenant's at that time: "
                    f"close allocation {other.id!r} first, or let them follow one another"
                )
        return self._registry.put_allocation(id, spec, at)

    def _valid_from(self, id: str) -> dt.datetime | None:  # noqa: A002
        try:
            return self._registry.allocation(id).spec.valid_from
        except NotFoundError:
            return None

    def _contested(
        self, allocation: Allocation, machines: Sequence[MachineRecord], start: int, end: int, *, name: bool
    ) -> str:
        """Say that another tenant has the same devices within a span of time; empty where none has.

        Two allocations can turn out to mean one machine after they were made: neither is shown anything then. Only
        who may see both is told the name of the other.
        """
        rivals = self._claims.rivals(allocation, machines, start, end)
        machine = answers.locate(allocation, machines).machine if rivals else None
        if allocation.spec.kind in slices.KINDS:
            shared = [one.id for one in rivals]
        elif machine is not None:
            stored = self._store.latest(machine.cluster, machine.id)
            own = answers.listed_ids(allocation, machine, stored)
            shared = [one.id for one in rivals if share(own, answers.listed_ids(one, machine, stored))]
        else:
            shared = []
        if not shared:
            return ""
        others = f" (with {', '.join(sorted(shared))})" if name else ""
        return f"the machine is allocated more than once at this time{others}: its operator must close what is wrong"

    def _allocation_metrics(self, id: str, tenant: str | None) -> AllocationAnswer:  # noqa: A002
        allocation = self._registry.allocation(id, tenant)
        if allocation.spec.kind in slices.KINDS:
            at = self._clock.now_ns()
            contested = self._contested(allocation, (), at, at + 1, name=tenant is None)
            if contested:
                return answers.unavailable(allocation, Reason.AMBIGUOUS_TARGET, contested)
            return slices.answer(
                allocation,
                self._hosts(allocation.spec),
                self._clock.now_ns(),
                stale_after_seconds=self._stale_after,
                inside=self._guests(allocation.spec.target),
            )
        machines = self._meant(allocation.spec.target)
        now = self._clock.now_ns()
        contested = self._contested(allocation, machines, now, now + 1, name=tenant is None)
        if contested:
            return answers.unavailable(allocation, Reason.AMBIGUOUS_TARGET, contested)
        located = answers.locate(allocation, machines)
        one = located.machine
        return answers.answer(
            allocation,
            machines,
            self._store.latest(one.cluster, one.id) if one else (),
            self._store.readers(one.cluster, one.id) if one else (),
            now,
            stale_after_seconds=self._stale_after,
        )

    def _hosts(self, spec: AllocationSpec) -> list[slices.Host]:
        """Return the nodes that tell of a vGPU instance which the virtual machine may have."""
        cluster, wanted = spec.target.cluster, normalise_uuid(spec.target.vm_uuid or "")
        ids = set(self._store.tellers_of_text(cluster, slices.VM_ID, wanted) if wanted else ())
        for name in spec.devices or ():
            ids.update(self._store.tellers_of_view(cluster, f"{ViewKind.VGPU}/{normalise_uuid(name) or name}"))
        return [
            slices.Host(
                machine=one, stored=self._store.latest(cluster, one.id), readers=self._store.readers(cluster, one.id)
            )
            for one in self._with_ids(cluster, ids)
            if one.machine.kind is MachineKind.NODE
        ]

    def _guests(self, target: Target) -> list[guests.Told]:
        """Return the machines that are read from inside under the target's UUID."""
        wanted = normalise_uuid(target.vm_uuid or "")
        found = self._registry.machines_with_uuid(target.cluster, wanted) if wanted else ()
        return [
            guests.Told(
                machine=one,
                stored=self._store.latest(target.cluster, one.id),
                readers=self._store.readers(target.cluster, one.id),
            )
            for one in found
            if one.machine.kind is MachineKind.GUEST
        ]

    def _allocation_series(
        self,
        id: str,  # noqa: A002
        metrics: Sequence[str],
        asked: history.Window,
        tenant: str | None,
    ) -> SeriesAnswer:
        allocation = self._registry.allocation(id, tenant)
        own = history.within(allocation, asked)
        if own is None:
            over = answers.standing(allocation, asked.end)
            reason, detail = over or (Reason.NO_DATA, "the allocation was not in force at that time")
            return history.no_series(allocation, reason, detail, asked)
        machines = self._meant(allocation.spec.target)
        contested = self._contested(allocation, machines, own.start, own.end, name=tenant is None)
        if contested:
            return history.no_series(allocation, Reason.AMBIGUOUS_TARGET, contested, own)
        if allocation.spec.kind in slices.KINDS:
            return self._guest_series(allocation, metrics, own)
        located = answers.locate(allocation, machines)
        machine = located.machine
        if machine is None:
            assert located.reason is not None
            return history.no_series(allocation, located.reason, located.detail, own)
        stored = self._store.latest(machine.cluster, machine.id)
        listed = answers.listed_ids(allocation, machine, stored)
        _, source = answers.host_side(stored, Freshness(self._clock.now_ns(), self._stale_after, ()))
        if source is Provenance.UNAVAILABLE:
            source = Provenance.HOST_LOCAL_PROBE
        points = self._store.series(machine.cluster, machine.id, metrics, own.start, own.end, own.step, source)
        return history.series_answer(allocation, machine, points, own, listed=listed, source=source)

    def _guest_series(self, allocation: Allocation, metrics: Sequence[str], own: history.Window) -> SeriesAnswer:
        home = guests.home(allocation, self._guests(allocation.spec.target))
        if home is None:
            return history.no_series(allocation, *answers.NOBODY_ANSWERS[allocation.spec.kind], own)
        inside = Provenance.SLICE_GUEST
        points = self._store.series(home.cluster, home.id, metrics, own.start, own.end, own.step, inside)
        return history.series_answer(allocation, home, points, own, listed=None, source=inside)

    def _event_spans(
        self, cluster: str | None, machine: str | None, allocation: str | None, tenant: str | None, start: int, end: int
    ) -> list[EventSpan]:
        """Return what may be seen of what is asked: everything, or what the tenant or the allocation has."""
        ids = None
        if machine is not None:
            clusters = [cluster] if cluster is not None else [one.id for one in self._registry.clusters()]
            ids = {one.id for name in clusters for one in self._machines_called(name, machine)}
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
            machines = self._meant(one.spec.target)
            home = answers.locate(one, machines).machine
            if one.spec.kind in slices.KINDS:
                home = guests.home(one, self._guests(one.spec.target))
            if tenant is not None and self._contested(one, machines, start, end, name=False):
                continue  # it is another tenant's too: neither is shown anything of it
            if home is None or (ids is not None and home.id not in ids) or cluster not in (None, home.cluster):
                continue
            span = events.span_of(one, home, self._store.latest(home.cluster, home.id), start, end)
            spans += [span] if span is not None else []
        return spans

    def _gpu(self, id: str, instant: Instant) -> GpuRecord:  # noqa: A002
        cluster, _, rest = id.partition("/")
        machine, _, view = rest.partition("/")
        if not view:
            return self._gpu_by_uuid(id, instant)
        machines = self._machines_called(cluster, machine)
        found = [one for one in self._lists.gpus_of(machines, instant) if one.device.id == id]
        if not found:
            raise NotFoundError(f"there is no view {id!r}")
        return found[0]

    def _gpu_by_uuid(self, uuid: str, instant: Instant) -> GpuRecord:
        machines: list[MachineRecord] = []
        for cluster in self._registry.clusters() if _is_name(uuid) else ():
            tellers = {id_ for kind in ViewKind for id_ in self._store.tellers_of_view(cluster.id, f"{kind}/{uuid}")}
            machines += self._with_ids(cluster.id, tellers)
        found = [one for one in self._lists.gpus_of(machines, instant) if one.device.uuid == uuid]
        if not found:
            raise NotFoundError(f"no device has the UUID {uuid!r}; ids are written cluster/machine/kind/uuid")
        if len(found) > 1:
            ids = [one.device.id for one in found]
            raise AmbiguousError(f"{uuid} is seen as {', '.join(ids)}: ask for one of them", ids)
        return found[0]

    def _one_called(self, word: str) -> MachineRecord:
        """Return the machine of this id, or the only one of this name."""
        found = [one for cluster in self._registry.clusters() for one in self._machines_called(cluster.id, word)]
        if not found:
            raise NotFoundError(f"there is no machine {word!r}")
        if len(found) > 1:
            ids = [one.id for one in found]
            raise AmbiguousError(f"{word!r} is the name of {', '.join(ids)}: ask for one of them", ids)
        return found[0]

    def _machines_called(self, cluster: str, word: str) -> tuple[MachineRecord, ...]:
        return self._registry.machines_called(cluster, word)

    def _with_ids(self, cluster: str, ids: Iterable[str]) -> list[MachineRecord]:
        """Return the machines of these ids; a store may know some that the registry, put back from a copy, does not."""
        return [one for id_ in sorted(ids) for one in self._machines_called(cluster, id_) if one.id == id_]

    def _meant(self, target: Target) -> tuple[MachineRecord, ...]:
        """Return every machine that the target may mean, and all that share a name with them."""
        found = self._machines_called(target.cluster, target.machine or "")
        for name in {one.machine.name for one in found}:
            found = (*found, *self._machines_called(target.cluster, name))
        return tuple({one.id: one for one in found}.values())


def _is_name(text: str) -> bool:
    """Tell whether a view could be called so; the store is not asked for anything else."""
    return text.isprintable() and 0 < len(text) <= 253
