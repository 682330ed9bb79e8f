"""Segments of a unit's time, compared with their definition by instant."""

import datetime as dt
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.usage.segments import HeldPart, UnitHolding, cut_segments, device_intervals, part_intervals
from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit, UnitPart
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target

T0 = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
END = 12
UNITS = [("c", "u0"), ("c", "u1")]
TENANTS = {"a": "t1", "b": "t1", "c": "t2", "d": None}


def allocation(id_: str, tenant: str | None) -> Allocation:
    target = Target(cluster="c", machine="m")
    spec = AllocationSpec(kind=AllocationKind.BARE_METAL, target=target, tenant=tenant)
    return Allocation(id=id_, generation=1, spec=spec, created_at=T0)


ALLOCATIONS = {id_: allocation(id_, tenant) for id_, tenant in TENANTS.items()}

instants = st.integers(0, END)
holdings = st.builds(
    UnitHolding,
    st.sampled_from(UNITS),
    st.builds(HeldPart, st.sampled_from([WHOLE, "MIG-1", "MIG-2"])),
    st.sampled_from(sorted(TENANTS)),
    instants,
    instants,
)


@given(held=st.lists(holdings, max_size=12), cuts=st.lists(instants, max_size=4))
def test_segments_have_the_parts_held_at_each_instant(held: list[UnitHolding], cuts: list[int]) -> None:
    found = cut_segments(held, ALLOCATIONS, cuts)
    for unit in UNITS:
        own = [one for one in held if one.unit == unit and one.start < one.end]
        edges = {at for one in own for at in (one.start, one.end)}
        edges |= {at for at in cuts if edges and min(edges) < at < max(edges)}
        expected = []
        for start, end in pairwise(sorted(edges)):
            parts: dict[str, frozenset[HeldPart]] = {}
            for one in own:
                if one.start <= start < one.end:
                    parts[one.allocation] = parts.get(one.allocation, frozenset()) | {one.part}
            if parts:
                expected.append((start, end, parts))
        assert [(one.start, one.end, one.parts) for one in found if one.unit == unit] == expected


VMS = [f"{number}" * 8 + "-0000-4000-8000-000000000000" for number in (1, 2)]


def of_vm(id_: str, vm: str, tenant: str | None) -> Allocation:
    spec = AllocationSpec(kind=AllocationKind.GPU_SLICE, target=Target(cluster="c", vm_uuid=vm), tenant=tenant)
    return Allocation(id=id_, generation=1, spec=spec, created_at=T0)


POD = HeldPart(WHOLE, ("pod", "p"))


@pytest.mark.parametrize(
    ("other", "part", "contested"),
    [
        (allocation("o", "t1"), HeldPart(WHOLE), True),
        (allocation("o", "t1"), HeldPart("MIG-1"), True),
        (of_vm("o", VMS[1], "t1"), HeldPart(WHOLE), True),
        (of_vm("o", VMS[0].upper(), "t1"), HeldPart(WHOLE), False),  # the same virtual machine
        (allocation("o", None), HeldPart(WHOLE), False),
        (allocation("o", "t1"), POD, False),
    ],
)
def test_virtual_machine_without_tenant_contests_a_part(other: Allocation, part: HeldPart, contested: bool) -> None:
    held = [UnitHolding(UNITS[0], HeldPart(WHOLE), "vm", 0, 9), UnitHolding(UNITS[0], part, "o", 0, 9)]
    (segment,) = cut_segments(held, {"vm": of_vm("vm", VMS[0], None), "o": other})
    assert segment.contested == contested


def test_claim_of_a_guest_counts_only_while_its_machine_is_held() -> None:
    host, guest = ("host", "gpu/A"), ("guest", "gpu/A")
    unit = PhysicalUnit("c", "u0", (guest, host), None, {}, claims=frozenset({guest}))
    held = [UnitHolding(UNITS[0], HeldPart(WHOLE), "a", 0, 9), UnitHolding(UNITS[0], HeldPart(WHOLE), "vm", 5, 9)]
    segments = cut_segments(held, {**ALLOCATIONS, "vm": of_vm("vm", VMS[0], "t1")})
    views = [interval.views for one in segments for _, interval in device_intervals(one, unit)]
    assert views == [(host,), (guest, host)]


def test_interval_of_a_mig_device_has_the_views_of_its_gpu() -> None:
    gpu, mig = ("m", "gpu/A"), ("m", "mig/1")
    unit = PhysicalUnit("c", "u0", (gpu,), None, {"1": UnitPart(0.5, (mig,))})
    found = {name: (one.views, one.whole) for name, one in part_intervals(unit, {WHOLE}, 0, 9)}
    assert found == {WHOLE: ((gpu,), ()), "1": ((mig,), (gpu,))}


class CountedInstant(int):
    """Instant that counts its comparisons."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        CountedInstant.comparisons += 1
        return super().__lt__(other)

    def __le__(self, other: int) -> bool:
        CountedInstant.comparisons += 1
        return super().__le__(other)


def comparisons_for(count: int) -> int:
    at = [CountedInstant(number) for number in range(2 * count)]
    held = [UnitHolding(UNITS[0], HeldPart(WHOLE), "a", at[2 * n], at[2 * n + 1]) for n in range(count)]
    CountedInstant.comparisons = 0
    assert len(cut_segments(held, ALLOCATIONS)) == count
    return CountedInstant.comparisons


def test_work_grows_with_the_number_of_holdings_and_not_its_square() -> None:
    assert comparisons_for(800) < 3 * comparisons_for(400)
