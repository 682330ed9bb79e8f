"""Questions about the inventory's history: what moved, what was replaced, what is alike."""

from collections.abc import Mapping

from gpufleet.hub import places
from gpufleet.hub.history import QuestionError
from gpufleet.hub.paging import Asked
from gpufleet.hub.queries.asking import Asking
from gpufleet.hub.queries.whereabouts import Whereabouts
from gpufleet.model.answer import GpuRecord
from gpufleet.model.inventory import ChangeKind, ChangeQuestion, GpuChangePage, GpuHistory, GpuPool, StoredSlot
from gpufleet.model.view import ViewKind
from gpufleet.ports import Registry, Store


class InventoryQueries:
    """Answers for what the fleet was made of."""

    def __init__(self, *, registry: Registry, store: Store, whereabouts: Whereabouts, asking: Asking) -> None:
        self._registry = registry
        self._store = store
        self._whereabouts = whereabouts
        self._asking = asking

    async def history(self, gpu: GpuRecord) -> GpuHistory | None:
        """Return where a GPU was; None of what is no GPU or has no name of its own."""
        if gpu.device.kind is not ViewKind.GPU or gpu.device.uuid is None:
            return None
        key = gpu.device.id.split("/", 2)[2]

        def ask() -> GpuHistory:
            slots: list[StoredSlot] = []
            for cluster in self._registry.clusters():
                tellers = self._store.tellers_of_view(cluster.id, key)
                slots += self._store.slots(cluster.id, tellers, view=key) if tellers else ()
            newest = places.newest_of(slots)
            tenants = (
                self._store.slots(newest.cluster, [newest.machine], address=newest.address)
                if newest is not None
                else ()
            )
            names = {
                one.id: one.machine.name
                for slot in slots
                for one in self._registry.machines_called(slot.cluster, slot.machine)
            }
            return places.history_of(slots, tenants, names)

        return await self._asking.ask(ask)

    async def changes(
        self,
        *,
        start: int,
        end: int,
        cluster: str | None,
        machine: str | None,
        kind: ChangeKind | None,
        asked: Asked,
    ) -> GpuChangePage:
        """Return a page of changes, the newest first.

        Args:
            start, end: nanoseconds since 1970, `end` excluded.
            cluster, machine: only of this cluster, of this machine (id or name).
            kind: only of this kind.
            asked: which page; a place is a change's time and id.

        Raises:
            QuestionError: if the time is empty.
        """
        if end <= start:
            raise QuestionError("until", "must be after since")

        def ask() -> GpuChangePage:
            machines = None
            if machine is not None:
                machines = tuple(one.id for one in self._whereabouts.called(cluster, machine))
            question = ChangeQuestion(
                start=start,
                end=end,
                cluster=cluster,
                machines=machines,
                kind=kind,
                before=asked.after,
                limit=asked.limit + 1,
            )
            found = self._store.changes(question)
            page = found[: asked.limit]
            names: Mapping[str, str] = {one.id: one.machine.name for one in self._registry.machines(cluster)}
            return GpuChangePage(
                items=tuple(places.change_of(one, names) for one in page),
                next=asked.cursor((page[-1].at, page[-1].id)) if len(found) > asked.limit else None,
            )

        return await self._asking.ask(ask)

    async def pools(self, cluster: str | None) -> tuple[GpuPool, ...]:
        """Return which GPUs (of one cluster) are alike."""
        return await self._asking.ask(lambda: self._store.pools(cluster))
