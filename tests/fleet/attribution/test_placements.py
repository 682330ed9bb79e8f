"""Attribution on random placements: every device is right or explicitly unknown."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.agent.collect.holders import SavedHoldings
from gpufleet.agent.collect.saved import SavedFile
from tests.support.placements import deliver, run


@given(st.integers(min_value=0, max_value=2**32))
def test_no_placement_is_attributed_to_the_wrong_holder(seed: int) -> None:
    score = run(seed, rounds=60)

    assert score.wrong == 0
    assert score.right > 0


@given(st.integers(min_value=0, max_value=2**32))
def test_hub_has_no_interval_in_which_the_holder_did_not_have_the_device(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = SavedFile(Path(folder, "holdings.json"), SavedHoldings, loss="holdings begin again")
        found = asyncio.run(deliver(seed, 30, file))

    assert (found.wrong, found.overlapping) == (0, 0)
