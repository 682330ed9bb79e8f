"""Who claims a machine, and who else does: no two tenants are shown the same devices."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from gpufleet.hub import answers
from gpufleet.model.allocation import Allocation, AllocationKind
from gpufleet.model.answer import MachineRecord
from gpufleet.model.time import to_ns
from gpufleet.model.view import normalise_uuid

_END = 2**63

Place = tuple[str, str]
"""Cluster, and what an allocation calls the machine: its id or its name, or `_VM` and a virtual machine's UUID."""

VM_KINDS = frozenset({AllocationKind.GPU_SLICE, AllocationKind.KUBEVIRT_VMI})

_VM = "\0vm/"  # no machine is called so


class Claims:
    """Tenants' allocations of machines, of their devices, or of virtual machines. Safe to read while it is changed."""

    def __init__(self, allocations: Iterable[Allocation]) -> None:
        self._by_id = {one.id: one for one in allocations if _is_claim(one)}
        self._by_place: dict[Place, tuple[str, ...]] = {}
        for one in self._by_id.values():
            self._by_place[_place(one)] = (*self._by_place.get(_place(one), ()), one.id)

    def keep(self, allocation: Allocation) -> None:
        """Take in an allocation as it is now."""
        before = self._by_id.pop(allocation.id, None)
        if before is not None:
            place = _place(before)
            self._by_place[place] = tuple(one for one in self._by_place[place] if one != before.id)
        if _is_claim(allocation):
            self._by_id[allocation.id] = allocation
            place = _place(allocation)
            self._by_place[place] = (*self._by_place.get(place, ()), allocation.id)

    def rivals(
        self, allocation: Allocation, machines: Sequence[MachineRecord], start: int, end: int
    ) -> tuple[Allocation, ...]:
        """Return what other tenants have of the same machine within a span of time and the allocation's own.

        Args:
            allocation: of any kind; one that is no tenant's or no machine's has no rivals.
            machines: every machine of its cluster; one that is not among them is told by its name alone.
            start, end: nanoseconds since 1970, `end` excluded.
        """
        if not _is_claim(allocation):
            return ()
        machine = answers.locate(allocation, machines).machine
        own = _span(allocation)
        first, last = max(start, own[0]), min(end, own[1])
        cluster, word = _place(allocation)
        names = (machine.id, machine.machine.name) if machine else (word,)
        ids = {id_: None for name in names for id_ in self._by_place.get((cluster, name), ())}
        found = []
        for id_ in ids:
            other = self._by_id.get(id_)
            if other is None or other.id == allocation.id or other.spec.tenant == allocation.spec.tenant:
                continue
            begin, until = _span(other)
            theirs = answers.locate(other, machines).machine
            if (
                begin < last
                and first < until
                and (theirs is None) == (machine is None)
                and (machine is None or theirs is None or theirs.id == machine.id)
            ):
                found.append(other)
        return tuple(found)


def share(one: AbstractSet[str] | None, other: AbstractSet[str] | None) -> bool:
    """Tell whether two lists of devices have one in common; None is the whole machine."""
    return one is None or other is None or not one.isdisjoint(other)


def _is_claim(allocation: Allocation) -> bool:
    whole = allocation.spec.kind is AllocationKind.BARE_METAL or allocation.spec.kind in VM_KINDS
    return whole and allocation.spec.tenant is not None


def _place(allocation: Allocation) -> Place:
    target = allocation.spec.target
    if allocation.spec.kind in VM_KINDS:
        return target.cluster, f"{_VM}{normalise_uuid(target.vm_uuid or '') or target.vm_uuid}"
    return target.cluster, target.machine or ""


def _span(allocation: Allocation) -> tuple[int, int]:
    spec = allocation.spec
    ends = [to_ns(at) for at in (spec.valid_to, allocation.closed_at) if at is not None]
    return (to_ns(spec.valid_from) if spec.valid_from else 0), min(ends, default=_END)
