"""Questions about events: who may see which, and pages of them. Pure."""

from collections.abc import Mapping, Sequence

from gpufleet.hub.answers import listed_ids
from gpufleet.hub.claims import VM_KINDS
from gpufleet.model.allocation import Allocation
from gpufleet.model.answer import EventRecord, MachineRecord
from gpufleet.model.stored import EventSpan, StoredEvent, StoredSample
from gpufleet.model.time import to_datetime, to_ns

MAX_ALLOCATIONS = 200
"""Allocations of a tenant that one question can be about."""


def span_of(
    allocation: Allocation, machine: MachineRecord, stored: Sequence[StoredSample], start: int, end: int
) -> EventSpan | None:
    """Return what the allocation's tenant may see: its own devices, in its own time; None if that is nothing.

    Who has the whole machine also sees the machine's own events; who has some of its devices sees theirs alone.

    Args:
        allocation: whose.
        machine: where it is.
        stored: the newest samples of that machine.
        start, end: what was asked for, in nanoseconds since 1970.
    """
    start, end = _own_time(allocation, start, end)
    if start >= end:
        return None
    # A virtual machine is its tenant's as a whole, and what it tells is of itself.
    listed = None if allocation.spec.kind in VM_KINDS else listed_ids(allocation, machine, stored)
    prefix = f"{machine.cluster}/{machine.id}/"
    views = None if listed is None else frozenset(name.removeprefix(prefix) for name in listed)
    return EventSpan(cluster=machine.cluster, machine=machine.id, views=views, start=start, end=end)


def touches(allocation: Allocation, start: int, end: int) -> bool:
    """Whether the allocation was in force at any instant of the time."""
    first, last = _own_time(allocation, start, end)
    return first < last


def record_of(event: StoredEvent, names: Mapping[str, str]) -> EventRecord:
    """Return an event as answers show it; `names` is the machines' ids to their names."""
    return EventRecord(
        cluster=event.cluster,
        machine=event.machine,
        node=names.get(event.machine, ""),
        device=event.view,
        at=to_datetime(event.at),
        received_at=to_datetime(event.received_at),
        kind=event.kind,
        code=event.code,
        attributes=event.attributes,
    )


def _own_time(allocation: Allocation, start: int, end: int) -> tuple[int, int]:
    spec = allocation.spec
    ends = [to_ns(at) for at in (spec.valid_to, allocation.closed_at) if at is not None]
    return max(start, to_ns(spec.valid_from) if spec.valid_from is not None else 0), min(end, *ends, end)
