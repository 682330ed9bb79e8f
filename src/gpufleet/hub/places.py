"""Where a GPU was, and what changed in the inventory, out of what the store tells. Pure."""

from collections.abc import Mapping, Sequence

from gpufleet.model.inventory import ChangeKind, GpuChange, GpuHistory, GpuPlace, SlotTenant, StoredChange, StoredSlot
from gpufleet.model.time import to_datetime


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
