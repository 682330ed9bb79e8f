"""Questions about the fleet: machines, nodes, GPUs, and who uses them."""

from collections.abc import Callable

from gpufleet.hub import processes
from gpufleet.hub.lists import Lists
from gpufleet.hub.liveness.judging import Instant
from gpufleet.hub.paging import Asked
from gpufleet.hub.queries.asking import Asking
from gpufleet.hub.queries.whereabouts import AmbiguousError, Whereabouts
from gpufleet.model.answer import GpuPage, GpuRecord, MachinePage, MachineRecord, NodePage, ProcessesAnswer
from gpufleet.model.errors import NotFoundError
from gpufleet.model.stored import ProcessQuestion
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewKind
from gpufleet.ports import Clock, Registry, Store


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
