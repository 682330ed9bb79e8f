"""Attribution of random jobs of a real SLURM: every device is right or explicitly unknown."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.slurm_placements import run_over_slurm

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", range(2))
def test_no_device_is_attributed_to_the_wrong_job(seed: int, tmp_path: Path, peer: Callable[[str], Path]) -> None:
    score = run_over_slurm(seed, 10, tmp_path, peer("slurmctld"))

    assert score.wrong == 0
    assert score.right > score.unknown
