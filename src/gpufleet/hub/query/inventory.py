"""Questions about the inventory's history: what moved, what was replaced, what is alike.

Where a GPU was, and what changed in the inventory, out of what the store tells. Pure.
"""

from collections.abc import Mapping, Sequence

from gpufleet.hub.query.history import QuestionError
from gpufleet.hub.query.paging import Asked
from gpufleet.hub.query.targets import Asking, Whereabouts
from gpufleet.model.api.answer import GpuRecord
from gpufleet.model.api.inventory import (
    ChangeKind,
    ChangeQuestion,
    GpuChange,
    GpuChangePage,
    GpuHistory,
    GpuPlace,
    GpuPool,
    SlotTenant,
    StoredChange,
    StoredSlot,
)
from gpufleet.model.time import to_datetime
from gpufleet.model.view import ViewKind
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store


def newest_of(slots: Sequence[StoredSlot]) -> StoredSlot | None:
    """Return where a view was told of last: on the machine that told of it last, in the slot told there last."""
    return max(slots, key=lambda one: (one.last_seen, one.newest, one.machine), default=None)


def history_of(slots: Sequence[StoredSlot], tenants: Sequence[StoredSlot], names: Mapping[str, str]) -> GpuHistory:
    """Return the history of one GPU.

    Args:
        slots: where it was told of.
        tenants: what was told of in the slot where it is now.
        names: the machines' ids to their names.
    """
    newest = newest_of(slots)
    ordered = sorted(slots, key=lambda one: (one is newest, one.newest, one.machine), reverse=True)
    places = tuple(
        GpuPlace(
            cluster=one.cluster,
            machine=one.machine,
            node=names.get(one.machine, ""),
            pci_address=one.address,
            first_seen=to_datetime(one.first),
            last_seen=to_datetime(one.last_seen) if one.last_seen else None,
            is_newest=one is newest,
        )
        for one in ordered
    )
    slot = tuple(
        SlotTenant(
            id=f"{one.cluster}/{one.machine}/{one.view}",
            first_seen=to_datetime(one.first),
            last_seen=to_datetime(one.last_seen) if one.last_seen else None,
        )
        for one in sorted(tenants, key=lambda one: (one.newest, one.view), reverse=True)
    )
    return GpuHistory(places=places, slot=slot)


def change_of(change: StoredChange, names: Mapping[str, str]) -> GpuChange:
    """Return a change as answers show it; `names` is the machines' ids to their names."""
    moved = change.kind is ChangeKind.MOVED
    cluster, machine, address = change.before if moved else (None, None, None)
    return GpuChange(
        at=to_datetime(change.at),
        kind=change.kind,
        cluster=change.cluster,
        machine=change.machine,
        node=names.get(change.machine, ""),
        pci_address=change.address,
        device=change.view,
        before_cluster=cluster,
        before_machine=machine,
        before_pci_address=address,
        before_device=None if moved else change.before[0],
    )


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
            newest = newest_of(slots)
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
            return history_of(slots, tenants, names)

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
                items=tuple(change_of(one, names) for one in page),
                next=asked.cursor((page[-1].at, page[-1].id)) if len(found) > asked.limit else None,
            )

        return await self._asking.ask(ask)

    async def pools(self, cluster: str | None) -> tuple[GpuPool, ...]:
        """Return which GPUs (of one cluster) are alike."""
        return await self._asking.ask(lambda: self._store.pools(cluster))
