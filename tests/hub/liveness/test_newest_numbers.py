"""Sliding minimum of the newest numbers, compared with a full list."""

import random

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hub.liveness.senders import lower_newest, minimum_of, push_minimum, start_minimum

STEPS = st.lists(st.tuples(st.booleans(), st.integers(-9, 9)), max_size=40)


@given(st.integers(-9, 9), STEPS, st.integers(1, 12))
def test_sliding_minimum_equals_the_minimum_of_a_full_list(
    first: int, steps: list[tuple[bool, int]], keep: int
) -> None:
    every, row = [first], start_minimum(first)
    for is_next, number in steps:
        if is_next:
            every.append(number)
            row = push_minimum(row, number, keep)
        else:
            every[-1] = min(every[-1], number)
            row = lower_newest(row, number)
        for of in range(1, keep + 1):
            assert minimum_of(row, of) == min(every[-of:])
        assert len(row) <= min(keep, len(every))


def test_few_entries_are_kept_of_many_random_numbers() -> None:
    order = random.Random(1)
    row, kept = start_minimum(0), []
    for _ in range(10_000):
        row = push_minimum(row, order.getrandbits(40), 64)
        kept.append(len(row))
    assert sum(kept) / len(kept) < 6
