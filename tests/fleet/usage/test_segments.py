"""Segments of a unit's time, compared with their definition by instant."""

import datetime as dt
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.usage.segments import HeldPart, UnitHolding, cut_segments
from gpufleet.fleet.usage.units import WHOLE
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
