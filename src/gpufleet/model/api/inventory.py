"""Where devices are and were, and what runs on them: the inventory's history."""

import datetime as dt
import enum

import msgspec


class ChangeKind(enum.StrEnum):
    """What changed in the inventory."""

    MOVED = "moved"  # a GPU was told of in another machine or slot than before
    REPLACED = "replaced"  # a slot holds another GPU than before


class GpuPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that a GPU is or was in.

    Attributes:
        cluster, machine: where, by the hub's ids.
        node: name of the machine, as it was last told.
        pci_address: the slot.
        first_seen: when the GPU was first told of there, by the machine's clock.
        last_seen: when the machine last told of the GPU, in whatever slot, by the hub's clock; None where nothing of
            that is kept.
        is_newest: it is where the GPU was told of last.
    """

    cluster: str
    machine: str
    node: str
    pci_address: str
    first_seen: dt.datetime
    last_seen: dt.datetime | None
    is_newest: bool


class SlotTenant(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that is or was in one slot; `id` is its view's, the times are as of `GpuPlace`."""

    id: str
    first_seen: dt.datetime
    last_seen: dt.datetime | None


class GpuHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Where a GPU was, and what else was where it is.

    Attributes:
        places: slots that it was told of in, the newest first.
        slot: GPUs that were told of in the slot where it is now, itself too, the newest first.
    """

    places: tuple[GpuPlace, ...]
    slot: tuple[SlotTenant, ...]


class GpuChange(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `GET /v1/gpus/changes`.

    Attributes:
        at: when it was first told so, by the machine's clock.
        kind: what changed.
        cluster, machine, node, pci_address: where, now.
        device: key of the view that is there now.
        before_cluster, before_machine, before_pci_address: where it was, of one that moved.
        before_device: key of the view that was there, where it was replaced.
    """

    at: dt.datetime
    kind: ChangeKind
    cluster: str
    machine: str
    node: str
    pci_address: str
    device: str
    before_cluster: str | None = None
    before_machine: str | None = None
    before_pci_address: str | None = None
    before_device: str | None = None


class GpuChangePage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/gpus/changes`, the newest first; `next` is the cursor of the page after it, or None."""

    items: tuple[GpuChange, ...]
    next: str | None


class GpuPool(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `GET /v1/gpus/pools`: GPUs of one cluster that are alike.

    Attributes:
        cluster: which.
        side: who sees them: `host`, or `guest` from inside a virtual machine.
        name: of the GPU, as its driver calls it; None where nobody told it, as of the rest.
        driver: version of the driver of their machines.
        vbios: version of their VBIOS.
        gpus: how many, of those that each machine told of within 20 minutes before it last told of any.
        machines: that they are in.
    """

    cluster: str
    side: str
    name: str | None
    driver: str | None
    vbios: str | None
    gpus: int
    machines: int


class StoredSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A view in a slot, as the store kept it.

    Attributes:
        cluster, machine, view: which view, by the hub's ids and its key.
        address: the slot.
        first, newest: when it was first told to be there, and when that was told anew after it was elsewhere in the
            machine; nanoseconds since 1970, by the machine's clock.
        last_seen: nanoseconds since 1970 by the hub's clock when the machine last told of the view; 0 where that is not
            kept.
    """

    cluster: str
    machine: str
    view: str
    address: str
    first: int
    newest: int
    last_seen: int


class ChangeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Which changes, the newest first.

    Attributes:
        start, end: nanoseconds since 1970, `end` excluded.
        cluster, machines: only of this cluster, of these machines (ids).
        kind: only of this kind.
        before: only after this one in the answer's order (time, id).
        limit: most changes.
    """

    start: int
    end: int
    cluster: str | None = None
    machines: tuple[str, ...] | None = None
    kind: ChangeKind | None = None
    before: tuple[int, int] | None = None
    limit: int


class StoredChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change as the store tells it.

    Attributes:
        id: number made of everything that names the change.
        at: nanoseconds since 1970, by the machine's clock.
        kind: what changed.
        cluster, machine, address, view: what is where now.
        before: cluster, machine and slot of one that moved; or the view that was replaced, alone.
    """

    id: int
    at: int
    kind: ChangeKind
    cluster: str
    machine: str
    address: str
    view: str
    before: tuple[str, ...]
