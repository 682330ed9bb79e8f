"""Intervals: a set of sequence numbers stored as ranges."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hub.receive.sequences import Intervals

NUMBERS = st.lists(st.integers(1, 40), max_size=80)


@given(NUMBERS)
def test_numbers_form_a_set_in_any_order_of_arrival(numbers: list[int]) -> None:
    held = Intervals()
    for number in numbers:
        was_new = number not in held
        assert held.add(number) is was_new
    expected = set(numbers)
    assert {number for number in range(1, 42) if number in held} == expected
    assert len(held) == len(expected)
    assert held.missing == (max(expected) - len(expected) if expected else 0)


@given(NUMBERS)
def test_ranges_are_merged_and_survive_a_round_trip(numbers: list[int]) -> None:
    held = Intervals()
    for number in numbers:
        held.add(number)
    ranges = held.ranges
    assert all(first <= last for first, last in ranges)
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(ranges))
    assert Intervals(ranges).ranges == ranges
    assert len(Intervals(ranges)) == len(held)


@given(NUMBERS)
def test_gaps_are_the_missing_numbers(numbers: list[int]) -> None:
    held = Intervals()
    for number in numbers:
        held.add(number)
    missing = {number for first, last in held.gaps(100) for number in range(first, last + 1)}
    assert missing == set(range(1, held.highest + 1)) - set(numbers)


def test_gaps_are_bounded() -> None:
    assert Intervals([(2, 2), (4, 4), (6, 6)]).gaps(2) == ((1, 1), (3, 3))


def test_overlapping_ranges_are_merged() -> None:
    held = Intervals([(1, 5), (3, 9), (10, 12)])
    assert held.ranges == ((1, 12),)
    assert len(held) == 12
