"""Inventory history: the slots of each GPU over time, and changes between them."""

import datetime as dt
import enum
from typing import NamedTuple

import msgspec

from gpufleet.model.time import NANOS

RETURN_GAP_NS = 1800 * NANOS
"""Pause in the reports of a view after which it counts as a return: three times the longest interval of a lane."""


class ChangeKind(enum.StrEnum):
    """Kind of inventory change."""

    MOVED = "moved"  # a GPU was reported in another machine or slot than before
    REPLACED = "replaced"  # a slot holds another GPU than before


class GpuPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Slot that a GPU is or was in.

    Attributes:
        cluster, machine: location, by the hub's ids.
        node: last reported name of the machine.
        pci_address: the slot.
        first_seen: when the GPU was first reported there, by the machine's clock.
        last_seen: when the machine last reported the GPU, in any slot, by the hub's clock; None if that is not kept.
        is_newest: the GPU was last reported here.
    """

    cluster: str
    machine: str
    node: str
    pci_address: str
    first_seen: dt.datetime
    last_seen: dt.datetime | None
    is_newest: bool


class SlotOccupant(msgspec.Struct, frozen=True, kw_only=True):
    """GPU that is or was in a slot; `id` is its view's id, the times are as in `GpuPlace`."""

    id: str
    first_seen: dt.datetime
    last_seen: dt.datetime | None


class GpuHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Slots of a GPU, and GPUs of its present slot.

    Attributes:
        places: slots in which the GPU was reported, newest first.
        slot: GPUs reported in its present slot, including itself, newest first.
    """

    places: tuple[GpuPlace, ...]
    slot: tuple[SlotOccupant, ...]


class GpuChange(msgspec.Struct, frozen=True, kw_only=True):
    """Row of `GET /v1/gpus/changes`.

    Attributes:
        at: when the change was first reported, by the machine's clock.
        kind: what changed.
        cluster, machine, node, pci_address: the present location.
        device: key of the view that is there now.
        before_cluster, before_machine, before_pci_address: earlier location, of a moved GPU.
        before_device: key of the earlier view, of a replaced GPU.
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
    """Answer of `GET /v1/gpus/changes`, newest first; `next` is the cursor of the next page, or None."""

    items: tuple[GpuChange, ...]
    next: str | None


class GpuPool(msgspec.Struct, frozen=True, kw_only=True):
    """Row of `GET /v1/gpus/pools`: identical GPUs of a cluster.

    Attributes:
        cluster: cluster of the GPUs.
        side: observer: `host`, or `guest` from inside a virtual machine.
        name: of the GPU, as its driver calls it. None if not reported, as are `driver` and `vbios`.
        driver: driver version of their machines.
        vbios: VBIOS version.
        gpus: number of GPUs, of those reported within 20 minutes before their machine's last GPU report.
        machines: number of machines with such GPUs.
    """

    cluster: str
    side: str
    name: str | None
    driver: str | None
    vbios: str | None
    gpus: int
    machines: int


class SlotRow(NamedTuple):
    """First report of a view in a slot by a reader, or first one again, as in `StoredSlot.begun`.

    Attributes:
        reader: the reader.
        since: nanoseconds since 1970.
        before: time of the reader's last report of the view before, in whole seconds, as nanoseconds since 1970; 0 if
            there is none, or if a later report came first.
    """

    reader: str
    since: int
    before: int


class StoredSlot(msgspec.Struct, frozen=True, kw_only=True):
    """Stored view in a slot.

    Attributes:
        cluster, machine, view: the view, by the hub's ids and its key.
        address: the slot.
        first: when the view was first reported there; nanoseconds since 1970, by the machine's clock.
        newest: when it was first reported there again after it was elsewhere in the machine; same clock.
        last_seen: nanoseconds since 1970 by the hub's clock when the machine last reported the view; 0 if not kept.
        begun: when the view was first reported there, or again after it was elsewhere, after a time in which a report
            is missing, or with other texts; ascending, same clock.
        rows: the same by reader, ascending.
    """

    cluster: str
    machine: str
    view: str
    address: str
    first: int
    newest: int
    last_seen: int
    begun: tuple[int, ...]
    rows: tuple[SlotRow, ...] = ()


class ChangeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for inventory changes, newest first.

    Attributes:
        start, end: nanoseconds since 1970, `end` excluded.
        cluster, machines: only this cluster, only these machines (ids).
        kind: only this kind.
        before: only changes that follow this (time, id) in the answer's order.
        limit: maximum number of changes.
    """

    start: int
    end: int
    cluster: str | None = None
    machines: tuple[str, ...] | None = None
    kind: ChangeKind | None = None
    before: tuple[int, int] | None = None
    limit: int


class StoredChange(msgspec.Struct, frozen=True, kw_only=True):
    """Stored inventory change.

    Attributes:
        id: hash of the fields that identify the change.
        at: nanoseconds since 1970, by the machine's clock.
        kind: what changed.
        cluster, machine, address, view: present location and view.
        before: cluster, machine and slot of a moved GPU; or only the view of a replaced GPU.
    """

    id: int
    at: int
    kind: ChangeKind
    cluster: str
    machine: str
    address: str
    view: str
    before: tuple[str, ...]
