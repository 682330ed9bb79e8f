"""Residence of a GPU in a machine, derived from the machines' last reports of it."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.usage.residence import (
    MAX_CLOCK_SKEW_NS,
    UNBOUNDED,
    Interval,
    Residence,
    Succession,
    bounded_residences,
    gaps,
    joined_runs,
    last_reported,
    possibly_moved,
    succession,
)
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.inventory import StoredSlot
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from tests.support.profiles import examples

HOUR = 3600 * NANOS
X, Y = "gpu/GPU-x", "gpu/GPU-y"


def slot(machine: str, view: str, first: int, address: str = "0000:01:00.0", newest: int = 0) -> StoredSlot:
    return StoredSlot(
        cluster="c", machine=machine, view=view, address=address, first=first, newest=newest or first, last_seen=0
    )


def intervals(
    slots: list[StoredSlot], reported: Mapping[tuple[str, str], int]
) -> dict[tuple[str, str], tuple[int, int]]:
    return {place: (stay.begin, stay.end) for place, stay in bounded_residences(slots, reported).items()}


def test_residence_of_a_gpu_that_never_moved_is_unbounded() -> None:
    assert intervals([slot("a", X, 1), slot("b", Y, 2)], {("a", X): 9 * HOUR, ("b", Y): 9 * HOUR}) == {}


def test_moved_gpu_is_in_one_machine_at_a_time() -> None:
    reported = {("a", X): 2 * HOUR, ("b", X): 9 * HOUR, ("c", X): 12 * HOUR}
    found = intervals([slot("b", X, 3 * HOUR), slot("a", X, HOUR), slot("c", X, 10 * HOUR)], reported)
    assert found == {
        ("a", X): (0, 3 * HOUR),
        ("b", X): (3 * HOUR, 10 * HOUR),
        ("c", X): (10 * HOUR, UNBOUNDED),
    }


@pytest.mark.parametrize("both", [1, 5 * HOUR])
def test_gpu_reported_by_two_machines_at_once_has_not_moved(both: int) -> None:
    reported = {("a", X): 3 * HOUR + MAX_CLOCK_SKEW_NS + both, ("b", X): 9 * HOUR}
    assert intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], reported) == {}


def test_gpu_moved_back_keeps_the_interval_elsewhere() -> None:
    reported = {("a", X): 20 * HOUR, ("b", X): 5 * HOUR}
    assert intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], reported) == {("b", X): (3 * HOUR, 5 * HOUR)}


def test_gpu_that_moved_back_from_two_machines() -> None:
    reported = {("a", X): 20 * HOUR, ("b", X): 5 * HOUR, ("c", X): 9 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR), slot("c", X, 6 * HOUR)], reported)
    assert found == {("b", X): (3 * HOUR, 5 * HOUR), ("c", X): (6 * HOUR, 9 * HOUR)}


def test_gpu_reported_by_two_machines_stays_with_both() -> None:
    reported = {("a", X): 9 * HOUR, ("b", X): 9 * HOUR - MAX_CLOCK_SKEW_NS}
    assert intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], reported) == {}


def test_gpu_ends_the_residence_of_its_predecessor_in_the_slot() -> None:
    reported = {("a", X): 2 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("a", Y, 4 * HOUR), slot("b", X, 6 * HOUR)], reported)
    assert found == {("a", X): (0, 4 * HOUR), ("a", Y): (4 * HOUR, UNBOUNDED), ("b", X): (6 * HOUR, UNBOUNDED)}


def test_replacement_in_an_earlier_slot_does_not_end_residence() -> None:
    """X moves to another slot, Y takes its first slot, and later X moves to another machine."""
    slots = [
        slot("a", X, HOUR),
        slot("a", X, 2 * HOUR, "0000:02:00.0"),
        slot("a", Y, 3 * HOUR),
        slot("b", X, 8 * HOUR),
    ]
    found = intervals(slots, {("a", X): 7 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR})
    assert found == {("a", X): (0, 8 * HOUR), ("b", X): (8 * HOUR, UNBOUNDED)}


def test_replaced_gpu_is_in_its_slot_until_the_next_one() -> None:
    reported = {("a", X): 2 * HOUR, ("a", Y): 9 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("a", Y, 4 * HOUR)], reported)
    assert found == {("a", X): (0, 4 * HOUR), ("a", Y): (4 * HOUR, UNBOUNDED)}
    assert intervals([slot("a", X, HOUR), slot("a", Y, 4 * HOUR)], {**reported, ("a", X): 9 * HOUR}) == {}


def test_gpu_replaced_from_another_slot_ends_there() -> None:
    slots = [slot("a", X, HOUR), slot("a", Y, HOUR, "0000:02:00.0"), slot("a", Y, 4 * HOUR)]
    assert intervals(slots, {("a", X): 2 * HOUR, ("a", Y): 9 * HOUR}) == {("a", X): (0, 4 * HOUR)}


def turns(reported: Mapping[str, Sequence[Interval]]) -> tuple[dict[str, list[Interval]], list[Interval]]:
    """Return the turns of guests, and the ambiguous intervals, with a tolerance of 2."""
    found = succession(reported, 2)
    return {id_: list(intervals) for id_, intervals in found.turns.items()}, list(found.ambiguous)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({}, {}),
        ({"a": [(2, 5)]}, {"a": [(0, UNBOUNDED)]}),
        ({"a": [(2, 5)], "b": [(7, 9)]}, {"a": [(0, 7)], "b": [(7, UNBOUNDED)]}),
        ({"a": [(2, 9)], "b": [(7, 12)]}, {"a": [(0, 7)], "b": [(7, UNBOUNDED)]}),
        ({"a": [(2, 5), (9, 20)], "b": [(6, 8)]}, {"a": [(0, 6), (9, UNBOUNDED)], "b": [(6, 9)]}),
        ({"a": [(2, 7), (9, 20)], "b": [(6, 10)]}, {"a": [(0, 6), (9, UNBOUNDED)], "b": [(6, 9)]}),
    ],
    ids=["none", "one", "apart", "migration", "return", "return with overlaps"],
)
def test_one_guest_at_a_time_stands_for_a_virtual_machine(
    reported: dict[str, list[Interval]], expected: dict[str, list[Interval]]
) -> None:
    assert turns(reported) == (expected, [])


@pytest.mark.parametrize(
    ("reported", "expected", "ambiguous"),
    [
        ({"a": [(2, 20)], "b": [(7, 8)]}, {"a": [(0, 7), (8, UNBOUNDED)]}, [(7, 8)]),
        ({"a": [(2, 10)], "b": [(7, 12)]}, {"a": [(0, 7)], "b": [(10, UNBOUNDED)]}, [(7, 10)]),
        ({"a": [(2, UNBOUNDED)], "b": [(7, UNBOUNDED)]}, {"a": [(0, 7)]}, [(7, UNBOUNDED)]),
        ({"a": [(2, 9)], "b": [(2, 9)]}, {"a": [(0, 2)], "b": [(9, UNBOUNDED)]}, [(2, 9)]),
        ({"a": [(0, 30)], "b": [(5, 9)], "c": [(8, 12)]}, {"a": [(0, 5), (12, UNBOUNDED)]}, [(5, 12)]),
    ],
    ids=["short clone", "long overlap", "both live", "same time", "two clones"],
)
def test_time_of_two_reported_guests_is_ambiguous(
    reported: dict[str, list[Interval]], expected: dict[str, list[Interval]], ambiguous: list[Interval]
) -> None:
    assert turns(reported) == (expected, ambiguous)


@settings(max_examples=examples(200, 5000))
@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.lists(st.integers(0, 60), min_size=2, max_size=8, unique=True).map(
            lambda at: list(pairwise(sorted(at)))[::2]
        ),
    )
)
def test_no_time_of_a_succession_has_two_guests(reported: dict[str, list[Interval]]) -> None:
    found = succession(reported, 2)
    owned = sorted([*found.ambiguous, *(one for intervals in found.turns.values() for one in intervals)])
    assert not reported or (owned[0][0], owned[-1][1]) == (0, UNBOUNDED)
    assert all(before[1] == after[0] for before, after in pairwise(owned))
    for id_, intervals in found.turns.items():
        for other in {*reported} - {id_}:
            for start, end in intervals:
                shared = sum(max(0, min(end, last) - max(start, first)) for first, last in reported[other])
                alone = not any(first < end and start < last for first, last in reported[id_])
                assert not (alone and shared)


def test_part_of_a_succession_within_an_interval() -> None:
    found = succession({"a": [(2, 20)], "b": [(7, 8)], "c": [(30, 40)]})
    assert found.within(4, 10) == Succession({"a": ((4, 7), (8, 10))}, ((7, 8),))
    assert gaps(found.ambiguous, 4, 10) == [(4, 7), (8, 10)]
    assert gaps([(2, 5), (8, 12)], 4, 10) == [(5, 8)]
    assert joined_runs([(5, 6), (1, 2), (3, 4)], 1) == ((1, 6),)


def test_gpus_swapped_between_two_machines() -> None:
    slots = [slot("a", X, HOUR), slot("b", Y, HOUR), slot("a", Y, 5 * HOUR), slot("b", X, 5 * HOUR)]
    reported = {("a", X): 4 * HOUR, ("b", Y): 4 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR}
    assert intervals(slots, reported) == {
        ("a", X): (0, 5 * HOUR),
        ("b", Y): (0, 5 * HOUR),
        ("a", Y): (5 * HOUR, UNBOUNDED),
        ("b", X): (5 * HOUR, UNBOUNDED),
    }


def test_only_host_readings_with_a_value_count_as_reported() -> None:
    def sample(side: Side, at: int, value: Value | Absent) -> StoredSample:
        view = View(kind=ViewKind.GPU, side=side, uuid="GPU-x", pci_address="0000:01:00.0")
        reading = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=at, values={"gpu_power_watts": value})
        return StoredSample(sample=reading, received_at=at)

    lost = Absent(Reason.GPU_LOST, "")
    stored = {
        "host": [sample(Side.HOST, 5, 1.0), sample(Side.HOST, 9, lost)],
        "guest": [sample(Side.GUEST, 7, 1.0)],
        "no-value": [sample(Side.HOST, 7, lost)],
    }
    assert last_reported(stored) == {("host", X): 5}
    assert last_reported(stored, Side.GUEST) == {("guest", X): 7}


def test_only_machines_that_share_a_gpu_may_have_moved_it() -> None:
    assert possibly_moved([("a", X), ("b", Y), ("c", X)]) == ["a", "c"]
    assert possibly_moved([("a", X), ("b", Y), ("a", "gpu/GPU-z")]) == []


@pytest.mark.parametrize(
    ("span", "there"), [((0, 9), (3, 6)), ((4, 5), (4, 5)), ((0, 2), (2, 2)), ((7, 9), (7, 7)), ((5, 9), (5, 6))]
)
def test_residence_within_a_span(span: tuple[int, int], there: tuple[int, int]) -> None:
    assert Residence(3, 6).within(*span) == there
