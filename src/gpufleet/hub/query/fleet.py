"""Questions about the fleet: machines, nodes, GPUs, and who uses them.

The fleet in pages: machines, nodes and devices, and beside them how many GPUs report of those that should.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

import msgspec

from gpufleet.fleet.attribution import contract
from gpufleet.fleet.readings import Freshness
from gpufleet.hub.liveness.states import Instant
from gpufleet.hub.query import processes
from gpufleet.hub.query.paging import Asked
from gpufleet.hub.query.records import (
    Covering,
    count_gpus,
    count_shown,
    gpu_records,
    may_count_twice,
    node_record,
    with_age,
)
from gpufleet.hub.query.targets import AmbiguousError, Asking, Whereabouts
from gpufleet.model.api.answer import (
    Coverage,
    GpuPage,
    GpuRecord,
    MachinePage,
    MachineRecord,
    NodePage,
    NodeRecord,
    ProcessesAnswer,
)
from gpufleet.model.declared import BELIEVED_NS
from gpufleet.model.errors import NotFoundError
from gpufleet.model.liveness import Liveness
from gpufleet.model.machine import MachineKind
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.ledger import MachineMark
from gpufleet.model.stored.samples import ProcessQuestion
from gpufleet.model.time import NANOS, to_ns
from gpufleet.model.view import ViewKind
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

T = TypeVar("T")

DEVICES_A_MACHINE = 8
"""Machines of a page of devices are asked for in groups that will about fill it if each has so many."""


class Lists:
    """Answers for many machines with a few questions to the store, however many they are. Everything here blocks."""

    def __init__(self, *, registry: Registry, store: Store, clock: Clock, stale_after_seconds: float) -> None:
        self._registry = registry
        self._store = store
        self._covering = Covering(registry=registry, store=store, clock=clock, stale_after_seconds=stale_after_seconds)
        self._clock = clock
        self._stale_after = stale_after_seconds

    def machines(self, cluster: str | None, page: Asked, instant: Instant) -> MachinePage:
        """Return a page of machines with the number of their GPUs."""
        found, following = self._page(cluster, page, None)
        return MachinePage(items=self.complete(found, instant), coverage=self._coverage(cluster), next=following)

    def complete(self, machines: Sequence[MachineRecord], instant: Instant) -> tuple[MachineRecord, ...]:
        """Fill in the age of machines, how recently they were heard of, and the number of their GPUs."""
        counts = self._counts(machines, _of_each(machines, self._store.readers_of), instant)
        return tuple(
            msgspec.structs.replace(one, gpus=counts[one.id][0], liveness=_with_gpus(one.liveness, counts[one.id]))
            for one in _judged(self._expected(machines), instant)
        )

    def nodes(self, cluster: str | None, page: Asked, instant: Instant) -> NodePage:
        """Return a page of machines of kind node, with how they are doing."""
        found, following = self._page(cluster, page, MachineKind.NODE)
        readers = _of_each(found, self._store.readers_of)
        counts = self._counts(found, readers, instant)

        def record(machine: MachineRecord) -> NodeRecord:
            error = contract.last_error(readers.get(machine.id, ()))
            liveness = _with_gpus(machine.liveness, counts[machine.id])
            machine = msgspec.structs.replace(machine, liveness=liveness)
            return node_record(machine, counts[machine.id], error, self._stale_after)

        items = tuple(map(record, _judged(self._expected(found), instant)))
        return NodePage(items=items, coverage=self._coverage(cluster), next=following)

    def gpus(self, cluster: str | None, machine: str | None, page: Asked, instant: Instant) -> GpuPage:
        """Return a page of views; a machine's are never parted, so it may have a few more than were asked for."""
        items: list[GpuRecord] = []
        after: str | None = None
        if machine is not None:
            items += self.gpus_of(self._called(cluster, machine), instant)
        else:
            place = page
            while len(items) < page.limit:
                group = max(1, -(-(page.limit - len(items)) // DEVICES_A_MACHINE))
                found, after = self._page(cluster, msgspec.structs.replace(place, limit=group), None)
                items += self.gpus_of(found, instant)
                if after is None:
                    break
                last = found[-1]
                place = msgspec.structs.replace(page, after=(last.cluster, last.machine.name, last.id))
        return GpuPage(items=tuple(items), coverage=self._coverage(cluster), next=after)

    def gpus_of(self, machines: Sequence[MachineRecord], instant: Instant) -> list[GpuRecord]:
        """Return every view of machines, in their order."""
        stored = _of_each(machines, self._store.latest_of)
        readers = _of_each(machines, self._store.readers_of)
        return [
            record
            for one in _judged(machines, instant)
            for record in gpu_records(
                one, stored.get(one.id, ()), self._freshness(readers.get(one.id, ())), instant.behind
            )
        ]

    def _expected(self, machines: Sequence[MachineRecord]) -> list[MachineRecord]:
        """Fill in how many GPUs others say that machines have."""
        since = self._clock.now_ns() - BELIEVED_NS
        buses = _of_each(machines, self._store.gpus_on_buses)
        declared = _of_each(machines, lambda cluster, ids: self._store.declared_of(cluster, ids, since))
        return [
            msgspec.structs.replace(one, pci_gpus=buses.get(one.id), kubernetes=declared.get(one.id, ()))
            for one in machines
        ]

    def _counts(
        self,
        machines: Sequence[MachineRecord],
        readers: Mapping[str, tuple[ReaderStatus, ...]],
        instant: Instant,
    ) -> dict[str, tuple[int, int]]:
        """Return how many GPUs each machine has, and how many of them report: as many as `gpus_of` shows."""
        standings = _of_each(machines, self._store.standings)
        doubtful = [one for one in machines if may_count_twice(standings.get(one.id, ()))]
        stored = _of_each(doubtful, self._store.latest_of)
        counts = {}
        for one in machines:
            freshness = self._freshness(readers.get(one.id, ()))
            if one.id in stored:
                counts[one.id] = count_shown(gpu_records(one, stored[one.id], freshness, instant.behind))
            else:
                counts[one.id] = count_gpus(standings.get(one.id, ()), freshness)
        return counts

    def _called(self, cluster: str | None, word: str) -> list[MachineRecord]:
        clusters = [cluster] if cluster is not None else [one.id for one in self._registry.clusters()]
        return [one for name in clusters for one in self._registry.machines_called(name, word)]

    def _page(
        self, cluster: str | None, page: Asked, kind: MachineKind | None
    ) -> tuple[Sequence[MachineRecord], str | None]:
        found = self._registry.machines(cluster, kind=kind, after=page.after, limit=page.limit + 1)
        if len(found) <= page.limit:
            return found, None
        last = found[page.limit - 1]
        return found[: page.limit], page.cursor((last.cluster, last.machine.name, last.id))

    def _coverage(self, cluster: str | None) -> tuple[Coverage, ...]:
        marks = self._registry.machine_marks(cluster, beside_retired=True)
        return self._covering.of(cluster, [one.id for one in marks if one.is_retired])

    def _freshness(self, readers: Sequence[ReaderStatus]) -> Freshness:
        return Freshness(self._clock.now_ns(), self._stale_after, readers)


def _judged(machines: Sequence[MachineRecord], instant: Instant) -> Iterator[MachineRecord]:
    """Fill in how long ago each machine was heard of, and what is to be thought of that."""
    for one in machines:
        mark = MachineMark(
            id=one.id,
            cluster=one.cluster,
            sender=one.sender,
            last_seen=to_ns(one.last_seen),
            retired_at=to_ns(one.retired_at) if one.retired_at else None,
            conflict=one.conflict is not None,
            named_only=one.named_only,
        )
        yield msgspec.structs.replace(with_age(one, instant.now), liveness=instant.machine(mark))


def _with_gpus(liveness: Liveness | None, gpus: tuple[int, int]) -> Liveness | None:
    """Say how many of a machine's GPUs report, where that is not all of them."""
    known, reporting = gpus
    if liveness is None or reporting >= known:
        return liveness
    return msgspec.structs.replace(liveness, partial=(*liveness.partial, f"GPUs reporting: {reporting} of {known}"))


def _of_each(machines: Sequence[MachineRecord], ask: Callable[[str, Sequence[str]], Mapping[str, T]]) -> dict[str, T]:
    """Ask one question a cluster; ids of machines are unique over all of them."""
    found: dict[str, T] = {}
    for cluster, group in groupby(machines, key=lambda one: one.cluster):
        found.update(ask(cluster, [one.id for one in group]))
    return found


class FleetQueries:
    """Answers for what the fleet is made of."""

    def __init__(
        self,
        *,
        registry: Registry,
        store: Store,
        whereabouts: Whereabouts,
        asking: Asking,
        clock: Clock,
        stale_after_seconds: float,
        instant: Callable[[], Instant],
    ) -> None:
        self._registry = registry
        self._store = store
        self._whereabouts = whereabouts
        self._asking = asking
        self._clock = clock
        self._stale_after = stale_after_seconds
        self._instant = instant
        self._lists = Lists(registry=registry, store=store, clock=clock, stale_after_seconds=stale_after_seconds)

    async def machines(self, cluster: str | None, page: Asked) -> MachinePage:
        """Return a page of the machines, or of those of one cluster."""
        instant = self._instant()
        return await self._asking.ask(lambda: self._lists.machines(cluster, page, instant))

    async def machine(self, id: str) -> MachineRecord:  # noqa: A002
        """Return one machine. Raises NotFoundError."""
        instant = self._instant()
        return await self._asking.ask(lambda: self._lists.complete([self._registry.machine(id)], instant)[0])

    async def retire_machine(self, id: str) -> MachineRecord:  # noqa: A002
        """Keep that a machine is gone; what is heard of it later brings it back. Raises NotFoundError."""
        at, instant = self._clock.now_ns(), self._instant()
        return await self._asking.ask(lambda: self._lists.complete([self._registry.retire_machine(id, at)], instant)[0])

    async def nodes(self, cluster: str | None, page: Asked) -> NodePage:
        """Return a page of the machines of kind node, with how they are doing."""
        instant = self._instant()
        return await self._asking.ask(lambda: self._lists.nodes(cluster, page, instant))

    async def gpus(self, cluster: str | None, machine: str | None, page: Asked) -> GpuPage:
        """Return a page of the views of every machine, or every view of one."""
        instant = self._instant()
        return await self._asking.ask(lambda: self._lists.gpus(cluster, machine, page, instant))

    async def gpu(self, id: str) -> GpuRecord:  # noqa: A002
        """Return one view by id, or by the UUID of the device where only one view has it.

        Raises:
            NotFoundError: if there is no such view.
            AmbiguousError: if several views have this UUID.
        """
        instant = self._instant()
        return await self._asking.ask(lambda: self._gpu(id, instant))

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
            one = self._whereabouts.one_called(machine)
            start = max(0, now - int(processes.LOOK_BACK_SECONDS * NANOS))
            question = ProcessQuestion(cluster=one.cluster, machine=one.id, view=view, start=start, end=now + 1)
            stored = self._store.processes(question)
            return processes.answer(one, stored, now, stale_after_seconds=self._stale_after)

        return await self._asking.ask(ask)

    def _gpu(self, id: str, instant: Instant) -> GpuRecord:  # noqa: A002
        cluster, _, rest = id.partition("/")
        machine, _, view = rest.partition("/")
        if not view:
            return self._gpu_by_uuid(id, instant)
        machines = self._whereabouts.called(cluster, machine)
        found = [one for one in self._lists.gpus_of(machines, instant) if one.device.id == id]
        if not found:
            raise NotFoundError(f"there is no view {id!r}")
        return found[0]

    def _gpu_by_uuid(self, uuid: str, instant: Instant) -> GpuRecord:
        machines: list[MachineRecord] = []
        for cluster in self._registry.clusters() if _is_name(uuid) else ():
            tellers = {id_ for kind in ViewKind for id_ in self._store.tellers_of_view(cluster.id, f"{kind}/{uuid}")}
            machines += self._whereabouts.with_ids(cluster.id, tellers)
        found = [one for one in self._lists.gpus_of(machines, instant) if one.device.uuid == uuid]
        if not found:
            raise NotFoundError(f"no device has the UUID {uuid!r}; ids are written cluster/machine/kind/uuid")
        if len(found) > 1:
            ids = [one.device.id for one in found]
            raise AmbiguousError(f"{uuid} is seen as {', '.join(ids)}: ask for one of them", ids)
        return found[0]


def _is_name(text: str) -> bool:
    """Tell whether a view could be called so; the store is not asked for anything else."""
    return text.isprintable() and 0 < len(text) <= 253
