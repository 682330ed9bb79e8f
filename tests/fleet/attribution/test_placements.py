"""Attribution on random placements: every device is right or explicitly unknown."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.placements import run


@given(st.integers(min_value=0, max_value=2**32))
def test_no_placement_is_attributed_to_the_wrong_holder(seed: int) -> None:
    score = run(seed, rounds=60)

    assert score.wrong == 0
    assert score.right > 0
