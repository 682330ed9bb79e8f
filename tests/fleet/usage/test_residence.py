"""Reports of GPUs by several machines, and guests that stand for a virtual machine."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.usage.residence import (
    UNBOUNDED,
    Interval,
    Succession,
    gaps,
    joined_runs,
    last_reported,
    possibly_moved,
    succession,
)
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.view import Side, View, ViewKind
from tests.support.profiles import examples

X, Y = "gpu/GPU-x", "gpu/GPU-y"


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
