"""Devices that an allocation lacks, compared second by second with a plain count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.usage.allocated import AllocatedUnit, missing_devices
from gpufleet.fleet.usage.segments import HeldPart, UnitKey
from gpufleet.fleet.usage.units import WHOLE, PhysicalUnit
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.time import to_datetime

SECONDS = 12
NAMES = ("a", "b", "c")
UNITS: dict[UnitKey, PhysicalUnit] = {("c", name): PhysicalUnit("c", name, (), "NVIDIA H200", {}) for name in NAMES}


def allocation(*, expected: dict[str, int] | None = None, devices: tuple[str, ...] | None = None) -> Allocation:
    spec = AllocationSpec(
        kind=AllocationKind.BARE_METAL,
        target=Target(cluster="c", machine="m"),
        expected=expected or {},
        devices=devices,
    )
    return Allocation(id="one", generation=1, spec=spec, created_at=to_datetime(0))


def whole(name: str, start: int, end: int) -> AllocatedUnit:
    return AllocatedUnit(name, HeldPart(WHOLE), start, end)


def intervals() -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, SECONDS), st.integers(0, SECONDS)).filter(lambda one: one[0] < one[1])


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), intervals()), max_size=5),
    st.integers(0, 4),
    st.lists(st.tuples(intervals(), st.integers(1, 3)), max_size=2),
)
def test_stand_ins_fill_each_second_up_to_the_expected_number(
    had: list[tuple[str, tuple[int, int]]], expected: int, ambiguous: list[tuple[tuple[int, int], int]]
) -> None:
    units = [whole(name, *interval) for name, interval in had]
    spans = [(*interval, number) for interval, number in ambiguous]
    most, stand_ins = missing_devices(allocation(expected={"H200": expected}), units, UNITS, (0, SECONDS), spans)
    lacking = []
    for second in range(SECONDS):
        there = {name for name, (start, end) in had if start <= second < end}
        least = max([number for start, end, number in spans if start <= second < end], default=0)
        lacking.append(max(0, max(expected, least) - len(there)))
        present = [unit.id for unit, start, end in stand_ins if start <= second < end]
        assert len(present) == len(set(present)) == lacking[-1]
    assert most == max(lacking)


@pytest.mark.parametrize(
    ("expected", "model"), [({"H200": 2}, "NVIDIA H200"), ({"B200": 2}, "B200"), ({"H200": 1, "B200": 1}, None)]
)
def test_stand_in_has_the_model_of_its_class(expected: dict[str, int], model: str | None) -> None:
    _, stand_ins = missing_devices(allocation(expected=expected), [whole("a", 0, SECONDS)], UNITS, (0, SECONDS))
    assert [unit.model for unit, _, _ in stand_ins] == [model]


def test_shares_of_gpus_are_not_compared_with_expected_gpus() -> None:
    part = AllocatedUnit("a", HeldPart("MIG-1"), 0, SECONDS)
    assert missing_devices(allocation(expected={"H200": 2}), [part], UNITS, (0, SECONDS)) == (0, [])
    most, _ = missing_devices(allocation(devices=("GPU-x", "MIG-1")), [part], UNITS, (0, SECONDS))
    assert most == 1
