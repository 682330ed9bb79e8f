"""Inventory queries: slots of a GPU over time, moves and replacements, and pools of identical GPUs."""

from collections.abc import Mapping, Sequence

from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.targets import MachineLookup, QueryExecutor
from gpufleet.model.api.answer import GpuRecord
from gpufleet.model.api.inventory import (
    ChangeKind,
    ChangeQuery,
    GpuChange,
    GpuChangePage,
    GpuHistory,
    GpuPlace,
    GpuPool,
    SlotOccupant,
    StoredChange,
    StoredSlot,
)
from gpufleet.model.time import to_datetime
from gpufleet.model.view import ViewKind
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store


def newest_slot(slots: Sequence[StoredSlot]) -> StoredSlot | None:
    """Return the present slot of a view: the newest one on the machine that reported the view last."""
    return max(slots, key=lambda one: (one.last_seen, one.newest, one.machine), default=None)


def gpu_history(slots: Sequence[StoredSlot], occupants: Sequence[StoredSlot], names: Mapping[str, str]) -> GpuHistory:
    """Return the history of a GPU.

    Args:
        slots: slots in which it was reported.
        occupants: GPUs reported in its present slot.
        names: machine ids to names.
    """
    newest = newest_slot(slots)
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
        SlotOccupant(
            id=f"{one.cluster}/{one.machine}/{one.view}",
            first_seen=to_datetime(one.first),
            last_seen=to_datetime(one.last_seen) if one.last_seen else None,
        )
        for one in sorted(occupants, key=lambda one: (one.newest, one.view), reverse=True)
    )
    return GpuHistory(places=places, slot=slot)


def gpu_change(change: StoredChange, names: Mapping[str, str]) -> GpuChange:
    """Return a change as shown in answers; `names` maps machine ids to names."""
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
    """Queries for the history of the inventory."""

    def __init__(self, *, registry: Registry, store: Store, lookup: MachineLookup, executor: QueryExecutor) -> None:
        self._registry = registry
        self._store = store
        self._lookup = lookup
        self._executor = executor

    async def history(self, gpu: GpuRecord) -> GpuHistory | None:
        """Return the history of a GPU; None if the view is not a GPU or has no UUID."""
        if gpu.device.kind is not ViewKind.GPU or gpu.device.uuid is None:
            return None
        key = gpu.device.id.split("/", 2)[2]

        def fetch() -> GpuHistory:
            slots: list[StoredSlot] = []
            for cluster in self._registry.clusters():
                reporters = self._store.reporters_of_view(cluster.id, key)
                slots += self._store.slots(cluster.id, reporters, view=key) if reporters else ()
            newest = newest_slot(slots)
            occupants = (
                self._store.slots(newest.cluster, [newest.machine], address=newest.address)
                if newest is not None
                else ()
            )
            names = {
                one.id: one.machine.name
                for slot in slots
                for one in self._registry.find_machines(slot.cluster, slot.machine)
            }
            return gpu_history(slots, occupants, names)

        return await self._executor.run(fetch)

    async def changes(
        self,
        *,
        start: int,
        end: int,
        cluster: str | None,
        machine: str | None,
        kind: ChangeKind | None,
        requested: PageRequest,
    ) -> GpuChangePage:
        """Return a page of changes, newest first.

        Args:
            start, end: nanoseconds since 1970, `end` excluded.
            cluster, machine: only of this cluster, of this machine (id or name).
            kind: only of this kind.
            requested: the page; a place is (time, id) of a change.

        Raises:
            InvalidQueryError: if the interval is empty.
        """
        if end <= start:
            raise InvalidQueryError("until", "must be after since")

        def fetch() -> GpuChangePage:
            machines = None
            if machine is not None:
                machines = tuple(one.id for one in self._lookup.find(cluster, machine))
            query = ChangeQuery(
                start=start,
                end=end,
                cluster=cluster,
                machines=machines,
                kind=kind,
                before=requested.after,
                limit=requested.limit + 1,
            )
            found = self._store.changes(query)
            page = found[: requested.limit]
            names: Mapping[str, str] = {one.id: one.machine.name for one in self._registry.machines(cluster)}
            return GpuChangePage(
                items=tuple(gpu_change(one, names) for one in page),
                next=requested.cursor((page[-1].at, page[-1].id)) if len(found) > requested.limit else None,
            )

        return await self._executor.run(fetch)

    async def pools(self, cluster: str | None) -> tuple[GpuPool, ...]:
        """Return the pools of identical GPUs, of all clusters or of one."""
        return await self._executor.run(lambda: self._store.pools(cluster))
