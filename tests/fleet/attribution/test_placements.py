"""Attribution on random placements: every device is right or explicitly unknown."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from gpufleet.agent.collect.holders import SavedHoldings
from gpufleet.agent.collect.saved import SavedFile
from tests.support.placements import deliver, run


@given(st.integers(min_value=0, max_value=2**32))
def test_no_placement_is_attributed_to_the_wrong_holder(seed: int) -> None:
    score = run(seed, rounds=60)

    assert score.wrong == 0
    assert score.right > 0


@example(8)  # an agent that was restarted reports before its first round
@given(st.integers(min_value=0, max_value=2**32))
def test_hub_has_no_wrong_interval_and_no_held_device_that_is_free(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = SavedFile(Path(folder, "holdings.json"), SavedHoldings, loss="holdings begin again")
        found = asyncio.run(deliver(seed, 30, file))

    assert (found.wrong, found.overlapping, found.wrong_free) == (0, 0, 0)
